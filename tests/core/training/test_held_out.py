# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The held-out loss is the set's: neither batches nor devices change it."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.objectives import choices
from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training.held_out import HeldOut
from tests.support import tiny
from tests.support.sentence_store import CLS, EOS, PAD, SEP, store_of

MASK, FIRST, V = 5, 10, tiny.V
L = 13

ENCODER = dict(
  attention='bidirectional',
  input='tokens(token_types=2)',
  output="tied(bias=True, transform='gelu')",
)
BOTH = dict(num_encoder_layers=1)
XLNET = dict(
  attention='bidirectional',
  block='post',
  d_model=22,
  input='tokens(queries=True)',
  position='xlnet(memory=5)',
)
# Call of an objective, its rows, its model, and the name of a second model.
CASES = [
  ('causal', 'stream', {}, ''),
  ('causal', 'documents', {}, ''),
  ("auxiliary(layers='last', targets=2)", 'stream', {}, ''),
  ('prefix', 'stream', {}, ''),
  ('masked(rate=0.3)', 'doc_sentences', ENCODER, ''),
  ("masked(rate=0.3, pair='next')", "pairs('next')", ENCODER, ''),
  ("masked(rate=0.3, pair='order')", "pairs('order')", ENCODER, ''),
  ('unified(rate=0.3)', "pairs('unified')", ENCODER, ''),
  ('electra(0.3, 7.0)', 'stream', ENCODER | {'output': 'tied'}, 'generator'),
  ("electra(0.3, 7.0, 'all_tokens_mlm')", "pairs('next')", ENCODER, 'generator'),
  ("distilled(text='causal', places='real')", 'documents', {}, 'teacher'),
  ('distilled(text="masked(rate=0.3, pair=\'next\')")', "pairs('next')", ENCODER, 'teacher'),
  (
    'distilled(text="masked(rate=0.3, static=1, pair=\'next\')", cosine=0.0, top_k=3)',
    "pairs('next')",
    ENCODER,
    '',
  ),
  ('permuted(context=3)', 'stream', XLNET, ''),
  ("denoise('infill')", 'doc_sentences', BOTH, ''),
  ('mass', 'doc_sentences', BOTH, ''),
  ('seq2seq', 'parallel', BOTH, ''),
  ('unified_target', "parallel(start='cls')", ENCODER | {'context_length': 2 * L}, ''),
]


class Words:
  """A tokenizer, as far as objectives ask."""

  vocab_size = V
  special = special.of({}, EOS, {})._replace(cls_id=CLS, sep_id=SEP, pad_id=PAD, mask_id=MASK)

  def word_starts(self, ids):
    return ids % 2 == 1

  def encode(self, text):
    return [FIRST + ord(character) % (V - FIRST) for character in text]

  def decode(self, ids):
    return ''.join('x' for _ in ids)


def store(rows):
  """Documents of few and of many sentences, so that batches are uneven."""
  rng = np.random.default_rng(0)

  def sentence():
    return rng.integers(FIRST, V, size=rng.integers(1, 9)).tolist()

  documents = [[sentence() for _ in range(n)] for n in [1, 2, 11, 1] * 5]
  made = store_of(documents, rows)
  made.special = Words.special
  made.tokenizer = Words  # pyright: ignore[reportAttributeAccessIssue]
  pairs = rows.startswith('parallel')
  made.manifest = dataclasses.replace(made.manifest, pairs=pairs, vocab_size=V)
  return made


@functools.cache
def objective_of(call, fields, second):
  model = tiny.model(num_layers=1, **dict(fields))
  others = {second: tiny.model(num_layers=1, **dict(fields, output=SCORES))}
  if second == 'teacher':
    others = {second: model}
  others = {name: other for name, other in others.items() if name}
  tokenizer: Any = Words()
  objective = choices.build(call, model, tokenizer, others)
  return objective, tiny.random_like(tiny.shapes(objective), seed=1)


SCORES = ENCODER['output']


def measured(case, *, rows, devices, num_batches=None):
  """The measures of a set with some `eval.rows`, on so many devices."""
  call, kind, fields, second = case
  objective, params = objective_of(call, tuple(fields.items()), second)
  parts = tiny.build(tiny.config(), (devices, 1, 1), objective=objective)
  config = parts.config.copy_and_resolve_references().unlock()
  config.data.rows, config.eval.rows = kind, rows
  config.eval.num_batches = num_batches
  parts = parts._replace(config=config)
  held_out = EvalSet(store(kind), None)
  with sharding.use(parts.mesh, parts.rules):
    params = jax.device_put(params, parts.shardings.params)
  found = HeldOut(parts, {'validation': held_out})(params)
  assert found is not None
  return found


def marked(cases):
  """Those of one mean, or of the means of another case, are slow."""
  fast = 'unified(', 'all_tokens_mlm', 'text="masked(rate=0.3, pair'
  return [
    pytest.param(
      case,
      id=f'{case[0]}-{case[1]}',
      marks=[] if any(x in case[0] for x in fast) else pytest.mark.slow,
    )
    for case in cases
  ]


@pytest.mark.parametrize('case', marked(CASES))
def test_neither_batches_nor_devices_change_the_loss(case):
  whole = measured(case, rows=64, devices=1)
  assert whole['eval/validation/tokens'] > 30
  found = measured(case, rows=3, devices=2)
  assert found.keys() == whole.keys()
  for name, value in whole.items():
    assert found[name] == pytest.approx(value, rel=3e-5), name


def test_as_many_rows_are_read_on_any_devices():
  """`eval.num_batches` batches of `eval.rows`, also where these are raised."""
  case = CASES[0]
  one, four = (measured(case, rows=3, devices=n, num_batches=2) for n in (1, 4))
  assert one['eval/validation/tokens'] == 2 * 3 * L
  for name, value in one.items():
    assert four[name] == pytest.approx(value, rel=1e-5), name


def test_few_batches_are_under_way(monkeypatch):
  """Else many small ones end in a deadlock: see `sharding.wait_for_earlier`."""
  waited = []
  monkeypatch.setattr(sharding, 'MOST_STARTED', 2)
  monkeypatch.setattr(jax, 'block_until_ready', waited.append)
  measured(CASES[0], rows=2, devices=2, num_batches=7)
  assert len(waited) == 7 - 2


@pytest.mark.parametrize(
  ('case', 'weights'),
  [
    (CASES[5], {'masked': 1, 'pair': 1}),
    (CASES[8], {'masked': 1, 'replaced': 7}),
    (CASES[9], {'masked': 1, 'token': 7}),
    (CASES[11], {'hard': 2, 'soft': 5, 'cosine': 1}),
  ],
)
def test_the_loss_is_the_weighted_sum_of_means(case, weights):
  """Each mean is over the whole set: M / m + weight P / r."""
  found = measured(case, rows=5, devices=1)
  expected = sum(weight * found[f'eval/validation/{name}_loss'] for name, weight in weights.items())
  assert found['eval/validation/loss'] == pytest.approx(expected, rel=1e-6)
