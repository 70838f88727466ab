# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""After a skipped update the rate is still a function of the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from gpt_jax.core import spec
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.optim.optimizer import OPTIMIZERS, elementwise
from gpt_jax.core.optim.schedules import SCHEDULES
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.training.step import train_step
from tests.support import tiny
from tests.support.cases import slow

STEPS = 7
SKIPPED = (0, 3)  # the first, which no moment has seen, and one later
SHAPES = {'kernel': (5, 3), 'bias': (3,)}
AXES = {'kernel': PartitionSpec('embed', 'mlp'), 'bias': PartitionSpec('mlp')}


def rates():
  """linear(peak=0.5, warmup=2) of 7 steps."""
  return [0.25, 0.5, *(0.5 * (1 - k / 5) for k in range(5))]


def schedule():
  ramp = batch_ramp.constant(3, row_tokens=5)
  text = 'linear(peak=0.5, warmup=2)'
  return spec.build('schedule.name', text, SCHEDULES)(ramp, STEPS)


def build(name):
  return spec.build('optim.name', name, OPTIMIZERS)(AXES)


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


def trained(optimizer):
  """Parameters after each step."""

  @jax.jit
  def step(state, batch):
    return train_step(
      state,
      batch,
      objective=tiny.LossOnly(linear),
      optimizer=optimizer,
      schedule=schedule(),
      seed=0,
      clip_norm=0.0,
      num_micro=1,
    )

  params = normal(1)
  state = TrainState(jnp.int32(0), params, optimizer.init(params))
  found = []
  for at in range(STEPS):
    batch = gradients()[at]
    if at in SKIPPED:
      batch['bias'] = batch['bias'] * np.float32(np.nan)
    state, _ = step(state, batch)
    found.append(jax.device_get(state.params))
  return found


def assert_close(found, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, expected)


def test_gradient_descent_takes_the_rate_of_the_step():
  expected = {n: np.float64(x) for n, x in normal(1).items()}
  for at, found in enumerate(trained(build('sgd'))):
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
  for at, found in enumerate(trained(build('adam(b1=0.7, b2=0.9)'))):
    if at not in SKIPPED:
      t += 1
      for n, g in gradients()[at].items():
        m[n] = 0.7 * m[n] + 0.3 * g
        v[n] = 0.9 * v[n] + 0.1 * np.float64(g) ** 2
        ratio = m[n] / (1 - 0.7**t) / (np.sqrt(v[n] / (1 - 0.9**t)) + 1e-8)
        theta[n] = theta[n] - rates()[at] * ratio
    assert_close(found, theta)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_every_optimizer_moves_by_the_rate_that_it_is_handed(name):
  """A rate of 0 moves nothing, and no state holds a rate or counts steps."""
  params, (gradient, *_) = normal(1), gradients()
  optimizer = build(name)
  state = optimizer.init(params)
  updates, _ = optimizer.update(gradient, state, params, rate=0.0)
  for update in jax.tree.leaves(updates):
    np.testing.assert_array_equal(update, 0)
  updates, _ = optimizer.update(gradient, state, params, rate=0.5)
  moved = any(np.any(update) for update in jax.tree.leaves(updates))
  assert moved == (name != 'none')


@pytest.mark.parametrize(
  'make',
  [
    pytest.param(optax.inject_hyperparams(optax.adamw), id='hyperparams in the state'),
    optax.nadamw,
  ],
)
def test_an_optimizer_of_optax_takes_the_rate_of_the_step(make):
  """Also one that keeps hyperparameters, and a count of its own, in a state."""
  assert_takes_the_rate_of_the_step(elementwise(make, weight_decay=0.3)(AXES))


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
  assert_takes_the_rate_of_the_step(build(name))


def assert_takes_the_rate_of_the_step(optimizer):
  """Compares a run with updates whose rate is set by hand to the step's."""
  params = normal(1)
  state = optimizer.init(params)
  for at, after in enumerate(trained(optimizer)):
    if at not in SKIPPED:
      updates, state = optimizer.update(gradients()[at], state, params, rate=rates()[at])
      params = jax.tree.map(np.add, params, updates)
    assert_close(after, params)
