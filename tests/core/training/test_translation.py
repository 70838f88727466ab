# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training on pairs of texts, from files to what is decoded."""

import os
import pathlib
import random
import subprocess
import sys

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.rows import sides
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.opening import models as trained_lib
from tests.support.decoding import generate
from tests.test_docs import ROOT, fenced


def write_pairs(name, count, seed):
  """Made-up words to copy (c) and to write backwards (r), side by side."""
  rng = random.Random(seed)
  pairs = []
  for _ in range(count):
    word = ''.join(rng.choices('abdefgh', k=rng.randrange(2, 9)))
    kind = rng.choice('cr')
    pairs.append((kind + word, word[::-1] if kind == 'r' else word))
  for side, end in enumerate(('en', 'de')):
    lines = ''.join(f'{pair[side]}\n' for pair in pairs)
    pathlib.Path(f'{name}.{end}').write_text(lines)
  return pairs


def overrides(**sections):
  """Flags that set fields of a config."""
  return [
    f'--config.{section}.{field}={value}'
    for section, fields in sections.items()
    for field, value in fields.items()
  ]


@pytest.fixture
def translate(tmp_path, monkeypatch):
  """The config of docs/translation.md, and its two files."""
  monkeypatch.chdir(tmp_path)
  (text,) = (block for block in fenced(ROOT / 'docs/translation.md') if 'get_config' in block)
  assert len([*filter(None, text.splitlines())]) == 5
  pathlib.Path('translate.py').write_text(text)
  write_pairs('train', 20_000, seed=1)
  return ['--config', 'translate.py']


def test_a_config_of_five_lines_is_all_that_two_files_need(translate):
  flags = overrides(tokenizer=dict(name='characters'))
  assert main(['prepare', *translate, '--out', 'D', *flags]) == 0
  store = TokenStore.open('D')
  held_out = store.validation()
  assert held_out is not None
  numbers = [s.manifest.num_documents // 2 for s in (store, held_out)]
  assert sum(numbers) == 20_000 and 300 < numbers[1] < 500
  assert main(['inspect', *translate]) == 0


@pytest.mark.long
@pytest.mark.slow
def test_words_are_copied_and_written_backwards(translate):
  settings = overrides(
    model=dict(num_layers=2, num_encoder_layers=2, d_model=64, d_ff=128)
    | dict(vocab_size=10, context_length=32, dropout='none'),
    tokenizer=dict(name='characters'),
    data=dict(holdout='none'),
    batch=dict(size=16),
    schedule=dict(num_steps=700) | dict(name='cosine(peak=3e-3, warmup=100, final=0.01)'),
    checkpoint=dict(every_steps=700),
  )
  # With one device, and compiled to run fast.
  subprocess.run(
    [sys.executable, '-m', 'gpt_jax', 'train', *translate, *settings] + ['--workdir', 'W'],
    env={**os.environ, 'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''},
    check=True,
  )
  found = trained_lib.load('W')
  made, unseen = found.tokenizer, write_pairs('test', 300, seed=2)
  first = sides.start_id('eos', made.special)
  out = generate(
    found.parts.model,
    found.state.eval_params,
    [[first]] * len(unseen),
    max_tokens=10,
    stop_ids=made.special.stop_ids,
    sources=[sides.source_ids(made.encode(source), made.special).tolist() for source, _ in unseen],
  )
  right = sum(made.decode(ids) == target for ids, (_, target) in zip(out, unseen, strict=True))
  assert right >= 0.99 * len(unseen)
