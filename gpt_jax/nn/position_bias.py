# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What distances add to the scores of attention: T5's buckets, ALiBi's slopes.

One array for all layers.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer
from gpt_jax.nn.masks import Pattern

ALIBI_SCALES: dict[str, Callable[[int], float]] = {
  'none': lambda head_size: 1.0,
  'rsqrt': lambda head_size: head_size**-0.5,
}


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


class AlibiBias(nn.Module):
  """-slope * distance, a slope for each head (ALiBi, Press et al. 2022)."""

  scale: Callable[[int], float]
  rounded: bool
  num_heads: int
  head_size: int
  pattern: Pattern
  initializer: Initializer

  def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """Positions [B or 1, L] and [B or 1, M] to a bias [B or 1, H, L, M]."""
    scale = self.scale(self.head_size)
    slopes = jnp.asarray(alibi_slopes(self.num_heads), jnp.float32)
    slopes = slopes[None, :, None, None]
    if not self.rounded:
      distance = jnp.abs(query[:, None, :, None] - key[:, None, None, :])
      return -slopes * distance.astype(jnp.float32) * scale
    # The same but for a constant in each row of scores, which the softmax
    # does not see, and for the rounding, which depends on the position.
    at = to_bfloat16(key[:, None, None, :].astype(jnp.float32))
    bias = to_bfloat16(to_bfloat16(slopes) * at) * scale
    B, M = key.shape
    return jnp.broadcast_to(bias, (B, self.num_heads, query.shape[1], M))


def to_bfloat16(x: jax.Array) -> jax.Array:
  """Rounds float32 to what bfloat16 holds; XLA may leave out plain casts."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def alibi_slopes(num_heads: int) -> np.ndarray:
  """2^(-8 i / n) for n heads, a power of two, i from 1.

  For other counts, those of the power of two below, and then every second one
  of the power above (the paper's released code).
  """
  below = 2 ** math.floor(math.log2(num_heads))
  slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
  between = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
  return np.concatenate([slopes, between[: num_heads - below]])
