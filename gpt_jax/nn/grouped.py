# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matrix products of rows that are grouped by expert, none of them dropped.

How many rows an expert gets is known only when the program runs, its shapes
are fixed before. So the rows of each expert fill whole blocks of Y rows: at
most A / Y + E blocks for A rows, whatever the loads. (`jax.lax.ragged_dot`
needs no blocks, but computes every row with every expert on a CPU, and in the
gradient of the weights everywhere.)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox import gmm

from gpt_jax.nn import devices
from gpt_jax.nn.routing import Ranking, Slots, place

# Rows of a block at most. It is also what the TPU's matrix unit takes at once.
BLOCK = 128


class Blocks(NamedTuple):
  """X blocks of Y rows, each of one expert.

  Attributes:
    slots: the place of each assignment among the X Y rows.
    owners_X: the expert of each block.
    count: how many blocks are in use, from the first on; at most X.
    sizes_Z: the rows of all blocks of each expert; then those not in use.
  """

  slots: Slots
  owners_X: jax.Array
  count: jax.Array
  sizes_Z: jax.Array


def block_size(rows: int, num_experts: int) -> int:
  """Rows of a block: `BLOCK`, or fewer where an expert gets fewer."""
  if devices.platform() == 'tpu':
    return BLOCK
  size = BLOCK
  while size > 8 and size * num_experts > rows:
    size //= 2
  return size


def layout(ranking: Ranking, experts_A: jax.Array, size: int) -> Blocks:
  """Blocks of `size` rows for the assignments to experts below E."""
  A, E = len(experts_A), len(ranking.counts_E)
  num_blocks = A // size + E
  blocks_E = -(-ranking.counts_E // size)
  ends_E = jnp.cumsum(blocks_E)
  owners_X = jnp.searchsorted(ends_E, jnp.arange(num_blocks), side='right')
  owners_X = jnp.minimum(owners_X, E - 1).astype(jnp.int32)
  slots = place(
    ranking,
    experts_A,
    owners_S=jnp.repeat(owners_X, size),
    bases_E=(ends_E - blocks_E) * size,
  )
  sizes_Z = jnp.diff(ends_E * size, prepend=0, append=num_blocks * size)
  return Blocks(slots, owners_X, ends_E[-1], sizes_Z.astype(jnp.int32))


def matmul(x_SD: jax.Array, w_EDF: jax.Array, blocks: Blocks) -> jax.Array:
  """Each row times the matrix of its expert: [S, D] to [S, F].

  By a Pallas kernel on a TPU, block by block elsewhere.
  """
  if devices.platform() == 'tpu':
    return by_kernel(x_SD, w_EDF, blocks)
  x_XYD = x_SD.reshape(len(blocks.owners_X), -1, x_SD.shape[-1])
  y_XYF: Any = by_block(x_XYD, w_EDF, blocks.owners_X, blocks.count)
  return y_XYF.reshape(len(x_SD), -1)


def by_kernel(
  x_SD: jax.Array, w_EDF: jax.Array, blocks: Blocks, interpret: bool = False
) -> jax.Array:
  """By the kernels of megablox, which leave out the rows not in use: zero."""
  group_sizes = blocks.sizes_Z  # more than matrices: the rest is zero
  return gmm(x_SD, w_EDF, group_sizes, x_SD.dtype, _tiling, interpret=interpret)


def _tiling(rows: int, inner: int, outer: int) -> tuple[int, int, int]:
  """What a step of the kernel takes of each dimension."""
  del rows
  return BLOCK, min(inner, 512), min(outer, 512)


@jax.custom_vjp
def by_block(
  x_XYD: jax.Array, w_EDF: jax.Array, owners_X: jax.Array, count: jax.Array
) -> jax.Array:
  """Block x times w[owners[x]], for the first `count` blocks; zero after.

  Its gradient is written out, since that of a loop would add a whole array of
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
