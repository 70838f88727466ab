# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Position embeddings."""

import jax
import numpy as np
from flax import linen as nn

from gpt_jax.nn.positions import POSITIONS

B, L, D, CONTEXT = 3, 5, 17, 13


def make(name):
  module = POSITIONS[name]()(
    context_length=CONTEXT, initializer=nn.initializers.normal(0.5)
  )
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, D)))
  params = jax.jit(module.init)(jax.random.key(0), x, None)
  return module, params, x


def test_learned_adds_the_vector_of_each_position():
  module, params, x = make('learned')
  boxed = params['params']['embedding']
  assert boxed.names == ('length', 'embed')
  table = np.asarray(boxed.value)
  assert table.shape == (CONTEXT, D)
  # Without positions: 0, 1, 2, ... in each row.
  expected = [[x[b, i] + table[i] for i in range(L)] for b in range(B)]
  np.testing.assert_array_equal(module.apply(params, x, None), expected)
  # With them, in any order.
  at = np.array([[0, 1, 2, 3, 4], [8, 9, 10, 11, 12], [7, 0, 7, 1, 12]])
  expected = [[x[b, i] + table[at[b, i]] for i in range(L)] for b in range(B)]
  np.testing.assert_array_equal(module.apply(params, x, at), expected)


def test_learned_gradient_sums_over_rows():
  module, params, x = make('learned')
  weights = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)

  def loss(params, at):
    return (module.apply(params, x, at) * weights).sum()

  for at in (None, np.broadcast_to(np.arange(L), (B, L))):
    gradient = jax.grad(loss)(params, at)['params']['embedding'].value
    expected = np.zeros((CONTEXT, D))
    expected[:L] = weights.sum(0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_none_changes_nothing():
  module, params, x = make('none')
  assert params == {}
  np.testing.assert_array_equal(module.apply(params, x, None), x)
