# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training step: accumulation, clipping, randomness, meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.nn.layers import draw_by_row
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.optim.optimizer import OPTIMIZERS
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.step import eval_step, mean_gradients, train_step
from tests.support import tiny
from tests.support.cases import slow

# A linear model with squared errors, so that every number has a formula -----

ROWS, L, D = 21, 5, 7
RATE = 0.1


def squares(params, batch, key):
  """Gives the sum of w (x . theta - y)^2, and nothing random."""
  errors = batch['x'] @ params['theta'] - batch['y']
  return Loss(jnp.sum(batch['w'] * errors**2), jnp.sum(batch['w']))


def drawn(params, batch, key):
  """A random number for each row, as the loss of one token."""
  drawn_B = draw_by_row(jax.random.uniform, key, (len(batch['w']),))
  nothing = 0 * jnp.sum(params['theta'])
  return Loss(jnp.sum(drawn_B) + nothing, jnp.float32(len(drawn_B)))


def objective(loss):
  return tiny.LossOnly(loss)


def linear_batch():
  rng = np.random.default_rng(0)
  # Of the rows' weights some are all zero, and no two micro-batches agree.
  weights = rng.random((ROWS, L)) * (np.arange(ROWS) % 4 != 1)[:, None]
  return {
    'x': np.float32(rng.normal(size=(ROWS, L, D))),
    'y': np.float32(rng.normal(size=(ROWS, L))),
    'w': np.float32(weights),
  }


def theta():
  return np.float32(np.random.default_rng(1).normal(size=D))


def expected_loss_and_gradient():
  """Means over all tokens, in float64."""
  b = {name: np.float64(x) for name, x in linear_batch().items()}
  errors = b['x'] @ np.float64(theta()) - b['y']
  gradient = np.einsum('bl,bld->d', 2 * b['w'] * errors, b['x'])
  weight = b['w'].sum()
  return np.sum(b['w'] * errors**2) / weight, gradient / weight


def step(loss=squares, *, at=0, seed=0, clip_norm=0.0, num_micro=1, batch=None):
  optimizer = OPTIMIZERS['sgd']()(None)
  params = {'theta': theta()}
  state = TrainState(jnp.int32(at), params, optimizer.init(params))
  function = functools.partial(
    train_step,
    objective=objective(loss),
    optimizer=optimizer,
    schedule=lambda step: jnp.float32(RATE),
    seed=seed,
    clip_norm=clip_norm,
    num_micro=num_micro,
  )
  state, metrics = jax.jit(function)(state, batch or linear_batch())
  return state, jax.device_get(metrics)


@pytest.mark.parametrize('num_micro', [1, 3, 7, 21])
def test_accumulated_gradients_are_the_mean_over_all_tokens(num_micro):
  loss, gradient = expected_loss_and_gradient()
  state, metrics = step(num_micro=num_micro)
  np.testing.assert_allclose(metrics['loss'], loss, rtol=1e-6)
  np.testing.assert_allclose(metrics['grad_norm'], np.linalg.norm(gradient), rtol=1e-6)
  np.testing.assert_allclose(state.params['theta'], theta() - RATE * gradient, rtol=1e-5, atol=1e-6)


def test_step_is_counted():
  state, _ = step(at=41)
  assert state.step == 42
  assert state.step.dtype == jnp.int32


@pytest.mark.parametrize('factor', [0.5, 0.99])
def test_clipping_scales_to_the_bound(factor):
  loss, gradient = expected_loss_and_gradient()
  norm = np.linalg.norm(gradient)
  state, metrics = step(clip_norm=float(factor * norm), num_micro=3)
  # Reported as it was before.
  np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=1e-6)
  np.testing.assert_allclose(metrics['loss'], loss, rtol=1e-6)
  moved = np.linalg.norm(state.params['theta'] - theta())
  np.testing.assert_allclose(moved, RATE * factor * norm, rtol=1e-5)
  np.testing.assert_allclose(
    state.params['theta'], theta() - RATE * factor * gradient, rtol=1e-5, atol=1e-6
  )


def test_a_gradient_below_the_bound_is_left_alone():
  _, gradient = expected_loss_and_gradient()
  norm = float(np.linalg.norm(gradient))
  unbounded, _ = step(clip_norm=0.0)
  loose, _ = step(clip_norm=1.01 * norm)
  np.testing.assert_array_equal(loose.params['theta'], unbounded.params['theta'])


def test_a_batch_without_weight_changes_nothing():
  batch = linear_batch()
  batch['w'] = 0 * batch['w']
  state, metrics = step(clip_norm=1.0, num_micro=3, batch=batch)
  assert metrics == {'loss': 0, 'grad_norm': 0, 'grad_norms': {'theta': 0}}
  np.testing.assert_array_equal(state.params['theta'], theta())


@pytest.mark.parametrize('num_micro', [1, 3])
def test_weights_that_add_up_to_little_are_normalised(num_micro):
  batch = linear_batch()
  batch['w'] *= np.float32(1e-3 / batch['w'].sum())
  loss, gradient = expected_loss_and_gradient()
  _, metrics = step(num_micro=num_micro, batch=batch)
  np.testing.assert_allclose(metrics['loss'], loss, rtol=1e-5)
  norm = np.linalg.norm(gradient)
  np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=1e-5)


def test_randomness_is_a_function_of_seed_and_step():
  def loss(**kwargs):
    return float(step(drawn, **kwargs)[1]['loss'])

  assert loss(at=3, seed=5) == loss(at=3, seed=5)
  losses = {loss(at=at, seed=seed) for at in range(4) for seed in range(3)}
  assert len(losses) == 12


@pytest.mark.parametrize('num_micro', [1, 3])
def test_each_row_draws_by_its_number(num_micro):
  key = jax.random.key(0)
  loss, _, _ = mean_gradients(
    {'theta': theta()}, linear_batch(), key, objective=objective(drawn), num_micro=num_micro
  )
  rows = [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(ROWS)]
  assert len({float(x) for x in rows}) == ROWS
  np.testing.assert_allclose(loss, np.mean(rows), rtol=1e-6)


def test_eval_step_has_no_key():
  def loss(params, batch, key):
    assert key is None
    return squares(params, batch, key)

  (found,) = eval_step({'theta': theta()}, linear_batch(), objective=objective(loss))['loss']
  expected, _ = expected_loss_and_gradient()
  np.testing.assert_allclose(found.weight, linear_batch()['w'].sum(), rtol=1e-6)
  np.testing.assert_allclose(found.sum / found.weight, expected, rtol=1e-6)


# The model ---------------------------------------------------------------

# With eps=1e-2 the update is smooth where a gradient is nearly zero; with the
# usual 1e-8 rounding would decide the sign of its update.
SMOOTH = 'adamw(eps=1e-2, weight_decay=0.1)'
DROPOUT = 'rates(embedding=0.1, residual=0.1, attention=0.1)'


def train(sizes, num_steps, **changes):
  fields = {
    **tiny.MESHABLE,
    'model.vocab_size': 47,  # which is filled up where it does not divide
    'optim.name': SMOOTH,
    'schedule.name': 'constant(peak=1e-2)',
    **changes,
  }
  run = tiny.build(tiny.config(**fields), sizes)
  state = parts_lib.initial_state(run)
  first = jax.device_get(state.params)
  batch = tiny.batch(16, 7, run.config.model.vocab_size)
  step = compiled_lib.compile_train_step(run).call
  history = []
  for _ in range(num_steps):
    state, metrics = step(state, run.put(batch, 16))
    history.append(jax.device_get(metrics))
  return run, state, first, history


@functools.cache
def trained_on_one_device(dropout, num_steps):
  return train((1, 1, 1), num_steps, **{'model.dropout': dropout})


def assert_same_history(found, expected):
  for metrics, wanted in zip(found, expected, strict=True):
    for name in ('loss', 'grad_norm'):
      np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [(2, 2, 2), slow((8, 1, 1)), slow((1, 4, 2))])
def test_every_mesh_trains_alike(sizes):
  """Initial parameters, dropout, losses and updates do not depend on it.

  Nor on micro-batches: four of four rows of unequal weight, over four devices.
  """
  changes = {'model.dropout': DROPOUT, 'batch.micro_rows': 1}
  run, state, first, history = train(sizes, 3, **changes)
  parts = run.micro_batches(run.ramp.stages[0].shape)
  data, fsdp, _ = sizes
  assert parts == (16 // (data * fsdp), data * fsdp, data)
  _, one, one_first, one_history = trained_on_one_device(DROPOUT, 3)
  assert int(state.step) == int(one.step) == 3
  jax.tree.map(np.testing.assert_array_equal, first, one_first)
  assert_same_history(history, one_history)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6),
    jax.device_get(state),
    jax.device_get(one),
  )


def test_the_loss_of_a_fixed_batch_falls():
  _, _, _, history = trained_on_one_device('none', 20)
  losses = [float(metrics['loss']) for metrics in history]
  np.testing.assert_allclose(losses[0], np.log(47), rtol=0.02)
  assert losses == sorted(losses, reverse=True)
  assert losses[-1] < 0.7 * losses[0]
