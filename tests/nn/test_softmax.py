# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""softmax(scores) v and its gradient, against NumPy and differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.nn.attend import HIDDEN, plus_shared, weighted

B, G, Q, M, K = 2, 3, 5, 7, 11


def given(seed: int):
  """Scores, values, and a gradient of the output."""
  rng = np.random.default_rng(seed)
  shapes = (B, G, Q, M), (B, G, M, K), (B, G, Q, K)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def visible(seed: int) -> np.ndarray:
  """Which keys each query sees; the second query of the first row sees none."""
  mask = np.random.default_rng(seed).random((B, 1, Q, M)) < 0.6
  mask[..., 0] = True
  mask[0, 0, 1] = False
  return mask


def plain(scores, v, mask, kept=None, keep=1.0):
  """The same in parts that JAX differentiates."""
  probs = jax.nn.softmax(jnp.where(mask, scores, HIDDEN), axis=-1)
  if kept is not None:
    probs = jnp.where(kept, probs / keep, 0)
  return jnp.einsum('BGQM,BGMK->BGQK', probs, v)


def test_equals_numpy():
  scores, v, _ = given(0)
  mask = visible(1)
  exp = np.exp(scores.astype(np.float64)) * mask
  probs = exp / exp.sum(-1, keepdims=True).clip(1e-300)
  probs[0, :, 1] = 1 / M  # of a query that sees nothing
  out = jax.jit(weighted)(scores, v, mask)
  np.testing.assert_allclose(out, probs @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('drop', [0.0, 0.3])
def test_gradients_equal_those_of_its_parts(drop):
  scores, v, grad = given(2)
  mask, kept = visible(3), None
  if drop:
    kept = np.random.default_rng(4).random(scores.shape) >= drop

  def gradients(function):
    def both(scores, v, grad):
      out, back = jax.vjp(
        lambda s, v: function(s, v, mask, kept, 1 - drop), scores, v
      )
      return out, *back(grad)

    return jax.jit(both)(scores, v, grad)

  found = gradients(weighted)
  for one, two in zip(found, gradients(plain), strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
  of_scores = np.asarray(found[1])
  assert not of_scores[np.broadcast_to(~mask, of_scores.shape)].any()


def test_keeps_one_array_of_the_scores_size():
  scores, v, _ = given(5)
  mask = visible(6)

  def kept(function):
    back = jax.eval_shape(lambda *x: jax.vjp(function, *x)[1], scores, v, mask)
    return sum(leaf.shape == scores.shape for leaf in jax.tree.leaves(back))

  assert kept(weighted) == 1
  assert kept(plain) > 1


def test_gradients_of_bfloat16_are_rounded_as_it_is():
  scores, v, grad = given(7)
  mask = visible(8)

  def gradients(dtype):
    values, given = jnp.asarray(v, dtype), jnp.asarray(grad, dtype)
    out, back = jax.vjp(lambda s, v: weighted(s, v, mask), scores, values)
    of_scores, of_values = back(given)
    assert (out.dtype, of_values.dtype) == (dtype, dtype)
    assert of_scores.dtype == jnp.float32
    return [np.asarray(x, np.float32) for x in (out, of_scores, of_values)]

  both = gradients(jnp.bfloat16), gradients(jnp.float32)
  for one, two in zip(*both, strict=True):
    # Eight bits, sums of seven products.
    np.testing.assert_allclose(one, two, atol=0.06)


def test_sum_over_rows_of_a_shared_bias():
  scores, _, _ = given(9)
  shared = np.random.default_rng(10).normal(size=(G, Q, M)).astype(np.float32)
  weights = np.random.default_rng(11).normal(size=scores.shape)
  weights = weights.astype(np.float32)

  def total(x, bias):
    return jnp.sum(plus_shared(x, bias) * weights)

  value, (of_x, of_bias) = jax.value_and_grad(total, (0, 1))(scores, shared)
  np.testing.assert_allclose(
    value, np.sum((scores + shared) * weights), rtol=1e-5
  )
  np.testing.assert_array_equal(of_x, weights)
  np.testing.assert_allclose(of_bias, weights.sum(0), rtol=1e-5, atol=1e-6)
