# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each paper's config, shrunk by overrides alone, learns."""

import functools
import importlib

import jax
import numpy as np
import pytest

from gpt_jax.core.objectives import causal
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.rows.rows import cut
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.papers.unilm import unified_order
from tests.support import tiny

SMALL = {
  'model.num_layers': 2,
  'model.d_model': 32,
  'model.num_heads': 4,
  'model.head_size': 8,
  'model.d_ff': 64,
  'model.vocab_size': 61,
  'model.context_length': 24,
  'model.dtype': 'float32',
  'batch.size': 8,
  'batch.micro_rows': 8,
  'schedule.num_steps': 50,
  # A rate for the size; each paper's optimiser, clipping, objective stay.
  'schedule.name': 'constant(peak=1e-2)',
}
LINEAGE = (
  'gpt1',
  'gpt2',
  'gpt3',
  'gopher',
  'switch',
  'chinchilla',
  'lamda',
  'palm',
  'llama',
  'llama3',
  'bert',
  'roberta',
  'albert',
  'electra',
  'unilm',
  't5',
  'deberta',
  'bigbird',
)
ENCODERS = ('bert', 'roberta', 'albert', 'electra', 'unilm', 'deberta', 'bigbird')


def losses(name, **changes):
  """The losses of 50 steps on rows that walk one random cycle of all tokens."""
  config = importlib.import_module(f'configs.{name}').get_config().unlock()
  config.update_from_flattened_dict({**SMALL, **changes})
  # Its one group of a batch has another size here.
  config.model.ffn = config.model.ffn.replace('group_size=2048', 'group_size=0')
  make_batch = causal_batch
  config.batch.length = None  # all rows have 24 tokens
  if (config.model.num_kv_heads or 0) > 4:
    config.model.num_kv_heads = 2
  if name in ENCODERS:
    pairs = config.data.rows.startswith('pairs')
    needs = objectives.needs(config.objective.name)
    make_batch = functools.partial(
      masked_batch,
      pairs=pairs,
      labels=bool(needs.pair),
      # 15% of 24, rounded up; at most that for ELECTRA.
      chosen=3 if needs.parts else 4,
      unified=needs.pair == 'unified',
    )
  elif name == 't5':
    config.model.num_encoder_layers = 2
    make_batch = copy_batch
  else:
    config.data.rows = 'stream'
  run = tiny.build(config.lock(), (1, 1, 1))
  state = parts_lib.initial_state(run)
  step = compiled_lib.compile_train_step(run).call
  rng = np.random.default_rng(0)
  cycle = rng.permutation(61).astype(np.int32)
  found = []
  for _ in range(50):
    state, metrics = step(state, run.put(make_batch(rng, cycle), 8))
    found.append(metrics['loss'])
  return np.array(jax.device_get(found))


def causal_batch(rng, cycle):
  starts = rng.integers(61, size=(8, 1))
  return causal.make_batch(cut(cycle[(starts + np.arange(25)) % 61]))


def copy_batch(rng, cycle):
  """A source, and a target that goes on with its last tokens but some.

  26 tokens of text make an encoder's 24, and a decoder's 6.
  """
  starts = rng.integers(61, size=(8, 1))
  text = cycle[(starts + np.arange(26)) % 61]
  return {
    'sources': text[:, :24],
    'source_mask': np.ones((8, 24), bool),
    'inputs': text[:, 19:25],
    'targets': text[:, 20:26],
    'weights': np.ones((8, 6), np.float32),
  }


def masked_batch(rng, cycle, *, pairs, labels, chosen, unified):
  """One token twelve times, then another or the same; which, is to be filled.

  The label of the pair is 1 where it is another. 60 stands for [MASK].
  """
  del cycle
  words = rng.integers(3, size=(8, 2))
  words[::2, 1] = words[::2, 0]
  rows = np.repeat(words, 12, axis=1).astype(np.int32)
  places = np.stack([rng.permutation(24)[:chosen] for _ in rows])
  index = np.arange(8)[:, None], places
  inputs = rows.copy()
  inputs[index] = 60
  batch = {
    'inputs': inputs,
    'mask': np.ones(rows.shape, bool),
    'masked_positions': places.astype(np.int32),
    'masked_targets': rows[index],
    'masked_weights': np.ones(places.shape, np.float32),
  }
  if pairs:
    types = np.repeat([[0, 1]], 12, axis=1).repeat(8, 0)
    batch['token_types'] = types.astype(np.int32)
  if labels:
    other = words[:, 0] != words[:, 1]
    batch['pair_labels'] = other.astype(np.int32)
    batch['pair_weights'] = np.ones(8, np.float32)
  if unified:
    batch['masks'] = unified_order.masks(np.arange(8))
    batch['second'] = types == 1
  return batch


@pytest.mark.parametrize(
  'name',
  [
    'llama',
    *(
      pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long])
      for name in LINEAGE
      if name != 'llama'
    ),
  ],
)
def test_loss_falls(name):
  found = losses(name)
  assert np.all(np.isfinite(found))
  # At first, a guess among 61 tokens; N(0, 1) embeddings guess worse.
  assert found[0] > 0.95 * np.log(61)
  assert found[-5:].mean() < 0.7 * found[0]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('name', ['gopher', 'palm'])
def test_loss_falls_in_bfloat16(name):
  found = losses(name, **{'model.dtype': 'bfloat16'})
  assert found[-5:].mean() < 0.7 * found[0]
  np.testing.assert_allclose(found[0], losses(name)[0], rtol=2e-2)
