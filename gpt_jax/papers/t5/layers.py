# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's positions, a bias by the distance of tokens, and its initialization."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.layers import Initializer, Initializers, parameter
from gpt_jax.core.nn.masks import Pattern
from gpt_jax.core.nn.positions import Position
from gpt_jax.core.ranges import Count


def t5_bias(num_buckets: Count = 32, max_distance: Count = 128) -> Position:
  """Relative position buckets, whose bias all layers share (section 2.1)."""
  bias = functools.partial(T5Bias, num_buckets, max_distance)
  return Position(bias=bias, by_distance=True)


class T5Bias(nn.Module):
  """A trained scalar for each head and bucket of distances (T5, 2.1)."""

  num_buckets: int
  max_distance: int
  num_heads: int
  head_size: int
  pattern: Pattern
  initializer: Initializer

  @nn.compact
  def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """Positions [B or 1, L] and [B or 1, M] to a bias [B or 1, H, L, M]."""
    shape = (self.num_buckets, self.num_heads)
    axes = ('buckets', 'heads')
    table = parameter(self, 'embedding', self.initializer, shape, axes)
    bucket = t5_bucket(
      key[:, None, :] - query[:, :, None],
      causal=self.pattern.causal,
      num_buckets=self.num_buckets,
      max_distance=self.max_distance,
    )
    # In float32, since every pair of positions adds to a bucket's gradient.
    bias = jnp.take(table.astype(jnp.float32), bucket, axis=0)
    return jnp.moveaxis(bias, -1, 1)


def t5_bucket(
  distance: jax.Array, *, causal: bool, num_buckets: int, max_distance: int
) -> jax.Array:
  """Bucket of key position - query position.

  The nearer half of the buckets holds one distance each, the others grow
  logarithmically up to `max_distance`. Without causality, half of all buckets
  are for later keys.
  """
  first = 0
  if causal:
    distance = jnp.maximum(-distance, 0)
  else:
    num_buckets //= 2
    first = jnp.where(distance > 0, num_buckets, 0)
    distance = jnp.abs(distance)
  exact = num_buckets // 2
  ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact)
  ratio /= math.log(max_distance / exact)
  far = exact + (ratio * (num_buckets - exact)).astype(jnp.int32)
  far = jnp.minimum(far, num_buckets - 1)
  return first + jnp.where(distance < exact, distance, far)


def t5(head_size: Count = 64):
  """T5's released code: kernels N(0, 1/n_in), embeddings N(0, 1).

  The kernels of queries are sqrt(head_size) times smaller, since T5 does not
  scale the scores. A tied output needs `tied(scale='rsqrt')`.

  Args:
    head_size: `model.head_size`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(1.0)
    kernel, query = (
      nn.initializers.variance_scaling(scale, 'fan_in', 'normal') for scale in (1.0, 1 / head_size)
    )
    # The table of biases by bucket and head.
    position = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')
    output = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal', in_axis=-1, out_axis=-2)
    return Initializers(table, position, kernel, kernel, query, output)

  return build
