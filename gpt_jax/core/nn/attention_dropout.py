# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention probabilities, by a hash of what each one belongs to.

Whether a probability is kept is a function of (seed, number of the row in the
batch, head, key, query), in arithmetic of 32 bits. So every backend, device,
mesh, block size and micro-batch drops the same ones, and none stores a mask:

  h = hashed(seed)
  for n in (row, head, key, query):
    h = hashed(h ^ n)
  kept = (h >> 8) >= round(rate * 2^24)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Constants of MurmurHash3's last step (Appleby, 2011), in which each bit of the
# input affects each bit of the result.
_FIRST, _SECOND = 0x85EBCA6B, 0xC2B2AE35
# Bits of a hash that are compared with the rate.
BITS = 24


def hashed(x: jax.Array) -> jax.Array:
  """A bijective hash of uint32; adds a constant first, since 0 would stay 0."""
  x += np.uint32(0x9E3779B9)
  x = (x ^ (x >> 16)) * np.uint32(_FIRST)
  x = (x ^ (x >> 13)) * np.uint32(_SECOND)
  return x ^ (x >> 16)


def kept(hashes: jax.Array, rate: float) -> jax.Array:
  """Whether values with these hashes, uint32, are kept: bool.

  Compared as int32, which all vector units have.
  """
  return (hashes >> (32 - BITS)).astype(jnp.int32) >= round(rate * 2**BITS)


class AttentionDropout(NamedTuple):
  """The dropout of the probabilities of a layer in one step.

  Attributes:
    rate: the fraction that is dropped.
    seed: uint32 [], drawn for the layer and the step.
    rows_B: uint32, the number of each row in the batch: see
      `layers.row_numbers`.
  """

  rate: float
  seed: jax.Array
  rows_B: jax.Array

  @property
  def keep(self) -> float:
    """The fraction that is kept, by which the probabilities are divided."""
    return 1.0 - self.rate

  def of_heads(self, num_heads: int) -> jax.Array:
    """The hash of each row and head, uint32 [B, H]."""
    of_rows_B1 = hashed(hashed(self.seed) ^ self.rows_B)[:, None]
    return hashed(of_rows_B1 ^ jnp.arange(num_heads, dtype=jnp.uint32)[None])

  def kept(self, num_heads: int, query: jax.Array, key: jax.Array) -> jax.Array:
    """Which probabilities are kept, bool [B, H, ...].

    Args:
      num_heads: H.
      query: int, the places of the queries in their rows, which broadcast with
        those of the keys to [1 or H, ...].
      key: int, the places of the keys in theirs.
    """
    more = jnp.broadcast_shapes(query.shape, key.shape)[1:]
    hashes = self.of_heads(num_heads).reshape(len(self.rows_B), num_heads, *(1,) * len(more))
    for place in (key, query):
      hashes = hashed(hashes ^ place.astype(jnp.uint32)[None])
    return kept(hashes, self.rate)
