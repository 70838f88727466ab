# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The masked objective against its equations in NumPy."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from configs import bert
from gpt_jax import config as config_lib
from gpt_jax.benchmarks import train
from gpt_jax.benchmarks.train import random_store
from gpt_jax.objectives.masked import Masked
from gpt_jax.rows import batch_rows, row_order
from gpt_jax.rows.rows import Keys, Rows
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
  num_layers=1,
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
  objective = Masked(rate=0.3, pair=pair).bind(tiny.model(**FIELDS), Words())
  shapes = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(1)))
  # Biases and norms that say something.
  return objective, tiny.random_like(shapes, seed=2)


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


@functools.cache
def loss_of(pair):
  objective, _ = of(pair)

  return jax.jit(lambda params, batch: objective.loss(params, batch, None))


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
  found = loss_of(pair)(params, batch)
  means = {name: mean.sum / mean.weight for name, mean in found.metrics.items()}
  np.testing.assert_allclose(means['objective/masked_loss'], total, rtol=1e-5)
  if pair != 'none':
    mean = pairs[:-1].mean()
    np.testing.assert_allclose(means['objective/pair_loss'], mean, rtol=1e-5)
    total += mean
  value = sum(mean.sum / mean.weight for mean in found.means)
  np.testing.assert_allclose(value, total, rtol=1e-5)
  accuracy = found.metrics['objective/masked_accuracy']
  assert accuracy.sum == np.sum(right * weights)
  assert accuracy.weight == weights.sum()


def test_parts_with_other_numbers_of_tokens_and_rows_add_up():
  objective, params = of('next')
  batch = objective.make_batch(rows(), KEYS)
  batch['mask'][-1] = batch['masked_weights'][-1] = 0
  batch['pair_weights'][-1] = 0
  whole, parts = (
    jax.jit(
      functools.partial(mean_gradients, objective=objective, num_micro=number)
    )(params, batch, jax.random.key(0))
    for number in (1, 4)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
    parts,
    whole,
  )


def test_batches_are_the_same_on_any_number_of_hosts_and_after_a_resume():
  """And other tokens of a row are masked in the next epoch."""
  store = random_store(num_tokens=19 * L + 1, vocab_size=V)
  objective, _ = of('none')

  def batches(start, host=0, hosts=1, seed=3):
    return [
      *row_order.batches(
        store,
        seed=seed,
        start=start,
        stop=6,
        rows=batch_rows.even(8, L),
        make_batch=objective.make_batch,
        host_rows=lambda n: slice(host * n // hosts, (host + 1) * n // hosts),
      )
    ]

  whole = batches(0)
  for hosts in (2, 4):
    shares = [batches(0, host, hosts) for host in range(hosts)]
    for step, batch in enumerate(whole):
      for name, value in batch.items():
        joined = np.concatenate([share[step][name] for share in shares])
        np.testing.assert_array_equal(joined, value)
  for batch, again in zip(whole[4:], batches(4), strict=True):
    for name, value in batch.items():
      np.testing.assert_array_equal(again[name], value)
  # Epochs of 19 rows: six batches have 48.
  source = row_order.RowSource(store, length=L, seed=3)
  order = source.row_numbers(range(48))
  rows_of = np.concatenate([batch['inputs'] for batch in whole])
  twice = [np.flatnonzero(order == row) for row in range(19)]
  pairs = [rows_of[found[:2]] for found in twice]
  assert any((first != second).any() for first, second in pairs)
  others = batches(0, seed=4)
  assert (others[0]['inputs'] != whole[0]['inputs']).any()


def test_tokens_that_are_not_chosen_have_no_loss():
  objective, params = of('none')
  batch = objective.make_batch(rows(), KEYS)
  nothing = {**batch, 'masked_weights': 0 * batch['masked_weights']}
  assert loss_of('none')(params, nothing).sum == 0
  # Another target where no token counts changes nothing.
  other = np.where(batch['masked_weights'] > 0, batch['masked_targets'], 1)
  same = loss_of('none')(params, {**batch, 'masked_targets': other}).sum
  assert same == loss_of('none')(params, batch).sum


def test_random_tokens_are_no_text():
  config = bert.get_config('cpu')
  with pytest.raises(UsageError, match='gpt-jax train'):
    train.measure(config_lib.resolve(config), 1)
