# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores by distance within a block of the flash kernel, and their gradients.

What a block of scores needs is first computed by distance, [L, L + M] or less:
row l has in column t the score of distance t - L. Row l of the scores is a part
of it that begins one column earlier than that of the row before, which a
rotation by l brings to the same place; the gradient takes the inverse one.

TPU v4 has no rotation by a different number for each row. There are only those
of whole rows here: by 1, 2 and 4, each for half of the rows of a register, then
those of whole registers. By multiples of LANES they only rename registers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gpt_jax.core.nn.kernels import LANES

# Rows of a vector register.
SUBLANES = 8


def product(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
  """Sums over these axes of x and y, in float32."""
  return jax.lax.dot_general(
    x, y, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32
  )


# A bias by distance: a strip of L + M numbers. Before they are rotated all rows
# are equal, so few rows really move: they are doubled, n of them rotated as a
# whole.


def strips(strip_HD: jax.Array, size: int) -> jax.Array:
  """Overlapping parts of a bias [H, 2 L - 1], [H, 2 L / size - 1, 2 size].

  Entry t of part n, for blocks of keys n + 1 - L / size after those of queries,
  is of the distance t - size within them.
  """
  length = (strip_HD.shape[1] + 1) // 2
  number = -(-length // size)
  before = number * size - length + 1
  strip_HD = jnp.pad(strip_HD, ((0, 0), (before, before)))
  strip_HD = strip_HD[:, : 2 * number * size].astype(jnp.float32)
  parts = strip_HD.reshape(len(strip_HD), 2 * number, size)
  return jnp.concatenate([parts[:, :-1], parts[:, 1:]], axis=-1)


def skewed(strip_1W: jax.Array, blocks: tuple[int, int]) -> jax.Array:
  """The bias of a block: entry m - l + L of the strip, [L, M]."""
  L, M = blocks
  x = jnp.broadcast_to(strip_1W, (SUBLANES, L + M))
  x = _staggered(_rotated(x, M), 1)
  while len(x) < LANES:
    x = jnp.concatenate([x, _rotated(x, len(x))])
  return jnp.concatenate([_rotated(x, n) for n in range(0, L, LANES)])[:, :M]


def unskewed(x_LM: jax.Array) -> jax.Array:
  """The sums over the entries of a block that take a number of the strip."""
  L, _ = x_LM.shape
  wide_LW = jnp.concatenate([x_LM, jnp.zeros((L, L), x_LM.dtype)], axis=1)
  parts = (_rotated(wide_LW[n : n + LANES], -n) for n in range(0, L, LANES))
  x = functools.reduce(jnp.add, parts)
  while len(x) > SUBLANES:
    half = len(x) // 2
    x = x[:half] + _rotated(x[half:], -half)
  return _rotated(_staggered(x, -1).sum(axis=0, keepdims=True), L)


# Products with vectors of distances: for each 128 rows with the 128 + M vectors
# that any of them needs.


def table(table_NHK: jax.Array, length: int, whole: int, after: int) -> jax.Array:
  """A table whose entry `whole` + column - row is the vector of that distance.

  Rows and columns are counted over all blocks. [H, `whole` + `after`, K], with
  heads filled up to whole SUBLANES.

  Args:
    table_NHK: its entry `length` - 1 + column - row is.
    length: number of rows.
    whole: the same, filled up to blocks.
    after: 1 + the largest column - row.
  """
  before = whole - length + 1
  more = max(whole + after - before - len(table_NHK), 0)
  of_heads = -table_NHK.shape[2] % SUBLANES
  table_NHK = jnp.pad(table_NHK, ((before, more), (0, 0), (0, of_heads)))
  return table_NHK[: whole + after].swapaxes(0, 1)


def by_distance(x: Any, vectors: Any, first: Any, columns: int) -> jax.Array:
  """Products of the rows of x with the vectors of their distances.

  Those in references x [1, 1, rows, K] and `vectors` [1, N, K], of its entries
  `first` + column - row: [rows, `columns`].
  """
  x_LK, parts = x[0, 0], []
  for n in range(0, len(x_LK), LANES):
    vectors_WK = vectors[0, _strip(first - n, columns)]
    products = product(x_LK[n : n + LANES], vectors_WK, (1, 1))
    parts.append(_sheared(_rotated(products, columns), 1)[:, :columns])
  return jnp.concatenate(parts)


def of_distances(
  of_scores: jax.Array, x: Any, vectors: Any, of_vectors: Any, first: Any
) -> jax.Array:
  """The gradient of x from that of `by_distance`; adds that of the vectors."""
  x_LK, parts, columns = x[0, 0], [], of_scores.shape[1]
  for n in range(0, len(x_LK), LANES):
    zeros = jnp.zeros((LANES, LANES), of_scores.dtype)
    wide = jnp.concatenate([of_scores[n : n + LANES], zeros], axis=1)
    of_products = _rotated(_sheared(wide, -1), LANES).astype(x_LK.dtype)
    at = _strip(first - n, columns)
    parts.append(product(of_products, vectors[0, at], (1, 0)))
    of_vectors[0, at] += product(of_products, x_LK[n : n + LANES], (0, 0))
  return jnp.concatenate(parts)


def _strip(first: Any, columns: int) -> Any:
  """The entries that 128 rows need."""
  start = pl.multiple_of(first - LANES, LANES)
  return pl.ds(start, columns + LANES)


def _sheared(x: jax.Array, by: int) -> jax.Array:
  """Rotates row l of 128 to the right by l * `by`."""
  x = _staggered(x, by)
  return jnp.concatenate(
    [_rotated(x[n : n + SUBLANES], n * by) for n in range(0, len(x), SUBLANES)]
  )


def _staggered(x: jax.Array, by: int) -> jax.Array:
  """Rotates row l to the right by l % 8 * `by`."""
  row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
  for bit in range(SUBLANES.bit_length() - 1):
    x = jnp.where((row >> bit) % 2 == 1, _rotated(x, by << bit), x)
  return x


def _rotated(x: jax.Array, by: int) -> jax.Array:
  """Rotates all rows to the right by `by`."""
  by %= x.shape[1]
  return pltpu.roll(x, by, 1) if by else x
