# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The feed-forward layer and its activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core.meta import unbox

from gpt_jax.nn.block import FFNS
from gpt_jax.nn.layers import FORMS, INITS
from tests.support import reference, tiny

B, L, D, F = 3, 5, 17, 29


def make(name, *, bias=True, dtype=jnp.float32):
  return FFNS[name]().make(
    d_ff=F, bias=bias, inits=INITS['normal']()(1), dtype=dtype
  )


FORMULAS = reference.ACTIVATIONS | reference.GATES


@pytest.mark.parametrize('name', FORMS)
def test_activation(name):
  """From -9 to 9, where the two forms of GELU differ by up to 5e-4."""
  x = np.linspace(-9, 9, 1009, dtype=np.float32)
  found = jax.jit(FORMS[name].activation)(x)
  expected = FORMULAS[name](np.float64(x))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_the_forms_of_gelu_differ():
  x = np.linspace(-3, 3, 101, dtype=np.float32)
  exact, approximate = (
    FORMS[name].activation(x) for name in ('gelu', 'gelu_tanh')
  )
  assert 1e-4 < np.max(np.abs(exact - approximate)) < 1e-3


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('name', FORMS)
def test_ffn(name, bias):
  module = make(name, bias=bias)
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, D)))
  boxed = jax.eval_shape(module.init, jax.random.key(0), x)['params']
  axes = {
    f'{layer}/{kind}': p.names
    for layer, sub in boxed.items()
    for kind, p in sub.items()
  }
  expected_axes = {
    'in/kernel': ('embed', 'mlp'),
    'out/kernel': ('mlp', 'embed'),
  }
  if name in reference.GATES:
    expected_axes['gate/kernel'] = ('embed', 'mlp')
    if bias:
      expected_axes['gate/bias'] = ('mlp',)
  if bias:
    expected_axes |= {'in/bias': ('mlp',), 'out/bias': ('embed',)}
  assert axes == expected_axes

  params = tiny.random_like(unbox(boxed), seed=1)
  assert params['in']['kernel'].shape == (D, F)
  full = reference.to_float64(params)
  for layer in full.values():
    layer.setdefault('bias', 0.0)
  expected = reference.feed_forward(full, np.float64(x), FORMULAS[name])
  y = jax.jit(module.apply)({'params': params}, x)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_computes_in_bfloat16_from_float32_parameters():
  module = make('gelu_tanh', dtype=jnp.bfloat16)
  x = jnp.ones((B, L, D), jnp.bfloat16)
  boxed = jax.eval_shape(module.init, jax.random.key(0), x)['params']
  params = tiny.random_like(unbox(boxed), seed=1)
  assert {p.dtype for p in jax.tree.leaves(boxed)} == {np.dtype('float32')}
  y = jax.eval_shape(module.apply, {'params': params}, x)
  assert y.dtype == jnp.bfloat16
