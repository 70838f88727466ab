# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention over segments, by relative distance: Transformer-XL and XLNet.

Transformer-XL (Dai et al. 2019) adds products of queries with vectors of
distances to the scores (section 3.3), and reads a text segment by segment,
each with a memory of those before it (section 3.2). XLNet (Yang et al. 2019)
does so to both sides, and by the types of tokens.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.nn.attend import (
  ByKind,
  Cache,
  Context,
  DistanceProducts,
  KVCache,
  Products,
  SegmentMemory,
  float32_einsum,
)
from gpt_jax.nn.layers import Projections, dense, parameter
from gpt_jax.nn.masks import Pattern
from gpt_jax.nn.positions import (
  Model,
  Position,
  ScoreBias,
  ScoreInputs,
  sinusoids,
)
from gpt_jax.ranges import Whole
from gpt_jax.spec import UsageError

# Transformer-XL's relative attention (Dai et al. 2019, section 3.3).


class RelativeBiases(nn.Module):
  """u and v [H, K] of a layer, or, as in the paper, of all layers."""

  num_heads: int
  head_size: int

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """Returns u and v."""
    zeros, axes = nn.initializers.zeros, ('heads', 'head')
    shape = self.num_heads, self.head_size
    return (
      parameter(self, 'content_bias', zeros, shape, axes),
      parameter(self, 'position_bias', zeros, shape, axes),
    )


class SharedBiases(nn.Module):
  """u and v of all layers, as `relative_biases`."""

  num_heads: int
  head_size: int

  def setup(self):
    """Creates u and v."""
    self.relative_biases = RelativeBiases(self.num_heads, self.head_size)

  def __call__(self, x_BLD: jax.Array, context: Context) -> Any:
    """Returns u and v."""
    del x_BLD, context
    return self.relative_biases()


class TransformerXL(nn.Module):
  """The paper's terms (b), (c), (d): a module of `Position.terms`.

  score = (q + u) k + (q + v) W_kR R_(i - j): u is added to the queries, and the
  second product is a bias on the scores. Distances are clipped to `clamp` if it
  is not 0. With `shared`, u and v are those of the context.
  """

  clamp: int
  shared: bool
  projections: Projections

  def setup(self):
    """Creates u, v and W_kR."""
    to = self.projections
    if not self.shared:
      self.biases = RelativeBiases(to.num_heads, to.head_size)
      nn.share_scope(self, self.biases)
    self.relative = dense(to, to.num_heads, 'heads', bias=False)

  def __call__(self, inputs: ScoreInputs) -> tuple[jax.Array, ScoreBias]:
    """See `ScoreInputs`."""
    context, q_BLHK = inputs.context, inputs.q_BLHK
    if not inputs.pattern.causal or context.visibility.prefix_B is not None:
      raise UsageError(
        'model.position=transformer_xl: needs causal attention; take another '
        'position for bidirectional layers, encoders and prefixes'
      )
    biases = context.shared if self.shared else self.biases()
    q_content, q_position = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype) for bias_HK in biases
    )
    r_MHK = self._distances(inputs.num_keys, inputs.d_model)
    if not isinstance(inputs.cache, KVCache):
      return q_content, DistanceProducts(Products(q_position, r_MHK))
    bias: jax.Array = float32_einsum('BLHK,MHK->BHLM', q_position, r_MHK)
    positions_BL = context.positions(q_BLHK.shape[1])
    return q_content, _at_positions(bias * inputs.scale, positions_BL)

  def _distances(self, num_keys: int, d_model: int) -> jax.Array:
    """W_kR R of the distances M - 1, ..., 1, 0: [M, H, K]."""
    distances = jnp.arange(num_keys)[::-1]
    if self.clamp:
      distances = jnp.minimum(distances, self.clamp)
    waves_MD = sinusoids(distances, d_model, layout='halves')
    waves_1MD = waves_MD.astype(self.projections.dtype)[None]
    return self.projections.heads(self.relative(waves_1MD))[0]


def _at_positions(bias_BHLM: jax.Array, positions_BL: jax.Array) -> jax.Array:
  """Gathers biases from distances M - 1, ..., 0 to keys, by query position."""
  M = bias_BHLM.shape[-1]
  distance_BLM = positions_BL[:, :, None] - jnp.arange(M)[None, None]
  index_BLM = jnp.clip(M - 1 - distance_BLM, 0, M - 1)
  return jnp.take_along_axis(bias_BHLM, index_BLM[:, None], axis=-1)


# XLNet's attention by distance and token type (Yang et al. 2019, 2.4 and 2.5).


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
    self.segments = parameter(
      self, 'segments', to.inits.kernel, (2, *shape), ('buckets', *axes)
    )
    self.relative = dense(to, to.num_heads, 'heads', bias=False)

  def __call__(self, inputs: ScoreInputs) -> tuple[jax.Array, ScoreBias]:
    """See `ScoreInputs`."""
    if isinstance(inputs.cache, KVCache):
      raise UsageError(
        'model.position=xlnet: cannot decode with a cache; score texts, or '
        'take transformer_xl'
      )
    context, q_BLHK = inputs.context, inputs.q_BLHK
    q_content, q_position, q_segment = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype)
      for bias_HK in (self.content_bias, self.position_bias, self.segment_bias)
    )
    num_keys, M = inputs.num_keys, 0
    if isinstance(inputs.cache, SegmentMemory):
      M = inputs.cache.hidden_BMD.shape[1]
    L = num_keys - M
    r_RHK = self._distances(num_keys, L, inputs.d_model)
    by_kind, types_BL = None, context.token_types_BL
    if types_BL is not None:
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


def transformer_xl(
  memory: Whole = 0,
  clamp: Whole = 0,
  segment: Whole = 0,
  biases: Literal['own', 'shared'] = 'own',
) -> Position:
  """Transformer-XL's relative attention (Dai et al. 2019, section 3.3).

  Args:
    memory: number of states of earlier segments that each layer keeps as keys
      and values for later ones: see `caches.init_memories`.
    clamp: the longest distance, to which longer ones are clipped; 0: no limit.
    segment: tokens of a segment; rows are cut into segments, each with its
      memory. 0: a row is one segment.
    biases: whether u and v of the scores are each layer's own, or shared by all
      layers (the paper's).
  """

  def make_shared(model: Model) -> SharedBiases:
    return SharedBiases(model.fields.num_heads, model.fields.head_size)

  shared = biases == 'shared'
  return Position(
    terms=functools.partial(TransformerXL, clamp, shared),
    shared=make_shared if shared else None,
    products=True,
    memory=memory,
    segment_length=segment,
  )


def xlnet(memory: Whole = 0, clamp: Whole = 0) -> Position:
  """XLNet's relative attention, to both sides, with the types of tokens.

  Args:
    memory: as in `transformer_xl`.
    clamp: as in `transformer_xl`.
  """
  terms = functools.partial(SegmentTerms, clamp)
  return Position(terms=terms, products=True, memory=memory, segments=True)


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
  """Cuts queries and inputs of a layer; pads the last segment with zeros.

  Args:
    position: has the segment length, and `memory`, the number of the layer's
      inputs before a segment that it sees.
    q_BLHK: of whole rows.
    x_BLD: of whole rows.
    context: without positions and masks.
    memory: of the text before the rows; None: there is none.
  """
  if context.positions_BL is not None or any(
    x is not None for x in context.visibility
  ):
    raise UsageError(
      'model.position=transformer_xl(segment=...): needs rows of one '
      "continuous text; set data.rows='stream', or leave segment out"
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
  """The inverse of `split`: joins segments to [B, L, H, K]."""
  B, L = shape[:2]
  return y_NLHK.reshape(B, -1, *shape[2:])[:, :L]


def reaches(position: Position, query: jax.Array, key: jax.Array) -> jax.Array:
  """Whether a key is in the query's segment or in that segment's memory.

  With this mask, reading a row at once or token by token equals reading it by
  segments: only gradients differ.

  Args:
    position: see `split`.
    query: positions in the row, as is `key`; they broadcast.
    key: see above.
  """
  size = position.segment_length
  return key >= query // size * size - position.memory


def num_visible(
  position: Position, pattern: Pattern, length: int
) -> np.ndarray:
  """The number of keys that each token of a row sees, int64 [length].

  Args:
    position: see `split`.
    pattern: of the layer; if it has a rule, the result is an upper bound.
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
  """Pads [B, L, ...] with zeros to `length`."""
  more = length - x.shape[1]
  return jnp.pad(x, [(0, 0), (0, more), *[(0, 0)] * (x.ndim - 2)])
