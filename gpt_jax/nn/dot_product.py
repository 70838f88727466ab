# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention: the reference that every backend must equal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.masks import Pattern

# Queries are taken in blocks, each with just the keys it may see: in smaller
# ones the matrix products would be too small to be fast.
QUERY_BLOCK = 128
# Not -inf: a query that sees no key (padding) would give nan, which would
# spread through later layers as 0 * nan. Its exponential is exactly zero.
HIDDEN = float(jnp.finfo(jnp.float32).min)


class Visibility(NamedTuple):
  """What decides, besides the pattern, which keys are seen; None: nothing.

  Attributes:
    key_mask_BM: bool, False for padding.
    segments_BL: int, the document of each token of a packed row; documents do
      not see each other.
  """

  key_mask_BM: jax.Array | None = None
  segments_BL: jax.Array | None = None


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  dropout: nn.Module | None = None,
) -> jax.Array:
  """softmax(scale q k^T + bias) v, the softmax in float32 (Vaswani et al., 1).

  Query head h reads key/value head h // (H / G).

  Args:
    q_BLHK: queries.
    k_BMGK: keys.
    v_BMGK: values.
    mask: bool, [L, M] or [B, L, M], True where a query may see a key.
    scale: of the scores.
    bias: added to the scores, [B or 1, H, L, M].
    dropout: applied to the probabilities.

  Returns:
    [B, L, H, K].
  """
  B, L, H, K = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  R = H // G
  q_BLGRK = (q_BLHK * scale).astype(q_BLHK.dtype).reshape(B, L, G, R, K)
  scores_BGRLM = jnp.einsum('BLGRK,BMGK->BGRLM', q_BLGRK, k_BMGK)
  scores_BGRLM = scores_BGRLM.astype(jnp.float32)
  if bias is not None:
    scores_BGRLM += bias.reshape(-1, G, R, L, M).astype(jnp.float32)
  mask = mask.reshape((-1, 1, 1) + mask.shape[-2:])
  scores_BGRLM = jnp.where(mask, scores_BGRLM, HIDDEN)
  probs_BGRLM = jax.nn.softmax(scores_BGRLM, axis=-1).astype(q_BLHK.dtype)
  if dropout is not None:
    probs_BGRLM = dropout(probs_BGRLM)
  out_BLGRK = jnp.einsum('BGRLM,BMGK->BLGRK', probs_BGRLM, v_BMGK)
  return out_BLGRK.reshape(B, L, H, K)


def attend_within(
  q_BLHK: jax.Array,
  k_BLGK: jax.Array,
  v_BLGK: jax.Array,
  *,
  pattern: Pattern,
  visibility: Visibility,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  dropout: nn.Module | None = None,
) -> jax.Array:
  """`attend` among the tokens of each row.

  The queries are taken in blocks, and keys that no query of a block may see
  are left out: nearly half of the work for a causal pattern, nearly all of it
  for a `local` window in a long row.
  """
  L = q_BLHK.shape[1]
  size = max(QUERY_BLOCK, -(-L // 8)) if pattern.causal else L
  if pattern.window is not None:
    # Of a window's size, so that the cost grows linearly with the length;
    # not smaller, or short windows would make very many blocks.
    size = min(size, max(pattern.window, QUERY_BLOCK))
  out = []
  for start in range(0, L, size):
    stop = min(start + size, L)
    first, last = 0, stop if pattern.causal else L
    if pattern.window is not None:
      first = max(start - pattern.window + 1, 0)
    query, key = slice(start, stop), slice(first, last)
    out.append(
      attend(
        q_BLHK[:, query],
        k_BLGK[:, key],
        v_BLGK[:, key],
        mask=_mask(pattern, visibility, query, key),
        scale=scale,
        bias=None if bias is None else bias[:, :, query, key],
        dropout=dropout,
      )
    )
  return jnp.concatenate(out, axis=1)


def _mask(
  pattern: Pattern, visibility: Visibility, query: slice, key: slice
) -> jax.Array:
  """The mask of a block of queries and a block of keys."""
  rows = jnp.arange(query.start, query.stop)
  columns = jnp.arange(key.start, key.stop)
  mask = pattern.visible(rows[:, None], columns[None, :])
  if visibility.key_mask_BM is not None:
    mask = mask[None] & visibility.key_mask_BM[:, None, key]
  if visibility.segments_BL is not None:
    segments = visibility.segments_BL
    same = segments[:, query, None] == segments[:, None, key]
    mask = (mask if mask.ndim == 3 else mask[None]) & same
  return mask
