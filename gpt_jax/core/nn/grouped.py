# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products: rows sorted by expert, none of them dropped.

Shapes are static, but the number of rows of an expert is known only at run
time. So the rows of each expert fill whole blocks of Y rows: at most A / Y + E
blocks for A rows, whatever the loads. (`jax.lax.ragged_dot` needs no blocks,
but computes every row with every expert on a CPU, and in the gradient of the
weights everywhere.)

Suffixes: X blocks of Y rows, S = X Y rows, E experts, D and F their widths.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import gmm

from gpt_jax.core.nn.layout import platform


class Blocks(NamedTuple):
  """X blocks of Y rows, each of one expert.

  Attributes:
    owners_X: the expert of each block.
    count: number of blocks in use, from the first on; at most X.
    sizes_Z: number of rows in the blocks of each expert, then of unused rows.
  """

  owners_X: jax.Array
  count: jax.Array
  sizes_Z: jax.Array


def block_size(rows: int, num_experts: int) -> int:
  """Rows of a block: as many as experts have on average, within bounds.

  The kernels read an expert's matrix once for each block, so 2 Y FLOPs a weight
  must take as long as reading it: on TPU v5e from 240 rows on, on v6e from 560.
  Their rows are at least those of the TPU's matrix unit.
  """
  least, size = (128, 512) if platform() == 'tpu' else (8, 128)
  while size > least and size * num_experts > rows:
    size //= 2
  return size


def starts(counts_E: jax.Array, size: int) -> jax.Array:
  """The first row of each expert [..., E], whose rows fill whole blocks."""
  blocks_E = -(-counts_E // size)
  return (jnp.cumsum(blocks_E, axis=-1) - blocks_E) * size


def layout(counts_E: jax.Array, rows: int, size: int) -> Blocks:
  """Blocks of `size` rows for `counts_E` rows, at most `rows` together."""
  E = len(counts_E)
  num_blocks = rows // size + E
  ends_E = jnp.cumsum(-(-counts_E // size))
  owners_X = jnp.searchsorted(ends_E, jnp.arange(num_blocks), side='right')
  owners_X = jnp.minimum(owners_X, E - 1).astype(jnp.int32)
  sizes_Z = jnp.diff(ends_E * size, prepend=0, append=num_blocks * size)
  return Blocks(owners_X, ends_E[-1], sizes_Z.astype(jnp.int32))


def matmul(x_SD: jax.Array, w_EDF: jax.Array, blocks: Blocks) -> jax.Array:
  """Each row times the matrix of its expert: [S, D] to [S, F].

  By a Pallas kernel on a TPU, block by block elsewhere.
  """
  if platform() == 'tpu':
    return by_kernel(x_SD, w_EDF, blocks)
  x_XYD = x_SD.reshape(len(blocks.owners_X), -1, x_SD.shape[-1])
  y_XYF: Any = by_block(x_XYD, w_EDF, blocks.owners_X, blocks.count)
  return y_XYF.reshape(len(x_SD), -1)


def by_kernel(
  x_SD: jax.Array, w_EDF: jax.Array, blocks: Blocks, interpret: bool = False
) -> jax.Array:
  """`matmul` by the kernels of megablox, with zeros in unused rows."""
  tiling = _tiling(len(x_SD) // len(blocks.owners_X), x_SD.dtype)
  group_sizes = blocks.sizes_Z  # groups beyond the last matrix give zero
  return gmm(x_SD, w_EDF, group_sizes, x_SD.dtype, tiling, interpret=interpret)


@functools.cache  # JAX traces a kernel again for another function
def _tiling(size: int, dtype: Any) -> Callable[..., tuple[int, int, int]]:
  """The kernel's tile of products [rows, inner] x [inner, outer]."""
  bytes_each = jnp.dtype(dtype).itemsize

  def tiling(rows, inner, outer):
    del rows
    return size, tile_of(inner, bytes_each), tile_of(outer, bytes_each)

  return tiling


def tile_of(width: int, bytes_each: int) -> int:
  """The kernel's tile of D or F: 2 KiB, or less for as many tiles.

  A block's rows are read once for each tile of the result, so that tiles are as
  large as fits: two of each, and sums in float32, share the 16 MiB that a TPU's
  kernels have.
  """
  tiles = -(-width * bytes_each // 2048)
  return width if tiles == 1 else -(-width // (tiles * 128)) * 128


@jax.custom_vjp
def by_block(
  x_XYD: jax.Array, w_EDF: jax.Array, owners_X: jax.Array, count: jax.Array
) -> jax.Array:
  """Block x times w[owners[x]], for the first `count` blocks; zero after.

  Its gradient is written by hand: that of a loop would add a whole array of
  weights for each block.
  """

  def body(i, y_XYF):
    return y_XYF.at[i].set(x_XYD[i] @ w_EDF[owners_X[i]])

  shape = (*x_XYD.shape[:2], w_EDF.shape[2])
  return jax.lax.fori_loop(0, count, body, jnp.zeros(shape, x_XYD.dtype))


def _by_block(x_XYD, w_EDF, owners_X, count):
  saved = x_XYD, w_EDF, owners_X, count
  return by_block(*saved), saved


def _by_block_gradient(saved, dy_XYF):
  x_XYD, w_EDF, owners_X, count = saved

  def body(i, grads):
    dx_XYD, dw_EDF = grads
    owner, dy_YF = owners_X[i], dy_XYF[i]
    dx_XYD = dx_XYD.at[i].set(dy_YF @ w_EDF[owner].T)
    part_DF = jnp.matmul(x_XYD[i].T, dy_YF, preferred_element_type=jnp.float32)
    return dx_XYD, dw_EDF.at[owner].add(part_DF)

  start = jnp.zeros_like(x_XYD), jnp.zeros(w_EDF.shape, jnp.float32)
  dx_XYD, dw_EDF = jax.lax.fori_loop(0, count, body, start)
  return dx_XYD, dw_EDF.astype(w_EDF.dtype), None, None


by_block.defvjp(_by_block, _by_block_gradient)
