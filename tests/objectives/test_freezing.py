# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""No gradient reaches the layers and rows that are frozen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn import params as params_lib
from gpt_jax.objectives import freezing
from gpt_jax.objectives.loss import Loss
from gpt_jax.objectives.task import Classification
from gpt_jax.training import parts as state_lib
from tests.support import tiny


def test_no_gradient_reaches_what_is_frozen():
  model = tiny.model(num_layers=3)
  frozen = freezing.lowest(model, num_layers=2, num_rows=tiny.V - 3)
  objective = frozen.objective(Classification(2, 7, auxiliary=0.5).bind(model))
  shapes = jax.eval_shape(
    functools.partial(state_lib.init_params, objective), jax.random.key(0)
  )
  params = tiny.random_like(shapes, seed=2)
  batch = {
    'inputs': tiny.tokens(3, 1, 7),
    'lengths': np.full((3, 1), 7, np.int32),
    'labels': np.array([0, 1, 1], np.int32),
    'weights': np.ones(3, np.float32),
  }
  batch['inputs'][:, :, -1] = tiny.V - 1

  @jax.jit
  def gradient(params):
    return jax.grad(lambda p: objective.loss(p, batch, jax.random.key(0)).sum)(
      params
    )

  grads = jax.device_get(gradient(params))
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

  frozen = freezing.all_but('encoder/periods/1/*, table')
  objective = frozen.objective(tiny.LossOnly(squares))
  kernel = np.full((3, 5), 2.0, np.float32)
  params = {
    'encoder': {'periods': {'kernel': kernel}},
    **{name: np.full(7, 3.0, np.float32) for name in ('table', 'rest')},
  }
  grads = jax.grad(lambda p: objective.loss(p, {}, None).sum)(params)
  found = grads['encoder']['periods']['kernel']
  np.testing.assert_array_equal(found, kernel * [[0], [2], [0]])
  np.testing.assert_array_equal(grads['table'], np.full(7, 6.0))
  assert not grads['rest'].any()
