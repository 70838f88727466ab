# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of several segments, each with the memory of those before it.

Transformer-XL (Dai et al. 2019, section 3.2) reads a text segment by segment:
h~ = [SG(m) . h], where m are the states that the layer was given before. It
keeps m from one step of training to the next. Here a row holds the segments, so
that a step depends on its rows alone. What a layer is given of all of them is
there at once: they are attended to side by side, as further rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.context import Cache, Context, KVCache, SegmentMemory
from gpt_jax.nn.masks import Pattern
from gpt_jax.nn.positions import Position
from gpt_jax.spec import UsageError


class Parts(NamedTuple):
  """The segments of all rows, as rows: N = B * number of segments."""

  q_NLHK: jax.Array
  x_NLD: jax.Array
  memory: SegmentMemory


def several(position: Position, length: int, cache: Cache | None) -> bool:
  """Whether rows of `length` tokens are more than one segment.

  Caches of keys and values hold tokens, not segments: see `reaches`.
  """
  whole = not position.segment_length or length <= position.segment_length
  return not (whole or isinstance(cache, KVCache))


def split(
  position: Position,
  q_BLHK: jax.Array,
  x_BLD: jax.Array,
  context: Context,
  memory: SegmentMemory | None,
) -> Parts:
  """Queries and inputs of a layer, cut; the last segment is filled with zeros.

  Args:
    position: has the length of a segment, and how many of the layer's inputs
      before each it sees, `memory`.
    q_BLHK: of whole rows.
    x_BLD: see above.
    context: has neither positions nor masks.
    memory: of what stands before the rows; None: nothing does.

  Raises:
    UsageError: the rows are packed, padded or masked.
  """
  if context.positions_BL is not None or any(
    x is not None for x in context.visibility
  ):
    raise UsageError(
      'model.position=transformer_xl(segment=...): cuts rows that are one text '
      "from end to end; set data.rows='stream', or leave segment out"
    )
  size, (B, L, D) = position.segment_length, x_BLD.shape
  number = -(-L // size)
  if memory is None:
    blank = jnp.zeros((B, position.memory, D), x_BLD.dtype)
    memory = SegmentMemory(blank, jnp.zeros(blank.shape[:2], bool))
  hidden_BMD, real_BM = memory.hidden_BMD, memory.real()
  M, N = hidden_BMD.shape[1], B * number
  x_BLD = _filled(x_BLD, number * size)
  before = jnp.concatenate([hidden_BMD.astype(x_BLD.dtype), x_BLD], axis=1)
  real = jnp.concatenate([real_BM, jnp.ones(x_BLD.shape[:2], bool)], axis=1)
  at_SM = jnp.arange(number)[:, None] * size + jnp.arange(M)[None]
  hidden_BSMD = jnp.take(jax.lax.stop_gradient(before), at_SM, axis=1)
  return Parts(
    _filled(q_BLHK, number * size).reshape(N, size, *q_BLHK.shape[2:]),
    x_BLD.reshape(N, size, D),
    SegmentMemory(
      hidden_BSMD.reshape(N, M, D),
      jnp.take(real, at_SM, axis=1).reshape(N, M),
    ),
  )


def joined(y_NLHK: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """The way back from `split`, to [B, L, H, K]."""
  B, L = shape[:2]
  return y_NLHK.reshape(B, -1, *shape[2:])[:, :L]


def reaches(
  position: Position, query: jax.Array, key: jax.Array
) -> jax.Array | bool:
  """Whether a key is of the query's segment, or of the memory of that.

  With this mask a row that is read at once, or token by token, is one that is
  read by segments: only gradients differ.

  Args:
    position: see `split`.
    query: positions in the row, as is `key`; they broadcast.
    key: see above.
  """
  size = position.segment_length
  if not size:
    return True
  return key >= query // size * size - position.memory


def num_visible(
  position: Position, pattern: Pattern, length: int
) -> np.ndarray:
  """How many keys each token of a row sees, int64 [length].

  Args:
    position: see `split`.
    pattern: of the layer; where it has a rule, no fewer than these.
    length: of the row.
  """
  seen = pattern.num_visible(length)
  size = position.segment_length
  if not size:
    return seen
  query = np.arange(length, dtype=np.int64)
  before = query // size * size
  memory = np.minimum(position.memory, before)
  return np.minimum(seen, query - before + 1 + memory)


def _filled(x: jax.Array, length: int) -> jax.Array:
  """With zeros after [B, L, ...]."""
  more = length - x.shape[1]
  return jnp.pad(x, [(0, 0), (0, more), *[(0, 0)] * (x.ndim - 2)])
