# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedding table, as first layer and as last.

What the model does with the choices of input and output: test_transformer.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn.embed import INPUTS, Embedding
from gpt_jax.nn.heads import OUTPUTS
from gpt_jax.nn.layers import INITS
from gpt_jax.spec import UsageError

V, D = 23, 17
TOKENS = np.array([[0, 22, 5], [5, 5, 1]])


def make(dtype):
  init = INITS['normal'](0.5)(1).embedding
  module = Embedding(V, D, init, dtype)
  return module, jax.jit(module.init)(jax.random.key(0), TOKENS)


def test_lookup_and_table():
  module, params = make(jnp.float32)
  boxed = params['params']['embedding']
  assert boxed.names == ('vocab', 'embed')
  assert boxed.value.shape == (V, D)
  table = np.asarray(boxed.value)
  np.testing.assert_array_equal(module.apply(params, TOKENS), table[TOKENS])
  found = module.apply(params, method='table')
  np.testing.assert_array_equal(found, table)


def test_bfloat16_is_rounded_after_the_lookup():
  module, params = make(jnp.bfloat16)
  table = params['params']['embedding'].value
  assert table.dtype == jnp.float32
  rounded = table.astype(jnp.bfloat16)
  found = module.apply(params, TOKENS)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, np.asarray(rounded)[TOKENS])
  np.testing.assert_array_equal(module.apply(params, method='table'), rounded)


def test_gradient_of_a_token_is_summed_over_its_places():
  module, params = make(jnp.float32)
  weights = np.float32(np.random.default_rng(0).normal(size=(2, 3, D)))
  gradient = jax.grad(lambda p: (module.apply(p, TOKENS) * weights).sum())(
    params
  )['params']['embedding'].value
  expected = np.zeros((V, D))
  np.add.at(expected, TOKENS, weights)
  np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  'scale, expected', [('none', 1), ('sqrt', 13), ('rsqrt', 1 / 13)]
)
def test_scales_by_width(scale, expected):
  texts = (f'tokens(scale={scale!r})', f'tied(scale={scale!r})')
  for text, choices in zip(texts, (INPUTS, OUTPUTS), strict=True):
    found = spec.build('field', text, choices).scale(169)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_plain_choices():
  plain = spec.build('model.input', 'tokens', INPUTS)
  assert (plain.scale(D), plain.num_token_types, plain.norm) == (1.0, 0, False)
  for text, tied in (('tied', True), ('untied', False)):
    plain = spec.build('model.output', text, OUTPUTS)
    assert (plain.tied, plain.bias, plain.scale(D)) == (tied, False, 1.0)


def test_unknown_transform():
  text = "tied(transform='swiglu')"
  with pytest.raises(UsageError, match="transform='swiglu' is unknown; one of"):
    spec.build('model.output', text, OUTPUTS)
