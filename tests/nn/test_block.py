# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the norms stand in a block, and what its dropout drops."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tiny
from flax import linen as nn

from gpt_jax.nn.attention import Attention
from gpt_jax.nn.block import BLOCKS
from gpt_jax.nn.ffn import FFNS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.masks import local
from gpt_jax.nn.norm import NORMS

B, L, D, F, K, H, G = 3, 5, 17, 29, 7, 6, 2


def make(kind):
  parts = {
    'bias': True,
    'inits': INITS['normal']()(1),
    'dtype': jnp.float32,
  }
  attention = functools.partial(
    Attention,
    local(3),
    num_heads=H,
    num_kv_heads=G,
    head_size=K,
    dropout=0.0,
    **parts,
  )
  return BLOCKS[kind]()(
    norm=NORMS['layernorm'](),
    attention=attention,
    ffn=functools.partial(FFNS['gelu_tanh'](), d_ff=F, **parts),
    dropout=0.0,
  )


@pytest.mark.parametrize('kind', ['pre', 'post'])
def test_block(kind):
  block = make(kind)
  x = np.float32(np.random.default_rng(0).normal(size=(B, L, D)))
  boxed = jax.eval_shape(block.init, jax.random.key(0), x, None, None)
  params = tiny.random_like(nn.meta.unbox(boxed['params']), seed=1)
  expected = reference.block(
    reference.to_float64(params),
    np.float64(x),
    kind=kind,
    heads=H,
    kv_heads=G,
    window=3,
  )
  y, cache = jax.jit(block.apply)({'params': params}, x, None, None)
  assert cache is None
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_pre_norm_needs_one_more_norm_at_the_end():
  assert BLOCKS['pre']().final_norm
  assert not BLOCKS['post']().final_norm


class Constant(nn.Module):
  """Stands for a sublayer: gives the same number everywhere."""

  value: float

  @nn.compact
  def __call__(self, x: jax.Array, *positions_and_cache: Any):
    """As attention does, returns a cache too where it is given one."""
    y = jnp.full_like(x, self.value)
    return (y, None) if positions_and_cache else y


class Identity(nn.Module):
  """Stands for a norm."""

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns `x`."""
    return x


@pytest.mark.parametrize('kind', ['pre', 'post'])
def test_dropout_acts_on_each_sublayer_before_it_is_added(kind):
  """Sublayers that give 3 and 8: at rate 1/2 they add 0 or 6, and 0 or 16."""
  block = BLOCKS[kind]()(
    norm=Identity,
    attention=functools.partial(Constant, 3.0),
    ffn=functools.partial(Constant, 8.0),
    dropout=0.5,
  )
  x = np.float32(np.random.default_rng(0).normal(size=(11, 13, D)))

  def added(**rngs):
    return np.asarray(block.apply({}, x, None, None, rngs=rngs)[0] - x)

  np.testing.assert_allclose(added(), 11.0, rtol=1e-5)
  found = added(dropout=jax.random.key(0))
  np.testing.assert_array_equal(found, added(dropout=jax.random.key(0)))
  assert np.any(found != added(dropout=jax.random.key(1)))
  # The two are dropped independently: a quarter each, of 11 * 13 * 17.
  for total in (0, 6, 16, 22):
    share = np.mean(np.isclose(found, total, atol=1e-4))
    assert 0.21 < share < 0.29, total
