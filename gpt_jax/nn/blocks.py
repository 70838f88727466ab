# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a row a token sees (Zaheer et al., 2020: Big Bird:
Transformers for Longer Sequences, section 2).

Tokens in between see the global ones, the blocks around their own, and a few
random blocks; global tokens see all. `block_sparse.py` computes it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Of MurmurHash3's last step (Appleby, 2011), which changes each bit of its
# result with each bit of its input.
_FIRST, _SECOND = 0x85EBCA6B, 0xC2B2AE35


class Blocks(NamedTuple):
  """What `masks.bigbird` says; see there.

  Attributes:
    size: tokens of a block.
    window: blocks of the window, an odd number.
    random: random blocks for each head and block of queries.
    extra: global tokens before the row; 0: its first and last block are global.
    first: whether the first block stands for each of the random ones, counted
      once more each time.
    seed: of the random blocks.
  """

  size: int
  window: int
  random: int
  extra: int
  first: bool
  seed: int

  def between(self, length: int) -> tuple[int, int] | None:
    """Where the tokens that are not global begin and end.

    Of rows of a few blocks, which random ones would nearly fill, all tokens
    see all, as in transformers: None.

    Args:
      length: of a row, with its extra tokens.
    """
    ends = 0 if self.extra else 2
    number = -(-(length - self.extra) // self.size)
    if number <= ends + self.window + 2 * self.random:
      return None
    if self.extra:
      return self.extra, length
    return self.size, (number - 1) * self.size

  def count(self, length: int) -> np.ndarray:
    """How many keys each query of a row sees, int64 [length].

    A random block that is the row's last, and not full, counts as a whole.
    """
    seen = np.full(length, length, np.int64)
    ends = self.between(length)
    if ends is None:
      return seen
    start, stop = ends
    query = np.arange(stop - start) // self.size
    around = self.window // 2
    first = np.maximum(query - around, 0) * self.size
    last = np.minimum((query + around + 1) * self.size, stop - start)
    drawn = 0 if self.first else self.random * self.size
    seen[start:stop] = length - (stop - start) + last - first + drawn
    return seen


def random_blocks(
  blocks: Blocks, layer: jax.Array | int, num_heads: int, number: int
) -> jax.Array:
  """The random blocks of each head and block of queries, int32 [H, N, random].

  Each is drawn from the `number` blocks between the global ones that the
  window does not show, without repeating. They follow from seed, layer, head
  and block by arithmetic in 32 bits: they are the same on every host, device
  and mesh, in each step and after a resume.
  """
  key = jnp.asarray(layer).astype(jnp.uint32)
  key = _mixed(key ^ _mixed(jnp.uint32(blocks.seed)))
  head = jnp.arange(num_heads, dtype=jnp.uint32)[:, None, None]
  query = jnp.arange(number)[None, :, None]
  seen = jnp.arange(number)[None, None]
  for index in (head, query, seen):
    key = _mixed(key ^ index.astype(jnp.uint32))
  around = jnp.abs(query - seen) <= blocks.window // 2
  rank = jnp.where(around, -1, (key >> 1).astype(jnp.int32))
  return jax.lax.top_k(rank, blocks.random)[1]


def _mixed(x: jax.Array) -> jax.Array:
  """Another number for each number; a constant first, since 0 stays 0."""
  x += np.uint32(0x9E3779B9)
  x = (x ^ (x >> 16)) * np.uint32(_FIRST)
  x = (x ^ (x >> 13)) * np.uint32(_SECOND)
  return x ^ (x >> 16)
