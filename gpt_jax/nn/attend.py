# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, its masks and context, caches and memories.

This is the reference that every backend must equal, with its gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.nn import layout
from gpt_jax.nn.attention_dropout import AttentionDropout
from gpt_jax.nn.masks import Order, Pattern, Tokens, bidirectional, visible
from gpt_jax.ranges import NotNegative


class Visibility(NamedTuple):
  """Row-dependent visibility of keys; None where unused.

  All fields but the prefix hide keys that the pattern shows.

  Attributes:
    key_mask_BM: bool, False for padding.
    segments_BL: int, the document of each token of a packed row; documents do
      not see each other.
    prefix_B: int, number of tokens at the start of a row that see each other
      both ways, even if the pattern is causal (a prefix LM).
    visible_BLM: bool, whether a token sees a key.
    places_1L: int, the place of each token in its row, [1, L]; None: they are
      in order. The other fields follow the tokens' order.
    order: a mask by numbers of queries and keys.
  """

  key_mask_BM: jax.Array | None = None
  segments_BL: jax.Array | None = None
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None
  places_1L: jax.Array | None = None
  order: Order | None = None

  @property
  def uneven(self) -> bool:
    """Whether a prefix, a mask `visible_BLM` or an order is given."""
    given = self.prefix_B, self.visible_BLM, self.order
    return any(x is not None for x in given)

  @property
  def given_BLM(self) -> jax.Array | None:
    """The mask that is given, or given by an order."""
    if self.order is None:
      return self.visible_BLM
    assert self.visible_BLM is None
    return self.order.visible()

  def of_queries(self, part: slice) -> 'Visibility':
    """The visibility of keys from some of the queries."""
    visible_BLM, order = self.visible_BLM, self.order
    if visible_BLM is not None:
      visible_BLM = visible_BLM[:, part]
    if order is not None:
      order = order._replace(bounds_BL=order.bounds_BL[:, part])
    return self._replace(visible_BLM=visible_BLM, order=order)


class KVCache(NamedTuple):
  """Keys and values of the positions seen so far; M is the longest length.

  Only the G key/value heads are kept: one head with multi-query attention.
  `cross` holds the keys and values of the encoder's output. The layout is the
  one that the products in `attend_to_cache` read, with transposed keys and
  heads before slots: otherwise each step would copy them. `seen_N` numbers the
  first N slots, if the new tokens are to attend to no others: an array, since a
  cache is an argument of compiled programs.
  """

  key_BGKM: jax.Array
  value_BGMK: jax.Array
  cross: 'KVCache | None' = None
  seen_N: jax.Array | None = None

  @property
  def num_slots(self) -> int:
    """Slots that new tokens attend to, at most M."""
    if self.seen_N is not None:
      return len(self.seen_N)
    return self.value_BGMK.shape[-2]

  def keys_and_values(self) -> tuple[jax.Array, jax.Array]:
    """Those of the slots that new tokens attend to."""
    N = self.num_slots
    return self.key_BGKM[..., :N], self.value_BGMK[..., :N, :]

  def written(
    self, positions_BL: jax.Array, key_BLGK: jax.Array, value_BLGK: jax.Array
  ) -> 'KVCache':
    """The cache with keys and values in the slots of their positions."""
    B, _, G, _ = key_BLGK.shape
    # Heads are indexed too: otherwise the update of a single row would not be
    # a scatter, and XLA on CPU would copy the cache.
    rows, heads = jnp.arange(B)[:, None, None], jnp.arange(G)[None, :, None]
    at_BGL = positions_BL[:, None]
    key_BGLK, value_BGLK = key_BLGK.swapaxes(1, 2), value_BLGK.swapaxes(1, 2)
    return self._replace(
      key_BGKM=self.key_BGKM.at[rows, heads, :, at_BGL].set(key_BGLK),
      value_BGMK=self.value_BGMK.at[rows, heads, at_BGL].set(value_BGLK),
    )


def cache_of(key_BMGK: jax.Array, value_BMGK: jax.Array) -> KVCache:
  """A cache filled with these keys and values."""
  return KVCache(
    jnp.einsum('BMGK->BGKM', key_BMGK), jnp.einsum('BMGK->BGMK', value_BMGK)
  )


class SegmentMemory(NamedTuple):
  """Inputs of a layer in earlier segments, newest last (Dai et al. 2019).

  Its keys and values precede those of the segment: section 3.2,
  h~ = [SG(m) . h]; no gradient flows into it. `real_BM` is the mask of real
  entries; None: all are.
  """

  hidden_BMD: jax.Array
  real_BM: jax.Array | None = None

  def real(self) -> jax.Array:
    """The mask of real entries, [B, M]."""
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


class LstmState(NamedTuple):
  """What an LSTM carries from token to token.

  `cross` is for the encoder's output, in a layer that attends to it: one head.
  """

  hidden_BP: jax.Array
  cell_BS: jax.Array  # float32
  cross: KVCache | None = None


Cache = KVCache | SegmentMemory | LstmState


class ByDistance(NamedTuple):
  """A bias on the scores of whole rows that depends on the distance alone.

  `strip_HD`, float32 [H, 2 L - 1], has a number for each distance, the key's
  place minus the query's, from 1 - L to L - 1.
  """

  strip_HD: jax.Array

  def whole(self) -> jax.Array:
    """The bias of each pair, [1, H, L, L]."""
    at_L = jnp.arange((self.strip_HD.shape[1] + 1) // 2)
    distance_LL = at_L[None] - at_L[:, None] + at_L[-1]
    return jnp.take(self.strip_HD, distance_LL, axis=1)[None]


class Products(NamedTuple):
  """Products with vectors of distances.

  Attributes:
    x_BLHK: a vector of each query, or of each key.
    table_NHK: a vector of each distance, the key's place minus the query's.
      Vector n is for the distance n + 1 - M, for M keys; N is M + L - 1, or M
      if no query sees a later key.
  """

  x_BLHK: jax.Array
  table_NHK: jax.Array

  def in_order(self, num_columns: int) -> jax.Array:
    """The products of each x with the distances to all others, [B, H, L, M].

    Args:
      num_columns: M. The x stand where the last L of them do.
    """
    products: jax.Array = float32_einsum('BLHK,NHK->BHLN', *self)
    return moved_left(products)[..., :num_columns]

  def at(self, places_BL: jax.Array, num_keys: int) -> jax.Array:
    """The products of each x at a place among the keys, [B, H, L, M]."""
    products: jax.Array = float32_einsum('BLHK,NHK->BHLN', *self)
    first_BL = num_keys - 1 - places_BL
    index_BLM = first_BL[..., None] + jnp.arange(num_keys)[None, None]
    return jnp.take_along_axis(products, index_BLM[:, None], axis=-1)


class ByKind(NamedTuple):
  """Numbers of a query for keys of its own kind and for all others.

  Attributes:
    numbers_BHLS: float32 [B, H, L, 2].
    of_queries_BL: int, the queries' kinds.
    of_keys_BM: int, the keys'.
  """

  numbers_BHLS: jax.Array
  of_queries_BL: jax.Array
  of_keys_BM: jax.Array

  def whole(self) -> jax.Array:
    """The number of each pair, [B, H, L, M]."""
    other_BLM = self.of_queries_BL[:, :, None] != self.of_keys_BM[:, None]
    same_BHL1, other_BHL1 = jnp.split(self.numbers_BHLS, 2, axis=-1)
    return jnp.where(other_BLM[:, None], other_BHL1, same_BHL1)

  def of_some(self, part: slice) -> 'ByKind':
    """The numbers of some queries."""
    return self._replace(
      numbers_BHLS=self.numbers_BHLS[:, :, part],
      of_queries_BL=self.of_queries_BL[:, part],
    )


class DistanceProducts(NamedTuple):
  """A bias on the scores: products with vectors of distances.

  Query i and key j have scale * (x_i r_(j - i) + y_j s_(j - i) + n_ij), with
  the scale of the scores. The queries stand where the last L keys do, or at the
  places of their request.

  Attributes:
    of_queries: x and r; None: zero.
    of_keys: y and s; None: zero.
    by_kind: n; None: zero.
  """

  of_queries: Products | None = None
  of_keys: Products | None = None
  by_kind: ByKind | None = None

  def of_some(self, part: slice) -> 'DistanceProducts':
    """The bias of some queries, if keys have no products of their own."""
    given, kinds = self.of_queries, self.by_kind
    assert given is not None and self.of_keys is None
    return DistanceProducts(
      given._replace(x_BLHK=given.x_BLHK[:, part]),
      by_kind=None if kinds is None else kinds.of_some(part),
    )

  def whole(self, request: 'Request') -> jax.Array:
    """The bias of each pair of a request, [B, H, L, M]."""
    L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
    parts = []
    if self.of_queries is not None:
      if request.places_BL is None:
        parts.append(self.of_queries.in_order(M))
      else:
        parts.append(self.of_queries.at(request.places_BL, M))
    if self.of_keys is not None:
      x_BMHK, table_NHK = self.of_keys
      # From a key's side, distances have the opposite sign.
      of_keys = Products(x_BMHK, table_NHK[::-1]).in_order(L)
      parts.append(jnp.swapaxes(of_keys, -1, -2))
    if self.by_kind is not None:
      parts.append(self.by_kind.whole())
    return functools.reduce(jnp.add, parts) * request.scale


def moved_left(x_BHLN: jax.Array) -> jax.Array:
  """Shifts row i left by L - 1 - i: from distances to keys.

  Of N = M distances M - 1, ..., 1, 0 column j becomes that of key j from query
  M - L + i; what wraps around is later, and hidden. Of N = M + L - 1 distances
  M - 1, ..., 1 - L column j < M does, and nothing that is read wraps around.
  """
  B, H, L, N = x_BHLN.shape
  x = jnp.pad(x_BHLN, ((0, 0), (0, 0), (0, 0), (1, 0)))
  return x.reshape(B, H, N + 1, L)[:, :, 1:].reshape(B, H, L, N)


class Context(NamedTuple):
  """Inputs shared by all layers of a stack; None where unused.

  Attributes:
    positions_BL: position of each token; None means 0, 1, 2, ...
    visibility: padding, packed documents, prefixes, whole masks.
    bias: on the scores of self-attention, [B or 1, H, L, M], or by distance
      where the backend takes it so.
    source_BLD: input of self-attention's keys and values, if queries are from a
      second stream; None: the layer's input.
    shared: the output of `Position.shared`.
    memory_BMD: the encoder's output, for cross-attention.
    memory_mask_BM: bool, False for padding of `memory_BMD`.
    memory_segments_BM: int, the text of each of its tokens where rows are
      packed: a token sees those of its own segment only.
    token_types_BL: of the tokens, if layers need them (XLNet).
    predicted_BP: int, places of the last P tokens of each row among the others;
      they are queries only, never keys (XLNet's query stream).
    cuts_BL: bool, no gradient passes from a token to the recurrent state before
      it.
  """

  positions_BL: jax.Array | None = None
  visibility: Visibility = Visibility()
  bias: jax.Array | ByDistance | None = None
  source_BLD: jax.Array | None = None
  shared: Any = None
  memory_BMD: jax.Array | None = None
  memory_mask_BM: jax.Array | None = None
  memory_segments_BM: jax.Array | None = None
  token_types_BL: jax.Array | None = None
  predicted_BP: jax.Array | None = None
  cuts_BL: jax.Array | None = None

  def positions(self, length: int) -> jax.Array:
    """Positions of a row's tokens, [B or 1, L]."""
    if self.positions_BL is not None:
      return self.positions_BL
    if self.predicted_BP is None:
      return jnp.arange(length)[None]
    B, P = self.predicted_BP.shape
    read_BL = jnp.broadcast_to(jnp.arange(length - P)[None], (B, length - P))
    return jnp.concatenate([read_BL, self.predicted_BP], axis=1)

  def keys(self, x_BLD: jax.Array) -> jax.Array:
    """The part of a row that gives keys, without a query stream."""
    number = 0 if self.predicted_BP is None else self.predicted_BP.shape[1]
    return x_BLD[:, : x_BLD.shape[1] - number]


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_einsum(
  subscripts: str, left: jax.Array, right: jax.Array
) -> jax.Array:
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
  of_left = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, x, right), left
  )
  of_right = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, left, x), right
  )
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
  exp_BGQM, shares, out_BGQK = checkpoint_name(
    (exp_BGQM, shares, out_BGQK), KEPT
  )
  return out_BGQK, (exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK)


def _backward(keep, residuals, grad_BGQK):
  """FlashAttention (Dao et al., 2022, appendix B.2).

  sum_m p_m dp_m, which a softmax's gradient needs, is the product of the
  output and its gradient, with dropout too.
  """
  exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK = residuals
  share_BGQ1, of_scores_BGQ1 = shares
  mean_BGQ1 = jnp.sum(
    grad_BGQK.astype(jnp.float32) * out_BGQK, axis=-1, keepdims=True
  )
  of_probs_BGQM: Any = float32_einsum('BGQK,BGMK->BGQM', grad_BGQK, v_BGMK)
  of_probs_BGQM = _dropped(of_probs_BGQM, kept_BGQM, keep)
  probs_BGQM = exp_BGQM * share_BGQ1
  probs_BGQM = _dropped(probs_BGQM, kept_BGQM, keep).astype(v_BGMK.dtype)
  of_values_BGMK = jnp.einsum('BGQM,BGQK->BGMK', probs_BGQM, grad_BGQK)
  of_scores_BGQM = exp_BGQM * of_scores_BGQ1 * (of_probs_BGQM - mean_BGQ1)
  return of_scores_BGQM, of_values_BGMK, None, None


weighted.defvjp(_forward, _backward)


def _dropped(
  x_BGQM: jax.Array, kept_BGQM: jax.Array | None, keep: float
) -> jax.Array:
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
  of_shared_GQM = jnp.einsum(
    'B,BGQM->GQM', ones_B, grad_BGQM, precision=jax.lax.Precision.HIGHEST
  )
  return grad_BGQM, of_shared_GQM


plus_shared.defvjp(_plus_shared, _of_shared)


# Scaled dot-product attention: the reference that every backend must equal.


# Queries are processed in blocks, each with just the keys it may see. Smaller
# blocks would make the matrix products too small to be fast.
QUERY_BLOCK = 128


class Request(NamedTuple):
  """A request to a backend: attention among the tokens of each row.

  Keys of a memory may precede those of the row's tokens: there are more keys
  than queries then, and masks have one entry for each key. Or, with `keys`,
  attention to the tokens of another text, of which all are visible.

  Attributes:
    pattern: which keys are seen, by their distance or position.
    visibility: masks that differ between rows.
    scale: of the scores.
    bias: added to the scores, [B or 1, H, L, M], or by distance.
    dropout: applied to the probabilities.
    positions_BL: position of each token in its document, [B or 1, L]; None:
      counted from the start of the row, or of the packed document.
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
  bias: jax.Array | ByDistance | DistanceProducts | None = None
  dropout: AttentionDropout | None = None
  positions_BL: jax.Array | None = None
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
    scale: of the scores.
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
    kept_BHLM = dropout.kept(
      q_BLHK.shape[2], query_L[None, :, None], key_M[None, None]
    )
    kept_BGQM, keep = kept_BHLM.reshape(scores_BGQM.shape), dropout.keep
  mask = for_groups(mask, scores_BGQM)
  out_BGQK: Any = weighted(scores_BGQM, v_BGMK, mask, kept_BGQM, keep)
  return ungrouped(out_BGQK, q_BLHK.shape)


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
  """`attend` with keys and values in the layout of `KVCache`."""
  # Transpose the few queries rather than scores or a cache.
  q_BGQK = grouped(q_BLHK, v_BGMK.shape[1])
  mask = for_groups(mask, q_BGQK)
  if bias is not None:
    bias = bias.reshape(-1, *q_BGQK.shape[1:3], bias.shape[-1])

  def run(q_BGQK, k_BGKM, v_BGMK, mask, bias):
    products = float32_einsum('BGQK,BGKM->BGQM', q_BGQK, k_BGKM)
    scores_BGQM = scores(products, scale, bias, softcap)
    return weighted(scores_BGQM, v_BGMK, mask)

  inputs = q_BGQK, k_BGKM, v_BGMK, mask, bias
  out_BGQK = _few_heads_at_a_time(run, inputs)
  return ungrouped(out_BGQK, q_BLHK.shape)


# The most scores of a prompt that a CPU computes at a time, 4 MiB: more would
# not stay in its cache between the two products.
_SCORES = 1 << 20


def _few_heads_at_a_time(
  run: Callable[..., Any], inputs: tuple[Any, ...]
) -> jax.Array:
  """`run(*inputs)`: [B, G, Q, K]; on one CPU device in parts of `_SCORES`.

  Args:
    run: treats all rows and groups of heads alike.
    inputs: queries [B, G, Q, K], keys [B, G, K, M], and others of B or 1 rows
      and G or 1 groups.
  """
  (B, G, Q, K), M = inputs[0].shape, inputs[1].shape[-1]
  most = max(_SCORES // (Q * M), 1)
  alone = jax.sharding.get_abstract_mesh().size <= 1
  # Fewer queries than numbers in a key: copying the keys would take longer.
  if most >= B * G or Q < K or not alone or layout.platform() != 'cpu':
    return run(*inputs)

  size = max(n for n in range(1, G + 1) if G % n == 0 and n <= most)

  def part(i):
    row, group = i // (G // size), i % (G // size) * size

    def own(x):
      rows, groups, *sizes = x.shape
      at = row if rows == B else 0, group if groups == G else 0
      shape = 1, min(size, groups), *sizes
      return jax.lax.dynamic_slice(x, (*at, 0, 0), shape)

    return run(*jax.tree.map(own, inputs))[0]

  out = jax.lax.map(part, jnp.arange(B * G // size))
  return out.reshape(B, G, Q, -1)


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
  products_BGQM: Any,
  scale: float | jax.Array,
  bias: jax.Array | None,
  softcap: float,
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


def attend_within(request: Request) -> jax.Array:
  """`attend` among the tokens of each row, [B, L, H, K].

  Queries are processed in blocks, without keys that no query of the block may
  see: that saves nearly half of the work for a causal pattern, nearly all of it
  for a `local` window in a long row.
  """
  pattern, L = request.pattern, request.q_BLHK.shape[1]
  bias = request.bias
  assert not isinstance(bias, ByDistance | DistanceProducts)
  assert not request.num_before
  tokens, visibility = tokens_of(request), request.visibility
  ordered, given_BLM = visibility.places_1L is None, visibility.given_BLM
  size = max(QUERY_BLOCK, -(-L // 8)) if pattern.causal else L
  if pattern.window is not None:
    # At most the window's size, so that the cost is linear in the length; but
    # not below QUERY_BLOCK, or short windows would give too many blocks.
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
    visible_BLM = given_BLM
    if visible_BLM is not None:
      visible_BLM = visible_BLM[:, query, key]
    of_query, of_key = tokens.at(query), tokens.at(key)
    mask = visible(pattern, of_query, of_key, visibility.prefix_B, visible_BLM)
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


def tokens_of(request: Request) -> Tokens:
  """The tokens of each row: see `masks.Tokens`."""
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
  assert request.visibility.places_1L is None, 'see `build.zigzag`'
  starts_BL = jnp.diff(segments_BL, axis=1, prepend=segments_BL[:, :1]) != 0
  return places_1L - jax.lax.cummax(jnp.where(starts_BL, places_1L, 0), axis=1)


def attend_with_memory(request: Request) -> jax.Array:
  """`attend` to a memory and to the tokens of each row, [B, L, H, K].

  Or from places of their own. The request has no documents.
  """
  L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
  seen, bias = request.visibility, request.bias
  assert seen.segments_BL is None and seen.prefix_B is None
  assert not isinstance(bias, ByDistance | DistanceProducts)
  places_BL = request.places_BL
  if places_BL is None:
    places_BL = jnp.arange(M - L, M)[None]
  places_1M = jnp.arange(M)[None]
  mask = visible(
    request.pattern,
    Tokens(places_BL, places_BL),
    Tokens(places_1M, places_1M, real=seen.key_mask_BM),
    given_BLM=seen.given_BLM,
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
  if seen.given_BLM is None:
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


def across(
  q_BLHK: jax.Array,
  keys_and_values: tuple[jax.Array, jax.Array] | None,
  context: Context,
  cache: Cache | None,
  *,
  scale: float | jax.Array = 1.0,
  softcap: float = 0.0,
  dropout: AttentionDropout | None = None,
  run: Callable[[Request], jax.Array] = attend_across,
) -> tuple[jax.Array, KVCache]:
  """Attends to the encoder's output: [B, L, H, K], and its cache.

  Args:
    q_BLHK: queries; several rows may share a row of the cache.
    keys_and_values: of the encoder's output, [B, M, G, K] each; None: `cache`
      has them.
    context: says which of its tokens are seen.
    cache: ignored with `keys_and_values`.
    scale: of the scores.
    softcap: of the scores.
    dropout: of the probabilities.
    run: computes the request for `keys_and_values`.
  """
  shape = q_BLHK.shape
  if keys_and_values is not None:
    cache = cache_of(*keys_and_values)
  assert isinstance(cache, KVCache)
  # Beams share a row of keys and values: they count as further queries.
  B = len(cache.value_BGMK)
  q_BLHK = q_BLHK.reshape(B, -1, *shape[2:])
  L = q_BLHK.shape[1]
  keys = Tokens(
    jnp.arange(cache.num_slots)[None],
    segments=context.memory_segments_BM,
    real=context.memory_mask_BM,
  )
  segments_BL = context.visibility.segments_BL
  if keys_and_values is None:
    queries = Tokens(jnp.arange(L)[None], segments=segments_BL)
    y_BLHK = attend_to_cache(
      *(q_BLHK, cache.key_BGKM, cache.value_BGMK),
      mask=visible(None, queries, keys),
      scale=scale,
      softcap=softcap,
    )
  else:
    request = Request(
      *(q_BLHK, *keys_and_values, bidirectional()),
      Visibility(segments_BL=segments_BL),
      scale,
      dropout=dropout,
      softcap=softcap,
      keys=keys,
    )
    y_BLHK = run(request)
  return y_BLHK.reshape(*shape[:3], -1), cache
