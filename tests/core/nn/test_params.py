# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters by name, transposed, and in 8 bits."""

import jax
import numpy as np
import pytest

from gpt_jax.core.nn import layers
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import programs
from tests.support import tiny

KERNEL = np.zeros((3, 5, 7))
PARAMS = {
  'embed': {'embedding': np.zeros((11, 5))},
  'encoder': {'periods': {'block_0': {'in': {'kernel': KERNEL}}}},
  'scale': np.zeros(()),
}


def test_entries_of_a_stack_are_named_one_by_one():
  masks = params_lib.matching(PARAMS, 'encoder/periods/1/*, scale')
  found = masks['encoder']['periods']['block_0']['in']['kernel']
  np.testing.assert_array_equal(found[:, 0, 0], [False, True, False])
  assert found.shape == (3, 1, 1)
  assert not masks['embed']['embedding'].any() and masks['scale'].all()


@pytest.mark.parametrize('patterns', ['enc*', 'encoder/periods/block_0/in/kernel', '*/kernel'])
def test_a_whole_stack_is_named_as_inspect_does(patterns):
  masks = params_lib.matching(PARAMS, patterns)
  assert masks['encoder']['periods']['block_0']['in']['kernel'].all()
  assert not masks['embed']['embedding'].any()
  assert not params_lib.matching(PARAMS, '')['scale'].any()


def test_a_name_that_nothing_has_is_refused():
  params_lib.check(PARAMS, 'embed/*, encoder/periods/2/*', 'optim.trained')
  with pytest.raises(UsageError, match='encoder/periods/3'):
    params_lib.check(PARAMS, 'embed/*, encoder/periods/3/*', 'optim.trained')


# Decoding with transposed kernels computes what the trained model does.


@pytest.mark.parametrize('rows', [1, 2, 7, 521])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_products(rows, dtype):
  rng = np.random.default_rng(rows)
  x = jax.numpy.asarray(rng.normal(size=(rows, 131)), dtype)
  kernel = jax.numpy.asarray(rng.normal(size=(131, 19)), dtype)
  found = jax.jit(layers.dot)(x, kernel.T)
  assert found.dtype == dtype
  expected = np.float64(x) @ np.float64(kernel)
  np.testing.assert_allclose(np.float64(found), expected, atol=1e-4 if dtype == 'float32' else 0.2)


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
  expected = jax.jit(given.apply)({'params': params}, tokens).hidden_BLD
  found = jax.jit(model.apply)({'params': split}, tokens).hidden_BLD
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_experts_and_routers_stay_as_they_are():
  given = tiny.model(num_layers=1, ffn='switch(num_experts=3)')
  _, params = programs.for_decoding(given, tiny.params(given))
  block = params['decoder']['period_0']['block_0']
  assert 'transposed' in block['attention']['out']
  for name in ('in', 'out', 'router'):
    assert 'kernel' in block['ffn'][name]


def test_a_model_with_rounded_kernels_computes_nearly_the_same():
  given = tiny.model(num_layers=1)
  model, params = programs.for_decoding(given, tiny.params(given))
  _, small = programs.for_decoding(given, tiny.params(given), 'int8')
  block = small['decoder']['period_0']['block_0']
  for name in ('query', 'key', 'value', 'out'):
    assert block['attention'][name]['kernel'].dtype == np.int8
  assert block['ffn']['in']['kernel'].dtype == np.int8
  tokens = tiny.tokens(3, 11)
  run = jax.jit(lambda params: model.apply({'params': params}, tokens).hidden_BLD)
  exact, near = np.asarray(run(params)), np.asarray(run(small))
  error = np.linalg.norm(near - exact) / np.linalg.norm(exact)
  # Rounding to 127 steps: under a hundredth for each of a few products.
  assert 1e-4 < error < 5e-2


def test_experts_and_routers_are_not_quantized():
  given = tiny.model(num_layers=1, ffn='switch(num_experts=3)')
  _, params = programs.for_decoding(given, tiny.params(given), 'int8')
  block = params['decoder']['period_0']['block_0']
  assert block['attention']['out']['kernel'].dtype == np.int8
  for name in ('in', 'out', 'router'):
    assert block['ffn'][name]['kernel'].dtype == np.float32
