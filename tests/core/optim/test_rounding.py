# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters as they are kept: rounded, and averaged."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.core import spec
from gpt_jax.core.optim import rounding
from gpt_jax.core.optim.rounding import AVERAGES, NEVER, PRECISIONS, stochastic_round
from gpt_jax.core.spec import UsageError
from tests.support import tiny

stochastic_round = jax.jit(stochastic_round)


@functools.cache
def all_of_bfloat16():
  """Every finite number, ascending, in float64."""
  bits = np.arange(2**16, dtype=np.uint16)
  finite = bits[bits >> 7 & 0xFF != 0xFF]  # the exponent of infinity and NaN
  return np.unique(finite.view(jnp.bfloat16).astype(np.float64))


def neighbours(x):
  """The largest number not above x and the smallest not below it."""
  numbers, x = all_of_bfloat16(), np.float64(x)
  below = np.searchsorted(numbers, x, side='right') - 1
  above = np.searchsorted(numbers, x, side='left')
  return numbers[below], numbers[above]


# Of all sizes; 5e-39 is subnormal.
VALUES = np.float32([1.0001, -1.0001, 3.14159265, -0.1, 0.7, 1e-30, -2.5e30, 5e-39, 255.3])


@pytest.mark.parametrize('x', VALUES)
def test_a_neighbour_each_time_and_the_number_on_average(x):
  draws = 20_011
  found = stochastic_round(jnp.full(draws, x), jax.random.key(3))
  assert found.dtype == jnp.bfloat16
  found = np.asarray(found).astype(np.float64)
  below, above = neighbours(x)
  assert {*found} == {below, above}
  # The number of times that it is rounded up is binomial: five deviations.
  p = (np.float64(x) - below) / (above - below)
  sigma = np.sqrt(p * (1 - p) / draws)
  assert abs(np.mean(found == above) - p) < 5 * sigma


def test_what_needs_no_rounding_stays():
  x = np.float32([0.0, 1.0, -1.5, 2.0**-130, 3.3895314e38, -3.3895314e38])
  x = np.tile(x, (97, 1))
  found = stochastic_round(x, jax.random.key(5))
  np.testing.assert_array_equal(np.float32(found), x)
  negative = stochastic_round(-np.zeros(3, np.float32), jax.random.key(5))
  assert np.all(np.signbit(np.float32(negative)))


def test_what_is_not_finite_stays():
  # These bits are a NaN's, and the noise would carry over into its sign.
  nan = np.array([0x7FFFFFFF, 0x7FC00001, 0xFFFFFFFF], np.uint32)
  x = np.concatenate([np.float32([np.inf, -np.inf]), nan.view(np.float32)])
  found = stochastic_round(np.tile(x, (97, 1)), jax.random.key(5))
  found = np.float32(found)
  assert np.all(found[:, 0] == np.inf) and np.all(found[:, 1] == -np.inf)
  assert np.all(np.isnan(found[:, 2:]))


def test_small_updates_add_up():
  """Each is a hundredth of the step at 1, which the nearest would drop."""
  x = jnp.ones(1009, jnp.bfloat16)
  for i in range(100):
    x = add({'kernel': x}, {'kernel': jnp.full(1009, 1e-4)}, i)['kernel']
  moved = np.float32(x) - 1
  # Each of 100 draws is up by 1/128 with probability p.
  p = 1e-4 * 128
  sigma = np.sqrt(100 * p * (1 - p) / 1009) / 128
  assert abs(moved.mean() - 1e-2) < 5 * sigma
  assert optax.apply_updates(jnp.ones(3, jnp.bfloat16), jnp.full(3, 1e-4))[0] == 1


@jax.jit
def add(params, updates, step):
  key = jax.random.fold_in(jax.random.key(7), step)
  return rounding.add(params, updates, key)


def test_float32_takes_the_update_as_it_is():
  rng = np.random.default_rng(0)
  param, update = np.float32(rng.normal(size=(2, 101)))
  found = add({'scale': param}, {'scale': update}, 0)['scale']
  np.testing.assert_array_equal(found, param + update)
  assert found.dtype == jnp.float32


def leaves_of(step, place=lambda x: x):
  rng = np.random.default_rng(0)
  update = np.float32(1e-2 * rng.normal(size=(8, 16)))
  one = {'params': np.ones((8, 16), jnp.bfloat16), 'updates': update}
  placed = jax.tree.map(place, one)
  trees = [{n: placed[part] for n in 'ab'} for part in ('params', 'updates')]
  return jax.device_get(add(*trees, step))


def test_parameters_and_steps_round_differently():
  first, again, later = leaves_of(0), leaves_of(0), leaves_of(1)
  jax.tree.map(np.testing.assert_array_equal, first, again)
  assert np.any(first['a'] != first['b'])
  assert np.any(first['a'] != later['a'])


@pytest.mark.parametrize('split', [('a', 'b'), ('b', 'a'), (('a', 'b'), None)])
def test_rounding_does_not_depend_on_sharding(split):
  mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('a', 'b'))
  sharding = NamedSharding(mesh, PartitionSpec(*split))
  found = leaves_of(2, lambda x: jax.device_put(x, sharding))
  jax.tree.map(np.testing.assert_array_equal, found, leaves_of(2))


# The model ---------------------------------------------------------------


def test_initial_weights_are_rounded_to_the_nearest():
  params = tiny.params(tiny.model())
  found = spec.build('optim.precision', 'bfloat16', PRECISIONS)(jax.tree.map(jnp.asarray, params))
  for path, x in jax.tree_util.tree_leaves_with_path(found):
    wanted = functools.reduce(lambda tree, k: tree[k.key], path, params)
    if path[-1].key not in ('bias', 'scale'):
      below, above = neighbours(wanted)
      wanted = np.where(wanted - below < above - wanted, below, above)
    np.testing.assert_array_equal(np.float64(x), wanted)
  same = spec.build('optim.precision', 'float32', PRECISIONS)(params)
  assert same is params


# The moving average of the weights against its sum written out.


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_average_is_the_weighted_sum(dtype):
  """decay^n p_0 + (1 - decay) sum_i decay^(n - i) p_i, in float64."""
  rng = np.random.default_rng(0)
  steps, decay = 20, 0.8
  history = rng.normal(size=(steps + 1, 3, 5)).astype(dtype)
  made = spec.build('optim.ema', f'ema(decay={decay})', AVERAGES)
  update = jax.jit(made.update)
  average = {'kernel': history[0].astype(np.float32)}
  for i, params in enumerate(history[1:]):
    average = update(average, {'kernel': params}, i + 1, None)
  weights = (1 - decay) * decay ** np.arange(steps, -1, -1.0)
  weights[0] = decay**steps
  expected = np.tensordot(weights, history.astype(np.float64), 1)
  assert average['kernel'].dtype == jnp.float32
  np.testing.assert_allclose(average['kernel'], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('call', ['mean(start=4)', 'mean(patience=2)'])
def test_the_mean_is_of_all_steps_from_its_start(call):
  rng = np.random.default_rng(0)
  history = rng.normal(size=(8, 3, 5)).astype(np.float32)
  made = spec.build('optim.ema', call, AVERAGES)
  update, start = jax.jit(made.update), NEVER if made.patience else None
  average = {'kernel': history[0]}
  for step, params in enumerate(history[1:], start=1):
    average = update(average, {'kernel': params}, step, start)
    if step == 4 and made.patience:
      start = np.int32(4)
    expected = history[min(step, 4) : step + 1].mean(axis=0)
    if step <= 4:
      np.testing.assert_array_equal(average['kernel'], params)
    else:
      np.testing.assert_allclose(average['kernel'], expected, rtol=1e-5)


def test_evaluations_decide_the_start():
  """As in the released code of AWD-LSTM, evaluation by evaluation."""
  losses = [5.0, 4.0, 4.5, 3.9, 3.95, 4.2, 3.0, 3.8, 4.1]
  for patience in (1, 2, 5):
    made = spec.build('optim.ema', f'mean(patience={patience})', AVERAGES)
    best, expected = [], NEVER
    for i, loss in enumerate(losses):
      if len(best) > patience and loss > min(best[:-patience]):
        expected = min(expected, 10 * i)
      best.append(loss)
      held_out = [(10 * n, x) for n, x in enumerate(losses[: i + 1])]
      assert made.start_of(held_out) == expected
    assert expected < NEVER
  with pytest.raises(UsageError, match=r'start=3, patience=2.*give one of them'):
    spec.build('optim.ema', 'mean(start=3, patience=2)', AVERAGES)


@pytest.mark.parametrize('decay, why', [(-0.1, 'must be at least 0'), (1.0, 'must be below 1')])
def test_a_decay_that_averages_nothing(decay, why):
  with pytest.raises(UsageError, match=f'decay={decay} {why}'):
    spec.build('optim.ema', f'ema(decay={decay})', AVERAGES)
