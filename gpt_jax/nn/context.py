# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What reaches every layer beside its input: caches, positions, masks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn.dot_product import Visibility


class KVCache(NamedTuple):
  """Keys and values of the positions seen so far; M is the longest length.

  Only the G key/value heads are kept: with multi-query attention one. `cross`
  is for those of the encoder's output. As `attend_to_cache` multiplies them:
  transposed keys, and the heads outside; a step would copy them otherwise.
  """

  key_BGKM: jax.Array
  value_BGMK: jax.Array
  cross: 'KVCache | None' = None

  @property
  def num_slots(self) -> int:
    """M."""
    return self.value_BGMK.shape[-2]

  def written(
    self, positions_BL: jax.Array, key_BLGK: jax.Array, value_BLGK: jax.Array
  ) -> 'KVCache':
    """With keys and values in the slots of their positions."""
    B, _, G, _ = key_BLGK.shape
    # Heads are named, too: the update of a single row would be no scatter, and
    # XLA on CPU copies the cache for what it makes of it.
    rows, heads = jnp.arange(B)[:, None, None], jnp.arange(G)[None, :, None]
    at_BGL = positions_BL[:, None]
    key_BGLK, value_BGLK = key_BLGK.swapaxes(1, 2), value_BLGK.swapaxes(1, 2)
    return self._replace(
      key_BGKM=self.key_BGKM.at[rows, heads, :, at_BGL].set(key_BGLK),
      value_BGMK=self.value_BGMK.at[rows, heads, at_BGL].set(value_BGLK),
    )


def cache_of(key_BMGK: jax.Array, value_BMGK: jax.Array) -> KVCache:
  """A cache that these keys and values fill."""
  return KVCache(
    jnp.einsum('BMGK->BGKM', key_BMGK), jnp.einsum('BMGK->BGMK', value_BMGK)
  )


class SegmentMemory(NamedTuple):
  """What a layer was given in earlier segments, newest last (Dai et al. 2019).

  Its keys and values stand before those of the segment: section 3.2,
  h~ = [SG(m) . h]; no gradient goes back into it.
  `real_BM` says which of them there were; None: all.
  """

  hidden_BMD: jax.Array
  real_BM: jax.Array | None = None

  def real(self) -> jax.Array:
    """Which are seen, [B, M]."""
    if self.real_BM is not None:
      return self.real_BM
    return jnp.ones(self.hidden_BMD.shape[:2], bool)

  def then(self, x_BLD: jax.Array) -> 'SegmentMemory':
    """The memory for the next segment, of the same length."""
    L = x_BLD.shape[1]
    x = x_BLD.astype(self.hidden_BMD.dtype)
    hidden_BMD = jnp.concatenate([self.hidden_BMD, x], axis=1)[:, L:]
    if self.real_BM is None:
      return SegmentMemory(hidden_BMD)
    real = jnp.concatenate([self.real_BM, jnp.ones(x.shape[:2], bool)], axis=1)
    return SegmentMemory(hidden_BMD, real[:, L:])


Cache = KVCache | SegmentMemory


class Context(NamedTuple):
  """What all layers of a stack share; None where there is no such thing.

  Attributes:
    positions_BL: where each token stands; None means 0, 1, 2, ...
    visibility: padding, packed documents, prefixes, whole masks.
    bias: on the scores of self-attention, [B or 1, H, L, M].
    source_BLD: what self-attention makes keys and values from, for queries
      from a second stream; None: from its input.
    table_ND: vectors of distances, for `position.terms`.
    late_BLD: positions that the last layer's queries have: see `late`.
    convolved: what the first layer adds: see `convolution`.
    memory_BMD: the encoder's output, for cross-attention.
    memory_mask_BM: bool, False for padding of `memory_BMD`.
    memory_segments_BM: int, the text of each of its tokens where rows are
      packed: a token sees those of its own segment only.
    token_types_BL: of the tokens, where a layer asks for them (XLNet).
    asked_BP: int, where the last P tokens of each row stand among the others,
      which alone are keys: these ask only (XLNet's query stream).
    relative_biases: u and v [H, K] of Transformer-XL, where layers share them.
  """

  positions_BL: jax.Array | None = None
  visibility: Visibility = Visibility()
  bias: jax.Array | None = None
  source_BLD: jax.Array | None = None
  table_ND: jax.Array | None = None
  late_BLD: jax.Array | None = None
  convolved: Any = None
  memory_BMD: jax.Array | None = None
  memory_mask_BM: jax.Array | None = None
  memory_segments_BM: jax.Array | None = None
  token_types_BL: jax.Array | None = None
  asked_BP: jax.Array | None = None
  relative_biases: tuple[jax.Array, jax.Array] | None = None

  def positions(self, length: int) -> jax.Array:
    """Positions of a row's tokens, [B or 1, L]."""
    if self.positions_BL is not None:
      return self.positions_BL
    if self.asked_BP is None:
      return jnp.arange(length)[None]
    B, P = self.asked_BP.shape
    read_BL = jnp.broadcast_to(jnp.arange(length - P)[None], (B, length - P))
    return jnp.concatenate([read_BL, self.asked_BP], axis=1)

  def keys(self, x_BLD: jax.Array) -> jax.Array:
    """The tokens of a row that are keys."""
    asked = 0 if self.asked_BP is None else self.asked_BP.shape[1]
    return x_BLD[:, : x_BLD.shape[1] - asked]
