# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal self-attention over heads, with a cache for decoding."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.masks import Pattern


class KVCache(NamedTuple):
  """Keys and values of the positions seen so far; M is the longest length."""

  key_BMGK: jax.Array
  value_BMGK: jax.Array


# Queries are taken in blocks, each with just the keys it may see: in smaller
# ones the matrix products would be too small to be fast.
QUERY_BLOCK = 128


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  mask: jax.Array,
  dropout: nn.Module | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(K)) v, the softmax in float32 (Vaswani et al., eq. 1).

  Query head h reads key/value head h // (H / G).

  Args:
    q_BLHK: queries.
    k_BMGK: keys.
    v_BMGK: values.
    mask: bool, [L, M] or [B, L, M], True where a query may see a key. Each
      query must see at least one.
    dropout: applied to the probabilities.

  Returns:
    [B, L, H, K].
  """
  B, L, H, K = q_BLHK.shape
  G = k_BMGK.shape[2]
  q_BLGRK = q_BLHK.reshape(B, L, G, H // G, K) * K**-0.5
  scores_BGRLM = jnp.einsum('BLGRK,BMGK->BGRLM', q_BLGRK, k_BMGK)
  mask = mask.reshape((-1, 1, 1) + mask.shape[-2:])
  scores_BGRLM = jnp.where(mask, scores_BGRLM.astype(jnp.float32), -jnp.inf)
  probs_BGRLM = jax.nn.softmax(scores_BGRLM, axis=-1).astype(q_BLHK.dtype)
  if dropout is not None:
    probs_BGRLM = dropout(probs_BGRLM)
  out_BLGRK = jnp.einsum('BGRLM,BMGK->BLGRK', probs_BGRLM, v_BMGK)
  return out_BLGRK.reshape(B, L, H, K)


def attend_causally(
  q_BLHK: jax.Array,
  k_BLGK: jax.Array,
  v_BLGK: jax.Array,
  *,
  pattern: Pattern,
  dropout: nn.Module | None = None,
) -> jax.Array:
  """`attend` within rows whose positions are 0, 1, 2, ...

  The queries are taken in blocks, and keys that no query of a block may see
  are left out: a quarter to half of the work for `full`, nearly all of it for
  a `local` window in a long row.
  """
  L = q_BLHK.shape[1]
  size = max(QUERY_BLOCK, -(-L // 8))
  if pattern.window is not None:
    size = min(size, pattern.window)
  out = []
  for start in range(0, L, size):
    stop = min(start + size, L)
    first = 0
    if pattern.window is not None:
      first = max(start - pattern.window + 1, 0)
    query, key = jnp.arange(start, stop), jnp.arange(first, stop)
    out.append(
      attend(
        q_BLHK[:, start:stop],
        k_BLGK[:, first:stop],
        v_BLGK[:, first:stop],
        mask=pattern.visible(query[:, None], key[None, :]),
        dropout=dropout,
      )
    )
  return jnp.concatenate(out, axis=1)


class Attention(nn.Module):
  """Projects to queries, keys and values, attends, projects back."""

  pattern: Pattern
  num_heads: int
  num_kv_heads: int
  head_size: int
  bias: bool
  dropout: float
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    positions_BL: jax.Array | None,
    cache: KVCache | None,
  ) -> tuple[jax.Array, KVCache | None]:
    """Attends within `x_BLD`, or, with a cache, to all that it holds.

    Args:
      x_BLD: the block's input.
      positions_BL: where each token stands; None means 0, 1, 2, ...
      cache: written at `positions_BL`, then read as a whole.

    Returns:
      [B, L, D] and the cache with the new keys and values.
    """
    B, L, D = x_BLD.shape
    H, G, K = self.num_heads, self.num_kv_heads, self.head_size
    dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype)
    project = functools.partial(dense, initializer=self.inits.kernel)
    q_BLHK = project(H * K, ('embed', 'heads'), name='query')(x_BLD)
    k_BLGK = project(G * K, ('embed', 'kv_heads'), name='key')(x_BLD)
    v_BLGK = project(G * K, ('embed', 'kv_heads'), name='value')(x_BLD)
    q_BLHK = q_BLHK.reshape(B, L, H, K)
    k_BLGK = k_BLGK.reshape(B, L, G, K)
    v_BLGK = v_BLGK.reshape(B, L, G, K)

    dropout = None
    if self.dropout and self.has_rng('dropout'):
      dropout = nn.Dropout(self.dropout, deterministic=False)
    if cache is None:
      y_BLHK = attend_causally(
        q_BLHK, k_BLGK, v_BLGK, pattern=self.pattern, dropout=dropout
      )
    else:
      assert positions_BL is not None
      rows = jnp.arange(B)[:, None]
      cache = KVCache(
        cache.key_BMGK.at[rows, positions_BL].set(k_BLGK),
        cache.value_BMGK.at[rows, positions_BL].set(v_BLGK),
      )
      # Slots past the newest token hold padding or zeros: they are later
      # than every query, so that the causal mask hides them.
      slots = jnp.arange(cache.key_BMGK.shape[1])
      mask = self.pattern.visible(
        positions_BL[:, :, None], slots[None, None, :]
      )
      y_BLHK = attend(q_BLHK, *cache, mask=mask, dropout=dropout)
    y_BLD = dense(
      D, ('heads', 'embed'), initializer=self.inits.residual, name='out'
    )(y_BLHK.reshape(B, L, H * K))
    return y_BLD, cache
