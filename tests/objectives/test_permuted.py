# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens predicted in a random order: the loss, its segments, New York."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from gpt_jax import hf
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.permuted import Permuted
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT

FIELDS = dict(
  attention='bidirectional',
  block='post',
  d_model=22,
  input='tokens(queries=True)',
  num_layers=1,
  position='xlnet(memory=5)',
)


class Words:
  vocab_size = tiny.V

  def word_starts(self, ids):
    return np.ones(ids.shape, bool)


def keys(count):
  numbers = np.arange(count)
  return Keys(3, numbers, numbers, np.zeros(count, int))


@pytest.mark.parametrize(
  'segments', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_loss_is_that_of_hugging_face(segments):
  """With the masks, the targets and the memories that it is given."""
  model, params = hf.load(str(ROOT / 'xlnet_lm'))
  B, L = 3, 14 * segments
  tokens = tiny.tokens(B, L, vocab_size=model.vocab_size)
  objective = Permuted(context=3, segments=segments).bind(model, Words())
  batch = objective.make_batch(Rows(tokens, np.ones((B, L), bool)), keys(B))
  found = jax.jit(lambda p, b: objective.loss(p, b, None))(params, batch)
  mems = np.zeros((2, 8, B, 32), np.float32) if segments > 1 else None
  total, P = 0.0, 4  # a third of 14
  for first in range(0, L, 14):
    part = slice(first, first + 14)
    at = batch['masked_positions'][:, part.start // 14 * P :][:, :P] - first
    ranks = batch['ranks'][:, part]
    mapping = np.eye(14)[at]
    # A token that is predicted does not see itself, nor what is not before.
    chosen = mapping.sum(axis=1) > 0
    later = ranks[:, None] >= ranks[..., None]
    hidden = np.where(chosen[..., None], later, ranks[:, None] > 0)
    more = {} if mems is None else {'mems': mems}
    out = hf.forward(
      *(model, params),
      input_ids=tokens[:, part],
      perm_mask=np.float32(hidden),
      target_mapping=np.float32(mapping),
      labels=np.take_along_axis(tokens[:, part], at, axis=1),
      use_mems=segments > 1,
      **more,
    )
    total += float(out['loss']) * B * P
    mems = out.get('mems')
  assert found.weight == segments * B * P
  assert float(found.sum) == pytest.approx(total, rel=1e-5)
  assert {*found.metrics} == {
    *('objective/masked_loss', 'objective/masked_accuracy')
  }


def test_segments_divide_a_row():
  model = tiny.model(**FIELDS)
  rows = Rows(tiny.tokens(2, 13), np.ones((2, 13), bool))
  with pytest.raises(UsageError, match='segments=2 do not divide a row of 13'):
    Permuted(segments=2).bind(model, Words()).make_batch(rows, keys(2))


@functools.cache
def learner(kind):
  """A model of one layer and what its objective wants."""
  fields = dict(
    FIELDS, d_model=32, d_ff=32, num_heads=2, num_kv_heads=2, head_size=16
  )
  if kind == 'permuted':
    model = tiny.model(**fields)
    return model, Permuted().bind(model)
  fields['input'] = 'tokens'
  model = tiny.model(**fields)
  return model, Masked().bind(model)


@functools.partial(jax.jit, static_argnums=(0, 1))
def trained(kind, steps, batch):
  """The loss after so many steps of the whole corpus."""
  model, objective = learner(kind)
  init = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
  params = nn.meta.unbox(init['params'])
  optimizer = optax.adam(1e-2)

  def mean(params):
    found = objective.loss(params, batch, jax.random.key(0))
    return found.sum / found.weight

  def step(state, _):
    params, moments = state
    loss, gradient = jax.value_and_grad(mean)(params)
    updates, moments = optimizer.update(gradient, moments)
    return (optax.apply_updates(params, updates), moments), loss

  state = params, optimizer.init(params)
  return jax.lax.scan(step, state, None, steps)[1][-1]


# "New York is a city" and "Los Angeles is a city".
CORPUS = np.array([[1, 2, 5, 6, 7], [3, 4, 5, 6, 7]], np.int32)
MASK = 9


@pytest.mark.slow
def test_new_york_is_a_city():
  """Ln 2 a pair in either order; 2 ln 2 where both are predicted at once.

  Both first words are predicted, of each sentence in both orders.
  """
  both = np.tile([[0, 1]], (4, 1)).astype(np.int32)
  tokens = np.repeat(CORPUS, 2, axis=0)
  batch = {
    'mask': np.ones((4, 5), bool),
    'masked_positions': both,
    'masked_targets': tokens[:, :2],
    'masked_weights': np.ones((4, 2), np.float32),
  }
  ranks = np.array([[1, 2, 0, 0, 0], [2, 1, 0, 0, 0]] * 2, np.int32)
  found = trained('permuted', 300, {**batch, 'inputs': tokens, 'ranks': ranks})
  assert 2 * found == pytest.approx(np.log(2), abs=0.03)
  hidden = tokens.copy()
  hidden[:, :2] = MASK
  found = trained('masked', 300, {**batch, 'inputs': hidden})
  assert 1.38 <= 2 * found < 1.42
