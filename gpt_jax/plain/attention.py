# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.layers import dense, dropout
from gpt_jax.plain.positions import not_rotated as rotate
from gpt_jax.plain.positions import sines_then_cosines
from gpt_jax.plain.recipe import (
  ATTENTION_DROPOUT,
  DTYPE,
  HEAD_SIZE,
  NUM_HEADS,
  NUM_KV_HEADS,
  SCORE_BIAS,
  SCORE_SCALE,
)
from gpt_jax.plain.types import Params

HIDDEN = float(jnp.finfo(jnp.float32).min)  # the score of a key that a query does not see


def causal_mask(length: int) -> Array:
  """Which keys each query sees, [L, L]: itself and all before it."""
  return jnp.arange(length)[:, None] >= jnp.arange(length)


def attend(q: Array, k: Array, v: Array, bias: Any, mask: Any, key: Array | None) -> Array:
  """softmax(q k^T scale + bias) v (Vaswani et al., 2017, eq. 1), scores in float32.

  Args:
    q: queries [B, L, heads, K].
    k: keys [B, M, heads, K], as are the values v.
    bias: added to the scores, [heads, L, M].
    mask: which keys each query sees, bool, [L, M] or [B, 1, L, M].
    key: of the dropout.
  """
  scores = jnp.einsum('blhk,bmhk->bhlm', q, k, preferred_element_type=jnp.float32) * SCORE_SCALE
  if SCORE_BIAS:
    scores += bias
  probs = jax.nn.softmax(jnp.where(mask, scores, HIDDEN), axis=-1)
  probs = dropout(probs, ATTENTION_DROPOUT, key)
  y = jnp.einsum('bhlm,bmhk->blhk', probs.astype(DTYPE), v)
  return y.reshape(*y.shape[:2], -1)


def heads(x: Array, number: int) -> Array:
  """[B, L, heads * K] to [B, L, heads, K]."""
  return x.reshape(*x.shape[:2], number, HEAD_SIZE)


def attention(
  x: Array, p: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> Array:
  """Self-attention in several heads (Vaswani et al., 2017, section 3.2.2), [B, L, D]."""
  q = rotate(heads(dense(x, p['query']), NUM_HEADS), positions)
  k = rotate(heads(dense(x, p['key']), NUM_KV_HEADS), positions)
  v = heads(dense(x, p['value']), NUM_KV_HEADS)
  if NUM_KV_HEADS < NUM_HEADS:
    # Each head of keys and values serves several neighbouring heads of queries.
    k, v = (jnp.repeat(y, NUM_HEADS // NUM_KV_HEADS, axis=2) for y in (k, v))
  return dense(attend(q, k, v, bias, mask, key), p['out'])


def cross_attention(x: Array, encoded: Array, p: Params, mask: Any, key: Array | None) -> Array:
  """Queries of the decoder, keys and values of the encoder's output (section 3.2.3)."""
  q = heads(dense(x, p['query']), NUM_HEADS)
  k, v = heads(dense(encoded, p['key']), NUM_HEADS), heads(dense(encoded, p['value']), NUM_HEADS)
  return dense(attend(q, k, v, 0.0, mask, key), p['out'])


def relative_attention(
  x: Array, p: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> Array:
  """Attention by content and by distance (Dai et al., 2019, section 3.3): [B, L, D] to the same.

  score = ((q + u) k + (q + v) W_kR R_(i - j)) * scale: u and v are learned biases, R a wave of
  the distance from query i to key j, and W_kR its projection to the heads.
  """
  B, L, D = x.shape
  q, k, v = (heads(dense(x, p[name]), NUM_HEADS) for name in ('query', 'key', 'value'))
  # Distances L - 1, ..., 0; after the shift of row i by L - 1 - i, column j is key j.
  waves = sines_then_cosines(jnp.arange(L)[::-1], D).astype(DTYPE)
  r = (waves @ p['relative']['kernel'].astype(DTYPE)).reshape(L, NUM_HEADS, HEAD_SIZE)
  query = q + p['position_bias'].astype(DTYPE)
  by_distance = jnp.einsum('blhk,mhk->bhlm', query, r, preferred_element_type=jnp.float32)
  padded = jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (1, 0)))
  shifted = padded.reshape(B, NUM_HEADS, L + 1, L)[:, :, 1:]
  q += p['content_bias'].astype(DTYPE)
  return dense(attend(q, k, v, shifted * SCORE_SCALE, mask, key), p['out'])
