# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers: scanned, unrolled and rematerialised they are the same function."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tiny
from flax import linen as nn

from gpt_jax.nn.stack import REMATS, Stack
from gpt_jax.objectives.causal import causal

B, L = tiny.B, tiny.L
RATES = 'rates(residual=0.2, attention=0.3)'


@functools.cache
def loss_and_gradient(**changes):
  """Of one model with dropout, whatever the way it is computed."""
  model = tiny.model(num_layers=2, dropout=RATES, **changes)
  objective = causal()(model)
  gradient = jax.value_and_grad(lambda p, b, k: objective.loss(p, b, k).sum)
  return jax.device_get(
    jax.jit(gradient)(
      tiny.params(model),
      tiny.batch(B, L, tiny.V),
      jax.random.key(3),
    )
  )


def assert_same(one, other):
  (loss, gradient), (other_loss, other_gradient) = one, other
  np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    gradient,
    other_gradient,
  )


def test_gradient_reaches_every_parameter():
  _, gradient = loss_and_gradient()
  for path, g in jax.tree_util.tree_leaves_with_path(gradient):
    name = jax.tree_util.keystr(path)
    # A key's bias adds the same to all scores of a query: softmax forgets it.
    if 'key' in name and 'bias' in name:
      np.testing.assert_allclose(g, 0, atol=1e-4)
    elif 'periods' in name:
      assert np.all(np.any(g, axis=tuple(range(1, g.ndim)))), name
    else:
      assert np.any(g), name


def test_unrolled_layers_equal_scanned_ones():
  assert_same(loss_and_gradient(loop='unroll'), loss_and_gradient())


@pytest.mark.parametrize(
  'loop, remat',
  [('scan', 'full'), ('scan', 'dots'), ('unroll', 'full')],
)
def test_remat_gives_the_same_gradient(loop, remat):
  """What is computed again is the same, its dropout included."""
  assert {'none', 'full', 'dots'} == {*REMATS}
  assert_same(loss_and_gradient(loop=loop, remat=remat), loss_and_gradient())


class AddDropped(nn.Module):
  """A block that adds 0 or 2 to each entry."""

  @nn.compact
  def __call__(self, x, positions, cache):
    """Drops half of what it adds."""
    return x + nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x)), cache


@pytest.mark.parametrize('loop', ['scan', 'unroll'])
def test_each_layer_draws_its_own_dropout(loop):
  """Three periods of two layers: 0, 2, ... 12 in binomial shares."""
  stack = Stack((AddDropped, AddDropped), num_layers=6, remat='none', loop=loop)
  x = np.zeros((11, 13, 17), np.float32)
  run = jax.jit(
    lambda key: stack.apply({}, x, None, (None, None), rngs={'dropout': key})[0]
  )
  found = np.asarray(run(jax.random.key(0)))
  for i in range(7):
    share = math.comb(6, i) / 2**6
    error = math.sqrt(share * (1 - share) / x.size)
    assert abs(np.mean(found == 2 * i) - share) < 5 * error, i


def saved_bytes(remat):
  """What the backward pass of a deep model keeps, as `jax.vjp` holds it."""
  model = tiny.model(num_layers=4, remat=remat, loop='unroll')
  params, tokens = tiny.params(model), tiny.tokens(B, L)

  def residuals(params):
    _, vjp = jax.vjp(
      lambda p: model.apply({'params': p}, tokens).hidden_BLD, params
    )
    return jax.tree.leaves(vjp)

  return sum(
    x.size * x.dtype.itemsize for x in jax.eval_shape(residuals, params)
  )


def test_remat_saves_memory():
  none, dots, full = (saved_bytes(r) for r in ('none', 'dots', 'full'))
  assert none > dots > full


def test_a_period_of_two_patterns_is_its_layers_in_turn():
  """Layers 0 and 2 see all, layers 1 and 3 see three tokens."""
  model = tiny.model(num_layers=4, attention='full, local(window=3)')
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  periods = params['stack']['periods']
  assert {*periods} == {'block_0', 'block_1'}
  assert periods['block_0']['ffn']['in']['bias'].shape == (2, tiny.F)
  found = jax.jit(model.apply)({'params': params}, tokens).hidden_BLD

  order = [('block_0', 0), ('block_1', 0), ('block_0', 1), ('block_1', 1)]

  def by_hand(windows):
    layers = {'heads': tiny.H, 'kv_heads': tiny.G, 'kind': 'pre'}
    p = reference.to_float64(params)
    x = p['embed']['embedding'][tokens] + p['positions']['embedding'][:L]
    for (block, repeat), window in zip(order, windows, strict=True):
      own = reference.to_float64(p['stack']['periods'][block], repeat)
      x = reference.block(own, x, window=window, **layers)
    norm = p['final_norm']
    return reference.layer_norm(x, norm['scale'], norm['bias'])

  expected = by_hand([None, 3, None, 3])
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
  assert not np.allclose(found, by_hand([3, None, 3, None]), atol=1e-2)


def test_parameters_carry_the_axis_layers():
  model = tiny.model()
  tokens = np.zeros((1, 1), np.int32)
  boxed = jax.eval_shape(model.init, jax.random.key(0), tokens)['params']
  block = boxed['stack']['periods']['block_0']
  assert block['ffn']['in']['kernel'].names == ('layers', 'embed', 'mlp')
  assert block['attention']['key']['bias'].names == ('layers', 'kv_heads')
  assert block['attention_norm']['scale'].names == ('layers', 'norm')
  assert boxed['final_norm']['scale'].names == ('norm',)
  for leaf in jax.tree.leaves(
    boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
  ):
    assert len(leaf.names) == leaf.value.ndim
