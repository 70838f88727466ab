# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention over segments, by relative distance: Transformer-XL.

Dai et al. (2019) add products of queries with vectors of distances to the
scores (section 3.3), and read a text segment by segment, each with a memory of
those before it (section 3.2).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.core.nn.attend import Request, float32_einsum
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.distance_products import DistanceProducts, Products
from gpt_jax.core.nn.kv_cache import Cache, KVCache, check_whole
from gpt_jax.core.nn.layers import Projections, dense, parameter
from gpt_jax.core.nn.masks import Pattern
from gpt_jax.core.nn.positions import Factory, Model, Position, ScoreBias, ScoreInputs, sinusoids
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import DTYPES, Transformer
from gpt_jax.core.ranges import Whole
from gpt_jax.core.spec import UsageError

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


class SharingModel(Transformer):
  """A model whose layers share u and v: its `relative_biases`."""

  in_stages = False

  def setup(self):
    """Creates u and v."""
    super().setup()
    self.relative_biases = RelativeBiases(self.num_heads, self.head_size)

  def context(self, *args: Any, **kwargs: Any) -> Context:
    """Adds them to what the layers read."""
    biases = self.relative_biases()
    return super().context(*args, **kwargs).adding(biases=biases)


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
    biases = context.extra['biases'] if self.shared else self.biases()
    q_content, q_position = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype) for bias_HK in biases
    )
    r_MHK = self._distances(inputs.num_keys, inputs.d_model)
    if inputs.cache is None:
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


# Memories, and rows of several segments.


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

  def normed(self, norm: Callable[[jax.Array], jax.Array]) -> 'SegmentMemory':
    """Of normalised inputs: it holds those of blocks, before their norm."""
    return self._replace(hidden_BMD=norm(self.hidden_BMD))


def init_memories(model: Transformer, batch_size: int, *, real: bool = True) -> Caches:
  """The memories before the first segment: zeros, which count as tokens.

  If not `real`, they are masked: nothing precedes the first segment.

  Each call of the model returns those for the next segment as `caches`. A
  call without caches sees no memory, and returns none.
  """
  choices = ModelChoices.of(model)
  recurrence = choices.position.recurrence
  if not (recurrence and recurrence.memory):
    raise UsageError(
      f'model.position={model.position!r}: keeps no memory; take transformer_xl(memory=...)'
    )
  entries = len(choices.decoder)
  shape = (model.num_layers // entries, batch_size)
  shape += (recurrence.memory, model.d_model)
  zeros = jnp.zeros(shape, DTYPES[model.dtype])
  seen = None if real else jnp.zeros(shape[:-1], bool)
  return (SegmentMemory(zeros, seen),) * entries


class Recurrence(NamedTuple):
  """How rows are read by segments (section 3.2).

  Attributes:
    memory: number of inputs of each layer, in earlier segments, that it keeps.
    segment: tokens of a segment; 0: a row is one.
  """

  memory: int = 0
  segment: int = 0

  def cuts(self, length: int) -> bool:
    """Whether rows of `length` tokens are more than one segment."""
    return 0 < self.segment < length

  def rows(self, shape_BL: tuple[int, int]) -> tuple[int, int]:
    """The number and length of the segments of rows, as rows."""
    return shape_BL[0] * -(-shape_BL[1] // self.segment), self.segment

  def num_visible(self, pattern: Pattern, length: int) -> np.ndarray:
    """The number of keys that each token of a row sees, int64 [length]."""
    num_keys = pattern.num_visible(length)
    if not self.segment:
      return num_keys
    query = np.arange(length, dtype=np.int64)
    before = query // self.segment * self.segment
    memory = np.minimum(self.memory, before)
    return np.minimum(num_keys, query - before + 1 + memory)


class Remembering(nn.Module):
  """A block that keeps its inputs as a memory; parameters are the block's."""

  block: Factory

  def setup(self):
    """Creates the block."""
    self.inner = self.block()
    nn.share_scope(self, self.inner)

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D] and the memory for the next segment."""
    if not isinstance(cache, SegmentMemory):
      return self.inner(x_BLD, context, cache, layer)
    memory = jax.lax.stop_gradient(cache)
    y_BLD, _ = self.inner(x_BLD, context, memory, layer)
    return y_BLD, cache.then(self.remembered(x_BLD, context))

  def remembered(self, x_BLD: jax.Array, context: Context) -> jax.Array:
    """The inputs that the memory gets."""
    del context
    return x_BLD


class SegmentAttention(nn.Module):
  """Attention with a memory and segments, if there are any.

  Parameters are those of the attention that `make` makes.
  """

  make: Factory
  recurrence: Recurrence

  def setup(self):
    """Creates the attention of whole rows."""
    self.inner = self.make()
    nn.share_scope(self, self.inner)

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None = None, *, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """As `Attention`; `cache` may be a memory, whose tokens precede `x_BLD`."""
    if isinstance(cache, KVCache):
      if self.recurrence.segment:
        context = self._within_reach(x_BLD.shape[1], context, cache)
      return self.inner(x_BLD, context, cache, layer=layer)
    q_BLHK = self.inner.projections.queries(x_BLD)
    if self.recurrence.cuts(x_BLD.shape[1]):
      parts = split(self.recurrence, q_BLHK, x_BLD, context, cache)
      y_NLHK = self.attend(*parts, context, layer)
      y_BLHK = joined(y_NLHK, q_BLHK.shape)
    else:
      y_BLHK = self.attend(q_BLHK, x_BLD, cache, context, layer)
    return self.inner.project_out(y_BLHK, x_BLD), cache

  def attend(
    self,
    q_BLHK: jax.Array,
    x_BLD: jax.Array,
    memory: SegmentMemory | None,
    context: Context,
    layer: jax.Array,
    run: Callable[[Request], jax.Array] | None = None,
  ) -> jax.Array:
    """Attends to a memory and to the tokens of each row, [B, L, H, K].

    `run` computes the request; None: the backend.
    """
    if memory is not None or run:
      check_whole(self.inner.pattern)
    if memory is not None:
      assert context.positions_BL is None
      visibility = _with_memory(context.visibility, memory, x_BLD.shape[1])
      context = context._replace(visibility=visibility)
      x_BLD = jnp.concatenate([memory.hidden_BMD, x_BLD], axis=1)
    return self.inner.within(q_BLHK, x_BLD, context, None, layer, run)[0]

  def _within_reach(self, length: int, context: Context, cache: KVCache) -> Context:
    """Queries see the slots of their segment and of its memory alone."""
    seen, places_1M = context.visibility, jnp.arange(cache.num_slots)[None]
    query_BL1 = context.positions(length)[:, :, None]
    given_BLM = reaches(self.recurrence, query_BL1, places_1M[:, None])
    if seen.mask_BLM is not None:
      given_BLM &= seen.mask_BLM
    seen = seen._replace(visible_BLM=given_BLM, order=None)
    return context._replace(visibility=seen)


def _with_memory(visibility: Visibility, memory: SegmentMemory, length: int) -> Visibility:
  """The visibility of a memory's tokens and of the row's `length` keys."""
  assert visibility.segments_BL is None
  if visibility.prefix_B is not None:
    raise UsageError(
      'model.position: no memory can precede rows with a prefix; take another position'
    )
  real_BM, given_BLM = visibility.key_mask_BM, visibility.visible_BLM
  B, before = memory.hidden_BMD.shape[:2]
  if real_BM is not None or memory.real_BM is not None:
    if real_BM is None:
      real_BM = jnp.ones((1, length), bool)
    real_BM = jnp.broadcast_to(real_BM, (B, length))
    real_BM = jnp.concatenate([memory.real(), real_BM], axis=1)
  if given_BLM is not None:
    given_BLM = jnp.pad(given_BLM, ((0, 0), (0, 0), (before, 0)), constant_values=True)
  order = visibility.order
  if order is not None:  # all see the memory
    lowest = jnp.full((B, before), jnp.iinfo(jnp.int32).min, jnp.int32)
    ranks_BM = jnp.concatenate([lowest, order.ranks_BM], axis=1)
    order = order._replace(ranks_BM=ranks_BM)
  return visibility._replace(key_mask_BM=real_BM, visible_BLM=given_BLM, order=order)


class Parts(NamedTuple):
  """The segments of all rows, as rows: N = B * number of segments."""

  q_NLHK: jax.Array
  x_NLD: jax.Array
  memory: SegmentMemory


def split(
  recurrence: Recurrence,
  q_BLHK: jax.Array,
  x_BLD: jax.Array,
  context: Context,
  memory: SegmentMemory | None,
) -> Parts:
  """Cuts queries and inputs of a layer; pads the last segment with zeros.

  Args:
    context: without positions and masks.
    memory: of the text before the rows; None: there is none.
  """
  if context.positions_BL is not None or any(x is not None for x in context.visibility):
    raise UsageError(
      'model.position=transformer_xl(segment=...): needs rows of one '
      "continuous text; set data.rows='stream', or leave segment out"
    )
  size, (B, L, D) = recurrence.segment, x_BLD.shape
  number = -(-L // size)
  if memory is None:
    blank = jnp.zeros((B, recurrence.memory, D), x_BLD.dtype)
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
    SegmentMemory(hidden_BSMD.reshape(N, M, D), jnp.take(real, at_SM, axis=1).reshape(N, M)),
  )


def joined(y_NLHK: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """The inverse of `split`: joins segments to [B, L, H, K]."""
  B, L = shape[:2]
  return y_NLHK.reshape(B, -1, *shape[2:])[:, :L]


def reaches(recurrence: Recurrence, query: jax.Array, key: jax.Array) -> jax.Array:
  """Whether a key is in the query's segment or in that segment's memory.

  With this mask, reading a row at once or token by token equals reading it by
  segments: only gradients differ.

  Args:
    query: positions in the row, as is `key`; they broadcast.
  """
  size = recurrence.segment
  return key >= query // size * size - recurrence.memory


def _filled(x: jax.Array, length: int) -> jax.Array:
  """Pads [B, L, ...] with zeros to `length`."""
  more = length - x.shape[1]
  return jnp.pad(x, [(0, 0), (0, more), *[(0, 0)] * (x.ndim - 2)])


# The choice of `model.position`.


def transformer_xl(
  memory: Whole = 0, clamp: Whole = 0, segment: Whole = 0, biases: Literal['own', 'shared'] = 'own'
) -> Position:
  """Transformer-XL's relative attention (Dai et al. 2019, section 3.3).

  Args:
    memory: number of states of earlier segments that each layer keeps as keys
      and values for later ones: see `init_memories`.
    clamp: the longest distance, to which longer ones are clipped; 0: no limit.
    segment: tokens of a segment; rows are cut into segments, each with its
      memory. 0: a row is one segment.
    biases: whether u and v of the scores are each layer's own, or shared by all
      layers (the paper's).
  """
  recurrence = Recurrence(memory, segment)
  return Position(
    terms=functools.partial(TransformerXL, clamp, biases == 'shared'),
    model=SharingModel if biases == 'shared' else None,
    block=functools.partial(remembering, recurrence),
    recurrence=recurrence,
  )


def remembering(
  recurrence: 'Recurrence',
  make: Any,
  model: Model,
  *,
  block: type[Remembering] = Remembering,
  attention: type[SegmentAttention] = SegmentAttention,
) -> Factory:
  """A factory of blocks that keep memories, with attention that reads them."""
  del model
  make_attention = make.keywords['attention']
  make_attention = functools.partial(attention, make_attention, recurrence)
  return functools.partial(block, functools.partial(make, attention=make_attention))
