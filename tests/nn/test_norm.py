# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMSNorm against their equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn import layers
from gpt_jax.nn.layers import NORMS
from tests.support import reference

B, L, D = 3, 5, 17
layer_norm = jax.jit(layers.layer_norm, static_argnames='epsilon')
rms_norm = jax.jit(layers.rms_norm, static_argnames='epsilon')


def inputs(center=0.0, size=1.0):
  rng = np.random.default_rng(0)
  x = np.float32(center + size * rng.normal(size=(B, L, D)))
  scale, bias = np.float32(rng.normal(size=(2, D)))
  return x, scale, bias


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_layer_norm(epsilon, size):
  x, scale, bias = inputs(size=size)
  expected = reference.layer_norm(np.float64(x), scale, bias, epsilon)
  y = layer_norm(x, scale, bias, epsilon=epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_bias_is_optional():
  x, scale, _ = inputs()
  expected = reference.layer_norm(np.float64(x), scale, 0.0)
  y = layer_norm(x, scale, None, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_scale_is_optional():
  x, _, bias = inputs()
  expected = reference.layer_norm(np.float64(x), 1.0, bias)
  y = layer_norm(x, None, bias, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_a_large_mean_does_not_cancel():
  """E[x^2] - E[x]^2 in float32 would be wrong by far more than 1."""
  x, scale, bias = inputs(center=1e4)
  expected = reference.layer_norm(np.float64(x), scale, bias)
  y = layer_norm(x, scale, bias, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-2, atol=1e-2)


def test_bfloat16_is_normalised_in_float32():
  x, scale, bias = inputs()
  x = jnp.array(x, jnp.bfloat16)
  expected = reference.layer_norm(np.float64(x), scale, bias)
  y = layer_norm(x, scale, bias, epsilon=1e-5)
  assert y.dtype == jnp.bfloat16
  # One rounding, at the end: half a unit in the last of 8 bits.
  np.testing.assert_allclose(np.float64(y), expected, rtol=2**-8, atol=1e-6)


def test_gradient():
  """The derivative along a direction, by central differences in float64."""
  x, scale, bias = inputs()
  rng = np.random.default_rng(1)
  direction = rng.normal(size=x.shape)
  weights = rng.normal(size=x.shape)

  def loss(x):
    return np.sum(weights * reference.layer_norm(x, scale, bias))

  h = 1e-5
  expected = (loss(x + h * direction) - loss(x - h * direction)) / (2 * h)

  @jax.jit
  @jax.grad
  def gradient(x):
    return jnp.sum(weights * layer_norm(x, scale, bias, epsilon=1e-5))

  np.testing.assert_allclose(
    np.sum(gradient(x) * direction), expected, rtol=1e-4
  )


@pytest.mark.parametrize(
  'owned', [{'scale', 'bias'}, {'scale'}, {'bias'}, set()]
)
def test_module_owns_scale_and_bias(owned):
  has = {name: name in owned for name in ('scale', 'bias')}
  module = NORMS['layernorm'](epsilon=0.1, **has)()
  x, scale, offset = inputs()
  params = jax.jit(module.init)(jax.random.key(0), x).get('params', {})
  assert {*params} == owned
  for name, value in params.items():
    assert value.names == ('norm',)
    first = np.ones(D) if name == 'scale' else np.zeros(D)
    np.testing.assert_array_equal(value.value, first)
  given = {'scale': scale, 'bias': offset}
  given = {name: given[name] for name in params}
  expected = reference.layer_norm(
    np.float64(x), given.get('scale', 1.0), given.get('bias', 0.0), 0.1
  )
  y = jax.jit(module.apply)({'params': given}, x)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


# RMSNorm -----------------------------------------------------------------


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_rms_norm(epsilon, size):
  x, scale, _ = inputs(center=2 * size, size=size)
  expected = reference.rms_norm(np.float64(x), scale, epsilon=epsilon)
  y = rms_norm(x, scale, epsilon=epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
  # The mean stays: it is not layer norm.
  assert not np.allclose(y, layer_norm(x, scale, None, epsilon=epsilon))


def test_rms_norm_in_bfloat16_is_computed_in_float32():
  x, scale, _ = inputs()
  x = jnp.array(x, jnp.bfloat16)
  expected = reference.rms_norm(np.float64(x), scale)
  y = rms_norm(x, scale, epsilon=1e-6)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.float64(y), expected, rtol=2**-8, atol=1e-6)


def test_rms_norm_gradient():
  """The derivatives by x and by the scale, by central differences."""
  x, scale, _ = inputs()
  rng = np.random.default_rng(1)
  weights, d_x = rng.normal(size=(2, *x.shape))
  d_scale = rng.normal(size=D)

  def loss(h):
    return np.sum(
      weights * reference.rms_norm(x + h * d_x, scale + h * d_scale)
    )

  h = 1e-5
  expected = (loss(h) - loss(-h)) / (2 * h)

  @jax.jit
  def gradient(x, scale):
    total = lambda x, s: jnp.sum(weights * rms_norm(x, s, epsilon=1e-6))  # noqa: E731
    return jax.grad(total, (0, 1))(x, scale)

  by_x, by_scale = gradient(x, scale)
  found = np.sum(by_x * d_x) + np.sum(by_scale * d_scale)
  np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
  'text, epsilon, start',
  [
    ('rmsnorm', 1e-6, 1.0),
    ('rmsnorm(epsilon=0.1)', 0.1, 1.0),
    ('rmsnorm(plus_one=True)', 1e-6, 0.0),
  ],
)
def test_rms_norm_module_owns_a_scale(text, epsilon, start):
  module = spec.build('model.norm', text, NORMS)()
  x, scale, _ = inputs(size=0.01)
  params = jax.jit(module.init)(jax.random.key(0), x)['params']
  assert {*params} == {'scale'}
  assert params['scale'].names == ('norm',)
  np.testing.assert_array_equal(params['scale'].value, np.full(D, start))
  y = jax.jit(module.apply)({'params': {'scale': scale}}, x)
  factor = scale + 1 - start
  expected = reference.rms_norm(np.float64(x), factor, epsilon=epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
