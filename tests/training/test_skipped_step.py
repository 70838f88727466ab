# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""After a skipped update the rate is still a function of the step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gpt_jax import spec
from gpt_jax.objectives.loss import Loss
from gpt_jax.optim import batch_ramp
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.schedules import SCHEDULES
from gpt_jax.optim.train_state import TrainState
from gpt_jax.training.step import train_step
from tests.support import tiny

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
STEPS = 7
SKIPPED = (0, 3)  # the first, which no moment has seen, and one later
SHAPES = {'kernel': (5, 3), 'bias': (3,)}
AXES = {'kernel': PartitionSpec('embed', 'mlp'), 'bias': PartitionSpec('mlp')}


def rates():
  """linear(peak=0.5, warmup=2) of 7 steps."""
  return [0.25, 0.5, *(0.5 * (1 - k / 5) for k in range(5))]


def optimizer(name, schedule='linear(peak=0.5, warmup=2)'):
  ramp = batch_ramp.constant(3, row_tokens=5)
  rate = spec.build('schedule.name', schedule, SCHEDULES)(ramp, STEPS)
  return spec.build('optim.name', name, OPTIMIZERS)(rate, AXES)


def normal(seed):
  rng = np.random.default_rng(seed)
  return {n: np.float32(rng.normal(size=s)) for n, s in SHAPES.items()}


def gradients():
  return [normal(10 + step) for step in range(STEPS)]


def linear(params, batch, key):
  """A loss whose gradient is the batch."""
  del key
  products = jax.tree.map(lambda p, g: jnp.sum(p * g), params, batch)
  return Loss(sum(jax.tree.leaves(products)), jnp.float32(1))


def trained(name, lag=0):
  """Parameters after each step; the optimizer's counts lag by `lag`."""
  transformation = optimizer(name)

  @jax.jit
  def step(state, batch):
    return train_step(
      state,
      batch,
      objective=tiny.LossOnly(linear),
      optimizer=transformation,
      seed=0,
      clip_norm=0.0,
      num_micro=1,
    )

  params = normal(1)
  state = TrainState(jnp.int32(lag), params, transformation.init(params))
  found = []
  for at in range(lag, STEPS):
    batch = gradients()[at]
    if at in SKIPPED:
      batch['bias'] = batch['bias'] * np.float32(np.nan)
    state, _ = step(state, batch)
    found.append(jax.device_get(state.params))
  return found


def assert_close(found, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
    found,
    expected,
  )


@pytest.mark.parametrize('lag', [0, 2])
def test_gradient_descent_takes_the_rate_of_the_step(lag):
  """Also from a checkpoint of before, whose count has fallen behind."""
  expected = {n: np.float64(x) for n, x in normal(1).items()}
  for at, found in enumerate(trained('sgd', lag), start=lag):
    if at not in SKIPPED:
      for name, gradient in gradients()[at].items():
        expected[name] = expected[name] - rates()[at] * gradient
    assert_close(found, expected)


def test_adam_corrects_its_bias_by_the_updates_that_it_took():
  """Kingma and Ba, algorithm 1, with t the number of gradients in m and v."""
  theta = {n: np.float64(x) for n, x in normal(1).items()}
  m = {n: 0 * x for n, x in theta.items()}
  v = {n: 0 * x for n, x in theta.items()}
  t = 0
  for at, found in enumerate(trained('adam(b1=0.7, b2=0.9)')):
    if at not in SKIPPED:
      t += 1
      for n, g in gradients()[at].items():
        m[n] = 0.7 * m[n] + 0.3 * g
        v[n] = 0.9 * v[n] + 0.1 * np.float64(g) ** 2
        ratio = m[n] / (1 - 0.7**t) / (np.sqrt(v[n] / (1 - 0.9**t)) + 1e-8)
        theta[n] = theta[n] - rates()[at] * ratio
    assert_close(found, theta)


@pytest.mark.parametrize(
  'name',
  [
    'adafactor(weight_decay=0.1, weight_decay_power=2)',
    slow('adamw(weight_decay=0.3)'),
    slow('lamb'),
    slow('lion'),
    slow('muon'),
    'sgd(momentum=0.9)',
  ],
)
def test_every_optimizer_is_one_of_constant_rate_at_each_step(name):
  """Whose rate is set by hand to that of the step."""
  params = normal(1)
  state = optimizer(name).init(params)
  for at, found in enumerate(trained(name)):
    # The last rate is 0.1: none is zero, which no constant may be.
    if at not in SKIPPED:
      constant = optimizer(name, f'constant(peak={rates()[at]})')
      updates, state = constant.update(gradients()[at], state, params)
      params = jax.tree.map(np.add, params, updates)
    assert_close(found, params)
