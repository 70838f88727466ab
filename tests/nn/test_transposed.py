# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding with transposed kernels computes what the trained model does."""

import jax
import numpy as np
import pytest

from gpt_jax.decoding import programs
from gpt_jax.nn import layers
from tests.support import tiny


@pytest.mark.parametrize('rows', [1, 2, 7])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_products(rows, dtype):
  rng = np.random.default_rng(rows)
  x = jax.numpy.asarray(rng.normal(size=(rows, 131)), dtype)
  kernel = jax.numpy.asarray(rng.normal(size=(131, 19)), dtype)
  found = jax.jit(layers.dot)(x, kernel.T)
  assert found.dtype == dtype
  expected = np.float64(x) @ np.float64(kernel)
  np.testing.assert_allclose(
    np.float64(found), expected, atol=1e-4 if dtype == 'float32' else 0.2
  )


@pytest.mark.parametrize('bias', ['all', 'none'])
def test_a_model_computes_the_same(bias):
  given = tiny.model(num_layers=2, bias=bias)
  params = tiny.params(given)
  model, split = programs.for_decoding(given, params)
  kernel = params['decoder']['periods']['block_0']['ffn']['in']['kernel']
  layer = split['decoder']['period_1']['block_0']['ffn']['in']
  np.testing.assert_array_equal(layer['transposed'], kernel[1].T)
  assert 'kernel' not in layer
  tokens = tiny.tokens(3, 11)
  expected = given.apply({'params': params}, tokens).hidden_BLD
  found = model.apply({'params': split}, tokens).hidden_BLD
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_experts_and_routers_stay_as_they_are():
  given = tiny.model(num_layers=1, ffn='switch(num_experts=3)')
  _, params = programs.for_decoding(given, tiny.params(given))
  block = params['decoder']['period_0']['block_0']
  assert 'transposed' in block['attention']['out']
  for name in ('in', 'out', 'router'):
    assert 'kernel' in block['ffn'][name]
