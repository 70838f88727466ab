# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention: the reference that every backend must equal."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.masks import Pattern
from gpt_jax.nn.seen import Tokens, seen

# Queries are taken in blocks, each with just the keys it may see: in smaller
# ones the matrix products would be too small to be fast.
QUERY_BLOCK = 128
# Not -inf: a query that sees no key (padding) would give nan, which would
# spread through later layers as 0 * nan. Its exponential is exactly zero.
HIDDEN = float(jnp.finfo(jnp.float32).min)


class Visibility(NamedTuple):
  """What decides, row by row, which keys are seen; None: nothing does.

  All but the prefix hide keys that the pattern shows.

  Attributes:
    key_mask_BM: bool, False for padding.
    segments_BL: int, the document of each token of a packed row; documents do
      not see each other.
    prefix_B: int, how many tokens at the start of a row see each other both
      ways, whatever the pattern says of later ones (a prefix LM).
    visible_BLM: bool, whether a token sees a key.
    places_1L: int, where each token stands in its row, [1, L]; None: they are
      in order. The others are in the tokens' order, too.
  """

  key_mask_BM: jax.Array | None = None
  segments_BL: jax.Array | None = None
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None
  places_1L: jax.Array | None = None

  @property
  def uneven(self) -> bool:
    """Whether rows have more than padding and packed documents."""
    return self.prefix_B is not None or self.visible_BLM is not None


class Request(NamedTuple):
  """What is asked of a backend: attention among the tokens of each row.

  Attributes:
    q_BLHK: queries.
    k_BLGK: keys.
    v_BLGK: values.
    pattern: which keys are seen, by their distance or position.
    visibility: what differs between rows.
    scale: of the scores.
    bias: added to the scores, [B or 1, H, L, L].
    dropout: applied to the probabilities.
    positions_BL: where each token stands in its document, [B or 1, L]; None:
      counted from the start of the row, or of the packed document.
    softcap: bound of the scores: see `scales.Scale`.
    layer: its index, on which random blocks depend.
  """

  q_BLHK: jax.Array
  k_BLGK: jax.Array
  v_BLGK: jax.Array
  pattern: Pattern
  visibility: Visibility
  scale: float | jax.Array
  bias: jax.Array | None = None
  dropout: nn.Module | None = None
  positions_BL: jax.Array | None = None
  softcap: float = 0.0
  layer: jax.Array | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_einsum(
  subscripts: str, left: jax.Array, right: jax.Array
) -> jax.Array:
  """`jnp.einsum` whose result is not rounded to the dtype of its inputs.

  Its gradient is rounded to it before it is multiplied on: products of float32
  and bfloat16 would leave the matrix units.
  """
  return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _float32_einsum(subscripts, left, right):
  return float32_einsum(subscripts, left, right), (left, right)


def _float32_einsum_gradient(subscripts, inputs, gradient):
  left, right = inputs
  gradient = gradient.astype(left.dtype)
  of_left = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, x, right), left
  )
  of_right = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, left, x), right
  )
  return *of_left(gradient), *of_right(gradient)


float32_einsum.defvjp(_float32_einsum, _float32_einsum_gradient)


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  dropout: nn.Module | None = None,
  softcap: float = 0.0,
) -> jax.Array:
  """softmax(scale q k^T + bias) v (Vaswani et al., equation 1).

  Scores and softmax are float32, whatever the queries and keys are. Query head
  h reads key/value head h // (H / G).

  Args:
    q_BLHK: queries.
    k_BMGK: keys.
    v_BMGK: values.
    mask: bool, [L, M] or [B, L, M], True where a query may see a key.
    scale: of the scores.
    bias: added to the scores, [B or 1, H, L, M].
    dropout: applied to the probabilities.
    softcap: bound of the scores with their bias: see `scales.Scale`.

  Returns:
    [B, L, H, K], K being that of the values, which may be another.
  """
  B, L, H, K = q_BLHK.shape
  G = k_BMGK.shape[2]
  R = H // G
  q_BLGRK = q_BLHK.reshape(B, L, G, R, K)
  products = float32_einsum('BLGRK,BMGK->BGRLM', q_BLGRK, k_BMGK)
  probs_BGRLM = _probabilities(products, mask, scale, bias, softcap)
  probs_BGRLM = probs_BGRLM.astype(q_BLHK.dtype)
  if dropout is not None:
    probs_BGRLM = dropout(probs_BGRLM)
  out_BLGRK = jnp.einsum('BGRLM,BMGK->BLGRK', probs_BGRLM, v_BMGK)
  return out_BLGRK.reshape(B, L, H, -1)


def attend_to_cache(
  q_BLHK: jax.Array,
  k_BGKM: jax.Array,
  v_BGMK: jax.Array,
  *,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  softcap: float = 0.0,
) -> jax.Array:
  """`attend` with keys and values as `KVCache` has them."""
  B, L, H, K = q_BLHK.shape
  G = v_BGMK.shape[1]
  # The queries are transposed, which are few, rather than scores or a cache.
  q_BGRLK = q_BLHK.reshape(B, L, G, H // G, K).transpose(0, 2, 3, 1, 4)
  products = float32_einsum('BGRLK,BGKM->BGRLM', q_BGRLK, k_BGKM)
  probs_BGRLM = _probabilities(products, mask, scale, bias, softcap)
  probs_BGRLM = probs_BGRLM.astype(q_BLHK.dtype)
  out_BGRLK = jnp.einsum('BGRLM,BGMK->BGRLK', probs_BGRLM, v_BGMK)
  return out_BGRLK.transpose(0, 3, 1, 2, 4).reshape(B, L, H, -1)


def _probabilities(
  products_BGRLM: Any,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None,
  softcap: float,
) -> jax.Array:
  """softmax(scale * products + bias) of what is seen, float32."""
  scores_BGRLM = scale * products_BGRLM
  if bias is not None:
    shape = (-1, *scores_BGRLM.shape[1:])
    scores_BGRLM += bias.reshape(shape).astype(jnp.float32)
  if softcap:
    scores_BGRLM = softcap * jnp.tanh(scores_BGRLM / softcap)
  mask = mask.reshape((-1, 1, 1) + mask.shape[-2:])
  scores_BGRLM = jnp.where(mask, scores_BGRLM, HIDDEN)
  return jax.nn.softmax(scores_BGRLM, axis=-1)


def attend_within(request: Request) -> jax.Array:
  """`attend` among the tokens of each row, [B, L, H, K].

  The queries are taken in blocks, and keys that no query of a block may see
  are left out: nearly half of the work for a causal pattern, nearly all of it
  for a `local` window in a long row.
  """
  pattern, L = request.pattern, request.q_BLHK.shape[1]
  tokens, visibility = tokens_of(request), request.visibility
  ordered = visibility.places_1L is None
  size = max(QUERY_BLOCK, -(-L // 8)) if pattern.causal else L
  if pattern.window is not None:
    # Of a window's size, so that the cost grows linearly with the length;
    # not smaller, or short windows would make very many blocks.
    size = min(size, max(pattern.window, QUERY_BLOCK))
  if not ordered:
    size = L  # no block of the others is known to be hidden
  out = []
  for start in range(0, L, size):
    stop = min(start + size, L)
    back_only = pattern.causal and visibility.prefix_B is None
    first, last = 0, stop if back_only else L
    if pattern.window is not None and ordered:
      first = max(start - pattern.window + 1, 0)
    query, key = slice(start, stop), slice(first, last)
    visible_BLM = visibility.visible_BLM
    if visible_BLM is not None:
      visible_BLM = visible_BLM[:, query, key]
    of_query, of_key = tokens.at(query), tokens.at(key)
    mask = seen(pattern, of_query, of_key, visibility.prefix_B, visible_BLM)
    out.append(
      attend(
        request.q_BLHK[:, query],
        request.k_BLGK[:, key],
        request.v_BLGK[:, key],
        mask=mask,
        scale=request.scale,
        bias=None if request.bias is None else request.bias[:, :, query, key],
        dropout=request.dropout,
        softcap=request.softcap,
      )
    )
  return jnp.concatenate(out, axis=1)


def tokens_of(request: Request) -> Tokens:
  """What is known of the tokens of each row."""
  visibility, L = request.visibility, request.q_BLHK.shape[1]
  places_1L = visibility.places_1L
  if places_1L is None:
    places_1L = jnp.arange(L)[None]
  positions_BL = None
  if request.pattern.rule is not None:
    positions_BL = _positions(request, places_1L)
  mask_BL = visibility.key_mask_BM
  return Tokens(places_1L, positions_BL, visibility.segments_BL, mask_BL)


def _positions(request: Request, places_1L: jax.Array) -> jax.Array:
  """Positions of the tokens in their documents, [B or 1, L]."""
  if request.positions_BL is not None:
    return request.positions_BL
  segments_BL = request.visibility.segments_BL
  if segments_BL is None:
    return places_1L
  assert request.visibility.places_1L is None, 'see `zigzag`'
  starts_BL = jnp.diff(segments_BL, axis=1, prepend=segments_BL[:, :1]) != 0
  return places_1L - jax.lax.cummax(jnp.where(starts_BL, places_1L, 0), axis=1)
