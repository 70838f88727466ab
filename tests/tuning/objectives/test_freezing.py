# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""No gradient reaches the layers and rows that are frozen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.optim.train_state import Rates, TrainState
from gpt_jax.core.training.step import mean_gradients, train_step
from gpt_jax.tuning.objectives import freezing
from gpt_jax.tuning.objectives.task import Classification
from tests.support import tiny


def test_no_gradient_reaches_what_is_frozen():
  model = tiny.model(num_layers=3)
  rates = Rates((freezing.above(model, num_layers=2, num_rows=tiny.V - 3),))
  objective = Classification(2, 7, auxiliary=0.5).bind(model)
  shapes = tiny.shapes(objective)
  params = tiny.random_like(shapes, seed=2)
  batch = {
    'inputs': tiny.tokens(3, 1, 7),
    'lengths': np.full((3, 1), 7, np.int32),
    'labels': np.array([0, 1, 1], np.int32),
    'weights': np.ones(3, np.float32),
  }
  batch['inputs'][:, :, -1] = tiny.V - 1

  gradients = functools.partial(mean_gradients, objective=objective, rates=rates, num_micro=1)
  grads = jax.device_get(jax.jit(gradients)(params, batch, jax.random.key(0))[2])
  table = grads['embed']['embedding']
  assert not np.any(table[: tiny.V - 3])
  assert np.any(table[tiny.V - 1])
  assert not np.any(grads['positions']['embedding'])
  kernel = grads['decoder']['periods']['block_0']['ffn']['in']['kernel']
  assert not np.any(kernel[:2])
  assert np.any(kernel[2])
  assert np.any(grads['heads']['score']['kernel'])
  masks = params_lib.lowest(params, 2, model)
  assert not np.any(masks['final_norm']['scale'])


def test_only_what_is_named_has_a_gradient():
  def squares(params, batch, key):
    sums = [jnp.sum(x**2) for x in jax.tree.leaves(params)]
    return Loss(jnp.sum(jnp.stack(sums)), jnp.ones(()))

  trained = functools.partial(params_lib.matching, patterns='encoder/periods/1/*, table')
  kernel = np.full((3, 5), 2.0, np.float32)
  params = {
    'encoder': {'periods': {'kernel': kernel}},
    **{name: np.full(7, 3.0, np.float32) for name in ('table', 'rest')},
  }
  batch, key = {'inputs': np.zeros((1, 1), np.int32)}, jax.random.key(0)
  _, _, grads = mean_gradients(
    params, batch, key, objective=tiny.LossOnly(squares), rates=Rates((trained,)), num_micro=1
  )
  found = grads['encoder']['periods']['kernel']
  np.testing.assert_array_equal(found, kernel * [[0], [2], [0]])
  np.testing.assert_array_equal(grads['table'], np.full(7, 6.0))
  assert not grads['rest'].any()


LAYERS, EVERY, DECAY, RATE, NEW = 3, 2, 0.4, 1e-2, 2


def by_name(name, shape):
  """The level of each entry: the table's new rows are the head's."""
  if name == 'embed/embedding':
    old = np.arange(shape[0]) < shape[0] - NEW
    return np.where(old, 0, LAYERS + 1)[:, None]
  if name.startswith('decoder/periods/'):
    return np.arange(1, LAYERS + 1).reshape(-1, *[1] * (len(shape) - 1))
  return np.array(0 if name.startswith('positions/') else LAYERS + 1)


def test_levels_are_unfrozen_one_by_one_with_a_rate_each():
  """Adam's first step is the rate times the sign: its moments start at 0."""

  def squares(params, batch, key):
    # The gradient of a parameter is the parameter.
    sums = [jnp.sum(x**2) / 2 for x in jax.tree.leaves(params)]
    return Loss(jnp.sum(jnp.stack(sums)), jnp.ones(()), jnp.zeros(()))

  model = tiny.model(num_layers=LAYERS)
  whole = Classification(2, 7).bind(model)
  shapes = tiny.shapes(whole)
  params = tiny.random_like(shapes, seed=5)
  args = model, tiny.V - NEW
  rates = Rates((freezing.by_level(*args, DECAY),), freezing.gradual(*args, EVERY))
  optimizer = optax.adamw(RATE, weight_decay=0.5)
  step = jax.jit(
    functools.partial(
      train_step,
      **{'objective': tiny.LossOnly(squares), 'optimizer': optimizer, 'rates': rates},
      schedule=optax.constant_schedule(RATE),  # the optimizer has it already
      **{'seed': 0, 'clip_norm': 0.0, 'num_micro': 1},
    )
  )
  state = TrainState(jnp.int32(0), params, optimizer.init(params))
  for number in range(EVERY * (LAYERS + 1) + 1):
    old = params_lib.flatten(jax.device_get(state.params))
    state, metrics = step(state, {'inputs': np.zeros((1, 1), np.int32)})
    lowest = LAYERS + 1 - number // EVERY
    norm = 0.0
    for name, new in params_lib.flatten(jax.device_get(state.params)).items():
      x, level = old[name], by_name(name, new.shape)
      trained = np.broadcast_to(level >= lowest, x.shape)
      norm += np.sum(np.where(trained, x, 0) ** 2)
      assert np.array_equal(new != x, trained), (name, number)
      if number % EVERY == 0:
        rate = RATE * DECAY ** (LAYERS + 1 - level)
        expected = x - rate * (np.sign(x) + 0.5 * x)
        close = np.abs(new - expected) < 1e-5
        assert np.all(close | ~trained | (np.abs(x) < 1e-3)), (name, number)
    np.testing.assert_allclose(metrics['grad_norm'] ** 2, norm, rtol=1e-4)
