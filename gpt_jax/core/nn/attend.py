# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention: the reference that every backend must equal,
with its gradient.

`attend` is the equation; `attend_within`, `attend_with_memory` and
`attend_across` call it with the keys, and the mask, of a request.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.masks import Pattern, Tokens, visible
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.ranges import NotNegative


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  mask: jax.Array,
  scale: float | jax.Array,
  bias: jax.Array | None = None,
  dropout: AttentionDropout | None = None,
  places: tuple[jax.Array, jax.Array] | None = None,
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
    bias: added to the scores, [B or 1, H, L, M].
    dropout: applied to the probabilities.
    places: of queries [L] and keys [M] in their rows, for dropout; None:
      0, 1, 2, ...
    softcap: bound of the scores with their bias: see `Scale`.

  Returns:
    [B, L, H, K], with the K of the values, which may differ.
  """
  # Transposed once, for the products and their gradients.
  k_BGMK, v_BGMK = (x.transpose(0, 2, 1, 3) for x in (k_BMGK, v_BMGK))
  q_BGQK = grouped(q_BLHK, k_BGMK.shape[1])
  products = float32_einsum('BGQK,BGMK->BGQM', q_BGQK, k_BGMK)
  scores_BGQM = scores(products, scale, bias, softcap)
  kept_BGQM, keep = None, 1.0
  if dropout is not None:
    L, M = q_BLHK.shape[1], k_BGMK.shape[2]
    query_L, key_M = places or (jnp.arange(L), jnp.arange(M))
    kept_BHLM = dropout.kept(q_BLHK.shape[2], query_L[None, :, None], key_M[None, None])
    kept_BGQM, keep = kept_BHLM.reshape(scores_BGQM.shape), dropout.keep
  mask = for_groups(mask, scores_BGQM)
  out_BGQK: Any = weighted(scores_BGQM, v_BGMK, mask, kept_BGQM, keep)
  return ungrouped(out_BGQK, q_BLHK.shape)


# What layers ask of a backend.


class ByDistance(NamedTuple):
  """A bias on the scores of whole rows that depends on the distance alone.

  `strip_HD`, float32 [H, 2 L - 1], has a number for each distance, the key's
  place minus the query's, from 1 - L to L - 1.
  """

  strip_HD: jax.Array

  # What a backend calls it that takes it as it is: see `backends.WHY`.
  feature = 'by_distance'

  def whole(self, request: Any) -> jax.Array:
    """The bias of each pair of a request, [1, H, L, L]."""
    del request
    at_L = jnp.arange((self.strip_HD.shape[1] + 1) // 2)
    distance_LL = at_L[None] - at_L[:, None] + at_L[-1]
    return jnp.take(self.strip_HD, distance_LL, axis=1)[None]


class Request(NamedTuple):
  """A request to a backend: attention among the tokens of each row.

  Keys of a memory may precede those of the row's tokens: there are more keys
  than queries then, and masks have one entry for each key. Or, with `keys`,
  attention to the tokens of another text, of which all are visible.

  Attributes:
    pattern: which keys are seen, by their distance or position.
    visibility: masks that differ between rows.
    bias: added to the scores, [B or 1, H, L, M]; or in a form that some
      backends take as it is, with a `feature` and `whole(request)`, as
      `ByDistance`.
    dropout: applied to the probabilities.
    softcap: bound of the scores: see `Scale`.
    layer: its index, on which random blocks depend.
    keys: the data of the other text's tokens; documents are those of the same
      number as in `visibility`.
    places_BL: of the queries among the keys, different in a row; None: those of
      the last keys.
    first: the number of the first query, for dropout.
  """

  q_BLHK: jax.Array
  k_BLGK: jax.Array
  v_BLGK: jax.Array
  pattern: Pattern
  visibility: Visibility
  scale: float | jax.Array
  bias: Any = None
  dropout: AttentionDropout | None = None
  softcap: float = 0.0
  layer: jax.Array | None = None
  keys: Tokens | None = None
  places_BL: jax.Array | None = None
  first: int = 0

  @property
  def num_before(self) -> int:
    """The number of a memory's keys, if the queries follow them in order."""
    if self.keys is not None or self.places_BL is not None:
      return 0
    return self.k_BLGK.shape[1] - self.q_BLHK.shape[1]


# Queries are processed in blocks, each with just the keys it may see. Smaller
# blocks would make the matrix products too small to be fast.
QUERY_BLOCK = 128


def attend_within(request: Request) -> jax.Array:
  """`attend` among the tokens of each row, [B, L, H, K].

  Queries are processed in blocks, without keys that no query of the block may
  see: that saves nearly half of the work for a causal pattern, nearly all of it
  for a `local` window in a long row.
  """
  bias, visibility = request.bias, request.visibility
  assert not hasattr(bias, 'feature')
  assert not request.num_before
  tokens, mask_BLM, out = tokens_of(request), visibility.mask_BLM, []
  for query, key in _blocks(request):
    mask = visible(
      request.pattern,
      tokens.at(query),
      tokens.at(key),
      visibility.prefix_B,
      None if mask_BLM is None else mask_BLM[:, query, key],
    )
    out.append(
      attend(
        request.q_BLHK[:, query],
        request.k_BLGK[:, key],
        request.v_BLGK[:, key],
        mask=mask,
        scale=request.scale,
        bias=None if bias is None else bias[:, :, query, key],
        dropout=request.dropout,
        places=(tokens.places[0, query], tokens.places[0, key]),
        softcap=request.softcap,
      )
    )
  return jnp.concatenate(out, axis=1)


def _blocks(request: Request) -> list[tuple[slice, slice]]:
  """Blocks of queries, each with the keys that any of them may see."""
  pattern, L = request.pattern, request.q_BLHK.shape[1]
  size = max(QUERY_BLOCK, -(-L // 8)) if pattern.causal else L
  if pattern.window is not None:
    # At most the window's size, so that the cost is linear in the length; but
    # not below QUERY_BLOCK, or short windows would give too many blocks.
    size = min(size, max(pattern.window, QUERY_BLOCK))
  ordered = request.visibility.places_1L is None
  if not ordered:
    size = L  # no block of the others is known to be hidden
  back_only = pattern.causal and request.visibility.prefix_B is None
  blocks = []
  for start in range(0, L, size):
    stop = min(start + size, L)
    first, last = 0, stop if back_only else L
    if pattern.window is not None and ordered:
      first = max(start - pattern.window + 1, 0)
    blocks.append((slice(start, stop), slice(first, last)))
  return blocks


def tokens_of(request: Request) -> Tokens:
  """The tokens of each row: see `masks.Tokens`."""
  visibility, L = request.visibility, request.q_BLHK.shape[1]
  places_1L = visibility.places_1L
  if places_1L is None:
    places_1L = jnp.arange(L)[None]
  return Tokens(places_1L, visibility.segments_BL, visibility.key_mask_BM)


def attend_with_memory(request: Request) -> jax.Array:
  """`attend` to a memory and to the tokens of each row, [B, L, H, K].

  Or from places of their own. The request has no documents.
  """
  L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
  visibility, bias = request.visibility, request.bias
  assert visibility.segments_BL is None and visibility.prefix_B is None
  assert not hasattr(bias, 'feature')
  places_BL = request.places_BL
  if places_BL is None:
    places_BL = jnp.arange(M - L, M)[None]
  places_1M = jnp.arange(M)[None]
  mask = visible(
    request.pattern,
    Tokens(places_BL),
    Tokens(places_1M, real=visibility.key_mask_BM),
    given_BLM=visibility.mask_BLM,
  )
  y_BLHK = attend(
    *request[:3],
    mask=mask,
    scale=request.scale,
    bias=bias,
    dropout=request.dropout,
    places=(request.first + jnp.arange(L), places_1M[0]),
    softcap=request.softcap,
  )
  if visibility.mask_BLM is None:
    return y_BLHK
  # The first prediction may see no key: its output is 0, not the mean of all
  # values.
  return jnp.where(jnp.any(mask, axis=2)[..., None, None], y_BLHK, 0)


def attend_across(request: Request) -> jax.Array:
  """`attend` to the tokens of another text, [B, L, H, K]."""
  assert request.keys is not None
  places_1L = jnp.arange(request.q_BLHK.shape[1])[None]
  queries = Tokens(places_1L, segments=request.visibility.segments_BL)
  return attend(
    *request[:3],
    mask=visible(None, queries, request.keys),
    scale=request.scale,
    dropout=request.dropout,
    softcap=request.softcap,
  )


# The parts of `attend`.


def grouped(q_BLHK: jax.Array, num_groups: int) -> jax.Array:
  """[B, G, Q, K]: the queries of the H / G heads that share keys together.

  XLA on CPU would copy the scores if heads were a separate dimension.
  """
  B, L, H, K = q_BLHK.shape
  q_BHLK = q_BLHK.transpose(0, 2, 1, 3)
  return q_BHLK.reshape(B, num_groups, H // num_groups * L, K)


def ungrouped(out_BGQK: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """The inverse of `grouped`: [B, L, H, K]; `shape` has all but K."""
  B, L, H, _ = shape
  return out_BGQK.reshape(B, H, L, -1).transpose(0, 2, 1, 3)


def for_groups(mask: jax.Array, x_BGQN: Any) -> jax.Array:
  """Expands a mask [L, M] or [B, L, M] to [B or 1, 1, Q, M]."""
  L, M = mask.shape[-2:]
  times = x_BGQN.shape[2] // L
  return jnp.tile(mask.reshape(-1, 1, L, M), (1, 1, times, 1))


def scores(
  products_BGQM: Any, scale: float | jax.Array, bias: jax.Array | None, softcap: float
) -> jax.Array:
  """The scores scale * products + bias, softcapped, float32."""
  scores_BGQM = scale * products_BGQM
  if bias is not None:
    bias = bias.astype(jnp.float32).reshape(-1, *scores_BGQM.shape[1:])
    if len(bias) == 1:
      scores_BGQM = plus_shared(scores_BGQM, bias[0])
    else:
      scores_BGQM += bias
  if softcap:
    scores_BGQM = softcap * jnp.tanh(scores_BGQM / softcap)
  return scores_BGQM


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_einsum(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
  """`jnp.einsum` whose result is not rounded to the dtype of its inputs.

  The incoming gradient is rounded to that dtype before the products: those of
  float32 and bfloat16 would not use the matrix units.
  """
  return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _float32_einsum(subscripts, left, right):
  return float32_einsum(subscripts, left, right), (left, right)


def _float32_einsum_gradient(subscripts, inputs, gradient):
  left, right = inputs
  gradient = gradient.astype(left.dtype)
  of_left = jax.linear_transpose(lambda x: jnp.einsum(subscripts, x, right), left)
  of_right = jax.linear_transpose(lambda x: jnp.einsum(subscripts, left, x), right)
  return *of_left(gradient), *of_right(gradient)


float32_einsum.defvjp(_float32_einsum, _float32_einsum_gradient)


# The second half of attention, softmax(scores) v, with its gradient.
#
# The gradient is written by hand: automatic differentiation stores three arrays
# of the scores' size, where one is enough, and takes about twice the time on a
# CPU.


# Not -inf: a query that sees no key (padding) would give nan, which would
# spread through later layers as 0 * nan. Its exponential is exactly zero.
HIDDEN = float(jnp.finfo(jnp.float32).min)


# The name of the residuals of the forward pass, for `jax.checkpoint`.
KEPT = 'softmax'


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted(
  scores_BGQM: jax.Array,
  v_BGMK: jax.Array,
  mask: jax.Array,
  kept_BGQM: jax.Array | None = None,
  keep: float = 1.0,
) -> jax.Array:
  """softmax(scores) v, the probabilities in the dtype of the values.

  Args:
    scores_BGQM: float32, of the queries that share a head of values.
    v_BGMK: values.
    mask: bool, of a shape that broadcasts to the scores': True where a key is
      seen. A query that sees none gets the mean of the values.
    kept_BGQM: bool, the probabilities that dropout keeps; None: all.
    keep: the fraction that it keeps, by which they are divided.

  Returns:
    [B, G, Q, K], of the values' dtype.
  """
  return _forward(scores_BGQM, v_BGMK, mask, kept_BGQM, keep)[0]


def _forward(scores_BGQM, v_BGMK, mask, kept_BGQM, keep):
  scores_BGQM = jnp.where(mask, scores_BGQM, HIDDEN)
  top_BGQ1 = jnp.max(scores_BGQM, axis=-1, keepdims=True)
  exp_BGQM = jnp.exp(scores_BGQM - top_BGQ1)
  share_BGQ1 = 1 / jnp.sum(exp_BGQM, axis=-1, keepdims=True)
  probs_BGQM = _dropped(exp_BGQM, kept_BGQM, keep).astype(v_BGMK.dtype)
  # Divide by the sum last: there are fewer outputs than scores.
  sums_BGQK: Any = float32_einsum('BGQM,BGMK->BGQK', probs_BGQM, v_BGMK)
  out_BGQK = (share_BGQ1 * sums_BGQK).astype(v_BGMK.dtype)
  # The scores of a query that sees nothing have no gradient.
  of_scores_BGQ1 = jnp.where(top_BGQ1 > HIDDEN, share_BGQ1, 0)
  shares = share_BGQ1, of_scores_BGQ1
  exp_BGQM, shares, out_BGQK = checkpoint_name((exp_BGQM, shares, out_BGQK), KEPT)
  return out_BGQK, (exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK)


def _backward(keep, residuals, grad_BGQK):
  """FlashAttention (Dao et al., 2022, appendix B.2).

  sum_m p_m dp_m, which a softmax's gradient needs, is the product of the
  output and its gradient, with dropout too.
  """
  exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK = residuals
  share_BGQ1, of_scores_BGQ1 = shares
  mean_BGQ1 = jnp.sum(grad_BGQK.astype(jnp.float32) * out_BGQK, axis=-1, keepdims=True)
  of_probs_BGQM: Any = float32_einsum('BGQK,BGMK->BGQM', grad_BGQK, v_BGMK)
  of_probs_BGQM = _dropped(of_probs_BGQM, kept_BGQM, keep)
  probs_BGQM = exp_BGQM * share_BGQ1
  probs_BGQM = _dropped(probs_BGQM, kept_BGQM, keep).astype(v_BGMK.dtype)
  of_values_BGMK = jnp.einsum('BGQM,BGQK->BGMK', probs_BGQM, grad_BGQK)
  of_scores_BGQM = exp_BGQM * of_scores_BGQ1 * (of_probs_BGQM - mean_BGQ1)
  return of_scores_BGQM, of_values_BGMK, None, None


weighted.defvjp(_forward, _backward)


def _dropped(x_BGQM: jax.Array, kept_BGQM: jax.Array | None, keep: float) -> jax.Array:
  if kept_BGQM is None:
    return x_BGQM
  return jnp.where(kept_BGQM, x_BGQM / keep, 0)


@jax.custom_vjp
def plus_shared(x_BGQM: jax.Array, shared_GQM: jax.Array) -> jax.Array:
  """The sum; `shared_GQM`, float32, is the same for all rows.

  Its gradient is a sum over rows, computed as a product with ones: on a CPU ten
  times faster than XLA's own sum.
  """
  return x_BGQM + shared_GQM[None]


def _plus_shared(x_BGQM, shared_GQM):
  return plus_shared(x_BGQM, shared_GQM), None


def _of_shared(_, grad_BGQM):
  ones_B = jnp.ones(len(grad_BGQM), grad_BGQM.dtype)
  of_shared_GQM = jnp.einsum('B,BGQM->GQM', ones_B, grad_BGQM, precision=jax.lax.Precision.HIGHEST)
  return grad_BGQM, of_shared_GQM


plus_shared.defvjp(_plus_shared, _of_shared)


# The choices of `model.attention_scale`.


class Scale(NamedTuple):
  """How scores follow from the products of queries and keys.

  Attributes:
    factor: (head size, index of the layer from 0) -> factor of the products.
    softcap: scores s become softcap * tanh(s / softcap), within +- softcap;
      0: unchanged.
  """

  factor: Callable[[int, jax.Array], float | jax.Array]
  softcap: float = 0.0

  def __call__(self, head_size: int, layer: jax.Array) -> float | jax.Array:
    """The factor of a layer."""
    return self.factor(head_size, layer)


def rsqrt(size: NotNegative = 0, softcap: NotNegative = 0.0) -> Scale:
  """1 / sqrt(K) (Vaswani et al., section 3.2.1).

  Args:
    size: instead of the head size K, 1 / sqrt(size) (Gemma 2's
      `query_pre_attn_scalar`); 0: K.
    softcap: see `Scale` (Gemma 2: 50).
  """
  return Scale(lambda head_size, layer: (size or head_size) ** -0.5, softcap)


def none() -> Scale:
  """1 (T5, GPT-Neo)."""
  return Scale(lambda head_size, layer: 1.0)


def by_layer(per_head: bool = True) -> Scale:
  """1 / (layer + 1), layers from 0, on top of 1 / sqrt(K) if `per_head`.

  GPT-2 in Mistral's stable training (`scale_attn_by_inverse_layer_idx`).
  """

  def scale(head_size: int, layer: jax.Array) -> jax.Array:
    return (head_size**-0.5 if per_head else 1.0) / (layer + 1)

  return Scale(scale)
