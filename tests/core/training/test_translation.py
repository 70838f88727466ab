# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training on pairs of texts; the first stage of BART's recipe, section 3.4."""

import functools
import os
import pathlib
import random
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import bart
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.files.document import Document
from gpt_jax.core.nn.params import name_of
from gpt_jax.core.rows import sides
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import origins, step
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.device_check import mesh_of
from gpt_jax.opening import models as trained_lib
from tests.support import tiny
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
  flags = tiny.flags(tokenizer=dict(name='characters'))
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
  settings = tiny.flags(
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


BYTES = tokenizer_lib.build('bytes', [])
M, L, SOURCES = 7, 11, 26
TRAINED = 'source/', 'positions/', 'encoder_positions/'
# In the attention of the encoder's first layer, too.
FIRST = 'query', 'key', 'value'


def build(size, **fields):
  """In a small size, on one device."""
  config = bart.get_config(size).unlock()
  model = dict(num_layers=1, num_encoder_layers=2, d_model=16, num_heads=2)
  model |= dict(d_ff=24, context_length=13, vocab_size=BYTES.vocab_size)
  model |= dict(dtype='float32', dropout='none', loop='unroll')
  fields |= {f'model.{name}': value for name, value in model.items()}
  fields |= {'batch.length': 'stages(13)', 'batch.size': 8}
  config.update_from_flattened_dict(fields)
  config = config_lib.resolve(config)
  return parts_lib.build(config, mesh_of(config, jax.devices()[:1]))


def flat(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {name_of(path): np.asarray(x) for path, x in leaves}


@pytest.mark.long
@pytest.mark.slow
def test_what_is_not_new_stays_but_what_the_paper_names(tmp_path):
  old = build('large')
  state = parts_lib.initial_state(old)
  state = state._replace(params=tiny.random_like(state.params, seed=1))
  saver = Checkpointer(str(tmp_path), keep=1)
  saver.save(state)
  saver.close()
  (tmp_path / 'config.json').write_text(config_lib.to_json(old.config))
  BYTES.save(str(tmp_path / 'tokenizer'))
  parts = build(
    'translation',
    **{'optim.start': str(tmp_path), 'schedule.name': 'constant(peak=1e-2)'},
    **{'model.num_source_layers': 1, 'model.source_vocab_size': SOURCES},
  )
  # The targets' tokenizer is the old one, that of the sources is new.
  letters = Document('a#source', ''.join(map(chr, range(97, 96 + SOURCES))))
  name = "sides('bytes', source='characters')"
  first = origins.first_state(parts, tokenizer_lib.build(name, [letters]))
  batch = {
    'sources': tiny.tokens(2, M),
    'source_mask': np.arange(M)[None] < [[M], [4]],
    'inputs': tiny.tokens(2, L, seed=1),
    'targets': tiny.tokens(2, L, seed=2),
    'weights': np.ones((2, L), np.float32),
  }
  given = dict(objective=parts.objective, optimizer=parts.optimizer, schedule=parts.schedule)
  given |= dict(rates=parts.rates, seed=0, clip_norm=0.1, num_micro=1)
  run = jax.jit(functools.partial(step.train_step, **given))
  drawn, after = flat(first.params), flat(run(first, batch)[0].params)
  assert drawn['source/embed/embedding'].shape == (SOURCES, 16)
  before = flat(state.params)
  assert {n for n in after if n.startswith('source/')} == {*after} - {*before}
  for name, found in after.items():
    changed = found != drawn[name]
    # Of a key's bias the softmax has no gradient.
    if name.startswith(TRAINED) and 'key/bias' not in name:
      assert changed.any(), name
    elif name in before:
      names = name.split('/')
      projects = names[0] == 'encoder' and names[4] in FIRST
      assert changed[:1].any() == projects, name
      assert not changed[1:].any(), name
      np.testing.assert_array_equal(drawn[name], before[name])
