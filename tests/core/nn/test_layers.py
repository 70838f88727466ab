# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms, and what parameters start from."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.costs import flops
from gpt_jax.core.nn import layers
from gpt_jax.core.nn.choices import INITS, NORMS
from tests.support import reference, tiny

B, L, D = 3, 5, 17
layer_norm = jax.jit(layers.layer_norm, static_argnames='epsilon')
rms_norm = jax.jit(layers.rms_norm, static_argnames='epsilon')


def by_hand(x, scale=1.0, bias=0.0, *, name='layer_norm', epsilon=1e-5):
  """Plain JAX's norm."""
  norm = getattr(reference.of(NORM_EPSILON=epsilon), name)
  return reference.run(norm, x, {'scale': scale, 'bias': bias})


def rms_by_hand(x, scale, epsilon=1e-6):
  return by_hand(x, scale, name='rms_norm', epsilon=epsilon)


def inputs(center=0.0, size=1.0):
  rng = np.random.default_rng(0)
  x = np.float32(center + size * rng.normal(size=(B, L, D)))
  scale, bias = np.float32(rng.normal(size=(2, D)))
  return x, scale, bias


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_layer_norm(epsilon, size):
  x, scale, bias = inputs(size=size)
  expected = by_hand(x, scale, bias, epsilon=epsilon)
  y = layer_norm(x, scale, bias, epsilon=epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_bias_is_optional():
  x, scale, _ = inputs()
  expected = by_hand(x, scale)
  y = layer_norm(x, scale, None, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_scale_is_optional():
  x, _, bias = inputs()
  expected = by_hand(x, bias=bias)
  y = layer_norm(x, None, bias, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_a_large_mean_does_not_cancel():
  """E[x^2] - E[x]^2 in float32 would be wrong by far more than 1."""
  x, scale, bias = inputs(center=1e4)
  expected = by_hand(x, scale, bias)
  y = layer_norm(x, scale, bias, epsilon=1e-5)
  np.testing.assert_allclose(y, expected, rtol=1e-2, atol=1e-2)


def test_bfloat16_is_normalised_in_float32():
  x, scale, bias = inputs()
  x = jnp.array(x, jnp.bfloat16)
  expected = by_hand(x, scale, bias)
  y = layer_norm(x, scale, bias, epsilon=1e-5)
  assert y.dtype == jnp.bfloat16
  # One rounding, at the end: half a unit in the last of 8 bits.
  np.testing.assert_allclose(np.float64(y), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize('owned', [{'scale', 'bias'}, {'scale'}, {'bias'}, set()])
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
  expected = by_hand(x, **given, epsilon=0.1)
  y = jax.jit(module.apply)({'params': given}, x)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


# RMSNorm -----------------------------------------------------------------


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_rms_norm(epsilon, size):
  x, scale, _ = inputs(center=2 * size, size=size)
  expected = rms_by_hand(x, scale, epsilon)
  y = rms_norm(x, scale, epsilon=epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
  # The mean stays: it is not layer norm.
  assert not np.allclose(y, layer_norm(x, scale, None, epsilon=epsilon))


def test_rms_norm_in_bfloat16_is_computed_in_float32():
  x, scale, _ = inputs()
  x = jnp.array(x, jnp.bfloat16)
  expected = rms_by_hand(x, scale)
  y = rms_norm(x, scale, epsilon=1e-6)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.float64(y), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize('norm', ['layer_norm', 'rms_norm'])
def test_gradients(norm):
  """By what is normalised and by the parameters."""
  x, scale, bias = inputs()
  given = (x, scale, bias) if norm == 'layer_norm' else (x, scale)
  weights = np.random.default_rng(1).normal(size=x.shape)
  plain = getattr(reference.of(), norm)

  def found(x, *params):
    return jnp.sum(weights * getattr(layers, norm)(x, *params, epsilon=1e-5))

  def wanted(x, *params):
    return jnp.sum(weights * plain(x, dict(zip(('scale', 'bias'), params, strict=False))))

  places = range(len(given))
  expected = reference.run(jax.grad(wanted, places), *given)
  for one, other in zip(jax.jit(jax.grad(found, places))(*given), expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


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
  expected = rms_by_hand(x, factor, epsilon)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


# What parameters start from.


LAYERS = 5
# Of GPT-2, section 2.3: N = 2 * 5 residual layers.
NORMAL = {'init_weights': 'normal(stddev=0.05)', 'output': 'untied'}
RESIDUAL = 1 / np.sqrt(10)


@functools.cache
def initial(**changes):
  model = tiny.model(d_model=97, d_ff=193, vocab_size=211, **changes)
  tokens = np.zeros((1, 1), np.int32)
  return jax.jit(lambda key: nn.meta.unbox(model.init(key, tokens)['params']))(jax.random.key(0))


def leaves(params):
  return {
    name: np.asarray(leaf)
    for name, leaf in zip(flops.parameter_table(params), jax.tree.leaves(params), strict=True)
  }


def assert_normal(x, stddev):
  """Mean and deviation within five standard errors."""
  assert abs(np.mean(x)) < 5 * stddev / np.sqrt(x.size)
  assert abs(np.std(x) / stddev - 1) < 5 / np.sqrt(2 * x.size)


@pytest.mark.parametrize(
  'init, residual', [('normal(stddev=0.05)', 0.05), ('gpt2(stddev=0.05)', 0.05 * RESIDUAL)]
)
def test_initial_parameters(init, residual):
  found = leaves(initial(init_weights=init, output='untied'))
  for name, x in found.items():
    kind = name.rpartition('/')[2]
    if kind == 'bias':
      assert not np.any(x), name
    elif kind == 'scale':
      assert np.all(x == 1), name
    else:
      is_residual = name.endswith(('attention/out/kernel', 'ffn/out/kernel'))
      assert_normal(x, residual if is_residual else 0.05)
  kernels = [name for name in found if name.endswith('kernel')]
  assert len(kernels) == 6
  embeddings = {n for n in found if n.endswith('embedding')}
  assert embeddings == {'embed/embedding', 'positions/embedding', 'head/embedding'}


def test_layers_start_from_different_numbers():
  found = leaves(initial(**NORMAL))
  for name, x in found.items():
    if name.endswith('kernel'):
      assert x.shape[0] == LAYERS
      assert len({layer.tobytes() for layer in x}) == LAYERS, name


def test_initial_parameters_are_a_function_of_the_key_alone():
  one = leaves(initial(**NORMAL))
  same = leaves(initial(**NORMAL, loop='unroll', remat='full', dtype='bfloat16'))
  assert one.keys() == same.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], same[name])


def test_roles():
  """The defaults, 0.02, and 1/sqrt(N) of 8 blocks, which have 16 layers."""
  key, shape = jax.random.key(0), (101, 103)
  for kind, residual in (('normal', 0.02), ('gpt2', 0.005)):
    for name, init in INITS[kind]()(num_layers=8)._asdict().items():
      if init is None:  # as another
        continue
      x = np.asarray(init(key, shape, np.float32))
      assert_normal(x, residual if name == 'residual' else 0.02)


def test_t5():
  """1 / sqrt(n) each, of queries another sqrt(head size) less."""
  found = leaves(initial(init_weights='t5(head_size=7)', num_layers=2, output='untied'))
  width, heads = 97, 6 * 7
  deviations = {
    'embed/embedding': 1.0,
    'head/embedding': width**-0.5,
    'query/kernel': (7 * width) ** -0.5,
    'key/kernel': width**-0.5,
    'value/kernel': width**-0.5,
    'attention/out/kernel': heads**-0.5,
    'in/kernel': width**-0.5,
    'ffn/out/kernel': 193**-0.5,
  }
  for end, stddev in deviations.items():
    (name,) = [n for n in found if n.endswith(end)]
    assert_normal(found[name], stddev)


def test_switch():
  """Section 2.4: stddev sqrt(s / n), cut at two of what is drawn from."""
  found = leaves(
    initial(
      init_weights='switch(scale=0.3, embedding=0.05)',
      num_layers=2,
      ffn='relu, switch(num_experts=3)',
    )
  )
  inputs = {'attention/out': 6 * 7, 'ffn/out': 193}
  experts = 0
  for name, x in found.items():
    if name.endswith('/router/kernel'):
      continue
    if name.endswith('/kernel'):
      experts += x.ndim == 4
      size = next((n for part, n in inputs.items() if part in name), 97)
      assert x.shape[-2] == size
      stddev = (0.3 / size) ** 0.5
      assert abs(np.std(x) / stddev - 1) < 5 / np.sqrt(2 * x.size)
      assert 2.2 * stddev < np.abs(x).max() < 2.2751 * stddev
    elif name.endswith('/embedding'):
      assert_normal(x, 0.05)
  assert experts == 2


def test_transformer():
  """Tables N(0, 1/D), and kernels uniform within sqrt(6 / (n_in + n_out))."""
  found = leaves(initial(init_weights='transformer'))
  kernels = 0
  for name, x in found.items():
    if name.endswith('/kernel'):
      kernels += 1
      bound = (6 / (x.shape[-2] + x.shape[-1])) ** 0.5
      assert 0.99 * bound < np.abs(x).max() <= bound
      assert abs(np.std(x) * 3**0.5 / bound - 1) < 5 / np.sqrt(2 * x.size)
    elif name.endswith('/embedding'):
      assert_normal(x, x.shape[-1] ** -0.5)
  assert kernels == 6


def test_palm():
  """Section 5: kernels by what comes in, embeddings N(0, 1)."""
  found = leaves(initial(init_weights='palm', output='untied'))
  inputs = {'attention/out': 6 * 7, 'ffn/out': 193}
  for name, x in found.items():
    if name.endswith('/kernel'):
      size = next((n for part, n in inputs.items() if part in name), 97)
      assert x.shape[-2] == size
      assert_normal(x, size**-0.5)
    elif name.endswith('/embedding'):
      assert_normal(x, 1.0)


def test_truncated_normal():
  """Nothing beyond two deviations, and so a smaller one."""
  inits = INITS['truncated_normal'](0.05)(LAYERS)
  assert len({*inits} - {None}) == 1  # None: as another
  x = np.asarray(inits.kernel(jax.random.key(3), (401, 211)))
  assert 0.0999 < np.max(np.abs(x)) <= 0.1
  # Variance 1 - 2 c phi(c) / (2 Phi(c) - 1) at c = 2.
  phi = math.exp(-2) / math.sqrt(2 * math.pi)
  assert_normal(x, 0.05 * math.sqrt(1 - 4 * phi / math.erf(math.sqrt(2))))


@pytest.mark.parametrize('norm', ['rms', 'layer'])
def test_norms_of_bfloat16_have_the_gradient_of_float32(norm):
  """Computed again from the rounded input, which is all that they keep."""
  rng = np.random.default_rng(0)
  x, dy = (jnp.bfloat16(rng.normal(size=(5, 31))) for _ in range(2))
  scale, bias = (np.float32(rng.normal(size=31)) for _ in range(2))

  def apply(x, scale, bias):
    if norm == 'rms':
      return layers.rms_norm(x, scale, epsilon=1e-6)
    return layers.layer_norm(x, scale, bias, epsilon=1e-5)

  found = jax.vjp(apply, x, scale, bias)[1](dy)
  whole = [jnp.float32(a) for a in (x, scale, bias)]
  expected = jax.vjp(apply, *whole)[1](jnp.float32(dy))
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(np.float32(a), b, rtol=2e-2, atol=2e-2)
  assert kept(apply, x, scale, bias) <= 2 * x.size + 4 * 2 * 31


def kept(function, *args):
  """Bytes that the backward pass of a function needs."""
  return sum(x.nbytes for x in jax.tree.leaves(jax.vjp(function, *args)[1]))


@pytest.mark.parametrize('name', ['swiglu', 'geglu', 'gelu_tanh', 'relu'])
def test_hidden_layers_of_bfloat16_keep_their_arguments(name):
  form = layers.FORMS[name]
  rng = np.random.default_rng(0)
  given = [jnp.bfloat16(rng.normal(size=(7, 13))) for _ in range(1 + form.gated)]
  gradient = jax.grad(lambda *a: jnp.sum(form(*a).astype(jnp.float32)), range(len(given)))
  expected = gradient(*map(jnp.float32, given))
  for a, b in zip(gradient(*given), expected, strict=True):
    np.testing.assert_allclose(np.float32(a), b, rtol=2e-2, atol=2e-2)
  assert kept(form, *given) == 2 * 7 * 13 * len(given)
