# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The masked objective against its equations in NumPy."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.data.rows import Keys, Rows
from gpt_jax.objectives.masked import masked
from gpt_jax.spec import UsageError
from gpt_jax.training.step import mean_gradients
from tests.support import tiny

N, L, V = 8, 13, tiny.V
MASK = 2


class Special:
  mask_id = MASK


class Words:
  """A tokenizer of which odd ids begin a word."""

  special, vocab_size = Special(), V

  def word_starts(self, ids):
    return ids % 2 == 1


FIELDS = dict(
  attention='bidirectional',
  input='tokens(token_types=2)',
  output="tied(bias=True, transform='gelu')",
  num_layers=2,
)


def rows():
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, V, size=(N, L), dtype=np.int32)
  real = np.arange(L) < np.array([L, 7, L, 5, 11, L, 3, L])[:, None]
  types = (np.arange(L)[None] > 4).astype(np.int32) * np.ones((N, 1), np.int32)
  pair = np.arange(N, dtype=np.int32) % 2
  special = np.zeros((N, L), bool)
  special[:, 0] = True
  return Rows(tokens, real, token_types=types, special=special, pair=pair)


KEYS = Keys(3, np.arange(N), np.arange(N), np.zeros(N, int))


@functools.cache
def of(pair):
  objective = masked(rate=0.3, pair=pair)(tiny.model(**FIELDS), Words())
  params = nn.meta.unbox(objective.init(jax.random.key(1)))
  # Biases and norms that say something.
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(2), len(leaves))
  leaves = [
    x + 0.1 * jax.random.normal(k, x.shape)
    for x, k in zip(leaves, keys, strict=True)
  ]
  return objective, jax.tree.unflatten(tree, leaves)


def expected(params, batch):
  """Both losses of each chosen token and row, from the logits of all."""
  model = tiny.model(**FIELDS)
  variables = {'params': params}

  @jax.jit
  def apply(batch):
    hidden_BLD = model.apply(
      variables,
      batch['inputs'],
      mask_BL=batch['mask'],
      token_types_BL=batch['token_types'],
    ).hidden_BLD
    return hidden_BLD, model.apply(variables, hidden_BLD, method='logits')

  hidden_BLD, logits = map(np.float64, apply(batch))
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  at = batch['masked_positions']
  rows_N = np.arange(len(at))[:, None]
  nll = -log_probs[rows_N, at, batch['masked_targets']]
  right = logits[rows_N, at].argmax(-1) == batch['masked_targets']
  first = hidden_BLD[:, 0]
  heads = jax.tree.map(np.float64, params.get('heads'))
  if not heads:
    return nll, right, None
  pooled = np.tanh(
    first @ heads['pooler']['kernel'] + heads['pooler']['bias'][None]
  )
  pair = pooled @ heads['pair']['kernel'] + heads['pair']['bias'][None]
  pair -= np.log(np.exp(pair).sum(-1, keepdims=True))
  return nll, right, -pair[np.arange(len(pair)), batch['pair_labels']]


@pytest.mark.parametrize('pair', ['none', 'next'])
def test_the_loss_is_the_papers(pair):
  objective, params = of(pair)
  batch = objective.make_batch(rows(), KEYS)
  # A row that only fills up.
  batch['mask'][-1] = batch['masked_weights'][-1] = 0
  if pair != 'none':
    batch['pair_weights'][-1] = 0
  nll, right, pairs = expected(params, batch)
  weights = batch['masked_weights']
  total = np.sum(nll * weights) / weights.sum()
  loss, metrics, whole = jax.jit(
    functools.partial(mean_gradients, objective=objective, num_micro=1)
  )(params, batch, jax.random.key(0))
  np.testing.assert_allclose(metrics['objective/masked_loss'], total, rtol=1e-5)
  if pair != 'none':
    mean = pairs[:-1].mean()
    np.testing.assert_allclose(metrics['objective/pair_loss'], mean, rtol=1e-5)
    total += mean
  np.testing.assert_allclose(loss, total, rtol=1e-5)
  # In parts with other numbers of tokens and rows it is the same mean.
  parts = jax.jit(
    functools.partial(mean_gradients, objective=objective, num_micro=4)
  )(params, batch, jax.random.key(0))
  np.testing.assert_allclose(parts[0], total, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
    parts[2],
    whole,
  )
  if objective.balance:
    batch = objective.balance(batch)
  found = jax.jit(objective.loss)(params, batch, None)
  np.testing.assert_allclose(found.sum / found.weight, total, rtol=1e-5)
  accuracy = found.metrics['objective/masked_accuracy']
  assert accuracy.sum == np.sum(right * weights)
  assert accuracy.weight == weights.sum()


def test_tokens_that_are_not_chosen_have_no_loss():
  objective, params = of('none')
  batch = objective.make_batch(rows(), KEYS)
  nothing = {**batch, 'masked_weights': 0 * batch['masked_weights']}
  assert objective.loss(params, nothing, None).sum == 0
  # Another target where no token counts changes nothing.
  other = np.where(batch['masked_weights'] > 0, batch['masked_targets'], 1)
  same = objective.loss(params, {**batch, 'masked_targets': other}, None).sum
  assert same == objective.loss(params, batch, None).sum


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (dict(unit='line'), "unit='line': unknown; one of token, word"),
    (dict(pair='both'), "pair='both': unknown; one of none, next, order"),
    (dict(mask=0.8, random=0.3), 'their sum must be at most 1'),
  ],
)
def test_bad_arguments(call, message):
  with pytest.raises(UsageError, match=message):
    masked(**call)
