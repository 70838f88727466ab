# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet: two streams, by relative distance and token type (Yang et al. 2019).

The scores are Transformer-XL's, but to both sides, and with a term for the
types of tokens (sections 2.4 and 2.5). The queries of the second stream
(section 2.3) follow each row's tokens through the layers.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.attend import Request, float32_einsum
from gpt_jax.core.nn.distance_products import ByKind, DistanceProducts, Products
from gpt_jax.core.nn.layers import Projections, dense, parameter
from gpt_jax.core.nn.positions import Position, ScoreBias, ScoreInputs, sinusoids
from gpt_jax.core.nn.row import Context, Row, Visibility
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Output, Transformer
from gpt_jax.core.ranges import Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.transformer_xl.transformer_xl import (
  Recurrence,
  Remembering,
  SegmentAttention,
  SegmentMemory,
  remembering,
)


class XlNet(Transformer):
  """A model whose layers read token types, and may have a second stream.

  `Row.extra` may have `predicted`, int32 [B, P], the places of the tokens that
  the second stream predicts, which no token sees. The queries of `visible_BLM`,
  [B, L + P, L], and of `order` are then of both streams, as are the states.
  """

  cls_place = 'last'

  def setup(self):
    """Creates the vector that stands for each token that is predicted."""
    super().setup()
    if self._choices.input.queries:
      initializer = self._choices.init_weights.embedding
      self.query_embedding = parameter(
        self, 'query_embedding', initializer, (self.d_model,), ('embed',)
      )

  def __call__(self, row: Row | jax.Array, caches: Caches | None = None) -> Output:
    """Runs both streams, or one: see above."""
    row = Row.of(row)
    x_BLD = self.embedded(row._replace(token_types_BL=None))
    context = self.context(row, caches)
    if row.token_types_BL is not None:
      context = context.adding(token_types=row.token_types_BL)
    predicted_BP = row.extra.get('predicted')
    if predicted_BP is not None:
      x_BPD = self._queries(predicted_BP)
      x_BLD = jnp.concatenate([x_BLD, x_BPD], axis=1)
    x_BLD, caches = self.decoder(x_BLD, context, caches)
    return self.finished(x_BLD, caches)

  def _queries(self, predicted_BP: jax.Array) -> jax.Array:
    """[B, P, D]."""
    if not self._choices.input.queries:
      raise UsageError(
        "predicted: the model has no second stream; set model.input='tokens(queries=True)'"
      )
    x_D = self.query_embedding.astype(self._dtype)
    shape = *predicted_BP.shape, len(x_D)
    return self._inputs.dropped(jnp.broadcast_to(x_D[None, None], shape))


class SegmentTerms(nn.Module):
  """XLNet's terms: a module of `Position.terms`.

  score = (q + u) k + (q + v) W_kR R_(i - j) + (q + w) s, where s is one vector
  if both tokens are of the same type, and another if not. As Transformer-XL,
  but to both sides; tokens of a memory are of type 0. Distances are clipped to
  `clamp` if it is not 0.
  """

  clamp: int
  projections: Projections

  def setup(self):
    """Creates u, v, w, s and W_kR."""
    to, zeros = self.projections, nn.initializers.zeros
    shape, axes = (to.num_heads, to.head_size), ('heads', 'head')
    self.content_bias = parameter(self, 'content_bias', zeros, shape, axes)
    self.position_bias = parameter(self, 'position_bias', zeros, shape, axes)
    self.segment_bias = parameter(self, 'segment_bias', zeros, shape, axes)
    self.segments = parameter(self, 'segments', to.inits.kernel, (2, *shape), ('buckets', *axes))
    self.relative = dense(to, to.num_heads, 'heads', bias=False)

  def __call__(self, inputs: ScoreInputs) -> tuple[jax.Array, ScoreBias]:
    """See `ScoreInputs`."""
    if inputs.cache is not None:
      raise UsageError(
        'model.position=xlnet: cannot decode with a cache; score texts, or take transformer_xl'
      )
    context, q_BLHK = inputs.context, inputs.q_BLHK
    q_content, q_position, q_segment = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype)
      for bias_HK in (self.content_bias, self.position_bias, self.segment_bias)
    )
    num_keys = inputs.num_keys
    predicted_BP = context.extra.get('predicted')
    L = q_BLHK.shape[1]
    if predicted_BP is not None:
      L -= predicted_BP.shape[1]
    M = num_keys - L
    r_RHK = self._distances(num_keys, L, inputs.d_model)
    by_kind, types_BL = None, context.extra.get('token_types')
    if types_BL is not None:
      if predicted_BP is not None:
        of_predicted = jnp.take_along_axis(types_BL, predicted_BP, axis=1)
        types_BL = jnp.concatenate([types_BL, of_predicted], axis=1)
      segments = self.segments.astype(q_segment.dtype)
      either: Any = float32_einsum('BLHK,SHK->BHLS', q_segment, segments)
      of_keys = jnp.pad(types_BL[:, :L], ((0, 0), (M, 0)))
      by_kind = ByKind(either, types_BL, of_keys)
    products = Products(q_position, r_RHK)
    return q_content, DistanceProducts(products, by_kind=by_kind)

  def _distances(self, num_keys: int, length: int, d_model: int) -> jax.Array:
    """W_kR R of the distances M - 1, ..., 0, ..., 1 - L: [M + L - 1, H, K]."""
    distances = jnp.arange(num_keys - 1, -length, -1)
    if self.clamp:
      distances = jnp.clip(distances, -self.clamp, self.clamp)
    waves_RD = sinusoids(distances, d_model, layout='halves')
    waves_1RD = waves_RD.astype(self.projections.dtype)[None]
    return self.projections.heads(self.relative(waves_1RD))[0]


class TwoStreamAttention(SegmentAttention):
  """Attention of a row's tokens, and of the predictions that follow them."""

  def attend(
    self,
    q_BLHK: jax.Array,
    x_BLD: jax.Array,
    memory: SegmentMemory | None,
    context: Context,
    layer: jax.Array,
    run: Callable[[Request], jax.Array] | None = None,
  ) -> jax.Array:
    """[B, L, H, K], or L + P."""
    predicted_BP = context.extra.get('predicted')
    if predicted_BP is not None:
      x_BLD = _keys(x_BLD, context)
      before = 0 if memory is None else memory.hidden_BMD.shape[1]
      run = functools.partial(
        _two_streams, predicted_BP=predicted_BP, before=before, attend=self.inner.attend
      )
    return super().attend(q_BLHK, x_BLD, memory, context, layer, run)


class TokensRemembering(Remembering):
  """Keeps the tokens' inputs, not those of predictions."""

  def remembered(self, x_BLD: jax.Array, context: Context) -> jax.Array:
    """The inputs that the memory gets."""
    return _keys(x_BLD, context)


def _keys(x_BLD: jax.Array, context: Context) -> jax.Array:
  """The tokens of a row that give keys: all but the predictions."""
  predicted_BP = context.extra.get('predicted')
  if predicted_BP is None:
    return x_BLD
  return x_BLD[:, : x_BLD.shape[1] - predicted_BP.shape[1]]


def _two_streams(
  request: Request, predicted_BP: jax.Array, before: int, attend: Callable[[Request], jax.Array]
) -> jax.Array:
  """Attention of a row's tokens, and that of its predictions."""
  L, bias = request.k_BLGK.shape[1] - before, request.bias
  assert isinstance(bias, DistanceProducts)
  row, predicted = (
    request._replace(
      q_BLHK=request.q_BLHK[:, part],
      visibility=_of_some(request.visibility, part),
      bias=bias.of_some(part),
    )
    for part in (slice(L), slice(L, None))
  )
  places_BL = predicted_BP + before
  predicted = predicted._replace(places_BL=places_BL, first=L)
  return jnp.concatenate([attend(row), attend(predicted)], axis=1)


def _of_some(visibility: Visibility, part: slice) -> Visibility:
  """The visibility of keys from some of the queries."""
  visible_BLM, order = visibility.visible_BLM, visibility.order
  if visible_BLM is not None:
    visible_BLM = visible_BLM[:, part]
  if order is not None:
    order = order._replace(bounds_BL=order.bounds_BL[:, part])
  return visibility._replace(visible_BLM=visible_BLM, order=order)


def xlnet(memory: Whole = 0, clamp: Whole = 0) -> Position:
  """XLNet's relative attention, to both sides, with the types of tokens."""
  recurrence = Recurrence(memory)
  return Position(
    terms=functools.partial(SegmentTerms, clamp),
    model=XlNet,
    block=functools.partial(
      remembering, recurrence, block=TokensRemembering, attention=TwoStreamAttention
    ),
    recurrence=recurrence,
  )
