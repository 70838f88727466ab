# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The attention layer: self-attention, with a cache, and cross-attention."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.attend import (
  ByDistance,
  Cache,
  Context,
  DistanceProducts,
  KVCache,
  Request,
  Scale,
  SegmentMemory,
  Visibility,
  across,
  attend_to_cache,
)
from gpt_jax.nn.attention_dropout import AttentionDropout
from gpt_jax.nn.backends import (
  Backend,
  attend_rows,
  backend_for,
  reference,
)
from gpt_jax.nn.int8 import Int8
from gpt_jax.nn.layers import (
  Dense,
  Initializers,
  Projections,
  row_numbers,
)
from gpt_jax.nn.masks import Pattern, Tokens, visible
from gpt_jax.nn.positions import Position, ScoreInputs
from gpt_jax.nn.transformer_xl import joined, reaches, several, split
from gpt_jax.spec import UsageError


class Attention(nn.Module):
  """Projects to queries, keys and values, attends, projects back."""

  pattern: Pattern
  position: Position
  num_heads: int
  num_kv_heads: int
  head_size: int
  scale: Scale
  backend: Backend
  bias_in: bool
  bias_out: bool
  dropout: float
  inits: Initializers
  dtype: Any
  norm: Callable[..., nn.Module] | None = None  # of queries and keys
  qk_norm: str = 'none'  # of `block.QkNorm`
  bias_key: bool | None = None  # None: `bias_in`
  value_size: int = 0  # of values of a head; 0: `head_size`
  matmul: Int8 | None = None

  def setup(self):
    """Creates the projections, and the position's terms if it has any."""
    key_bias = self.bias_in if self.bias_key is None else self.bias_key
    self.projections = Projections(
      *(self.num_heads, self.num_kv_heads),
      *(self.head_size, self.value_size or self.head_size),
      *(self.bias_in, key_bias),
      *(self.inits, self.dtype, self.norm, self.qk_norm, self.matmul),
    )
    # Their parameters are direct children of this module.
    nn.share_scope(self, self.projections)
    if self.position.terms:
      self.terms = self.position.terms(self.projections)
      nn.share_scope(self, self.terms)

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None = None,
    *,
    layer: jax.Array,
    cross: bool = False,
  ) -> tuple[jax.Array, Cache | None]:
    """Attends within `x_BLD`, to a cache, or to the encoder's output.

    Args:
      x_BLD: the sublayer's input.
      context: see `Context`.
      cache: written at the positions, then read as a whole; or a memory, whose
        tokens precede `x_BLD`; with `cross`, read instead of the encoder's
        output if that is None.
      layer: index of the layer, from 0.
      cross: queries from `x_BLD`, keys and values from the encoder's output.

    Returns:
      [B, L, D] and the cache with the new keys and values; a memory unchanged.
    """
    q_BLHK = self.projections.queries(x_BLD)
    if cross:
      y_BLHK, cache = self._across(q_BLHK, context, cache, layer)
    elif several(self.position, x_BLD.shape[1], cache):
      assert cache is None or isinstance(cache, SegmentMemory)
      parts = split(self.position, q_BLHK, x_BLD, context, cache)
      y_NLHK, _ = self._within(
        parts.q_NLHK, parts.x_NLD, context, parts.memory, layer
      )
      y_BLHK = joined(y_NLHK, q_BLHK.shape)
    else:
      y_BLHK, cache = self._within(q_BLHK, x_BLD, context, cache, layer)
    out = Dense(
      x_BLD.shape[-1],
      ('heads', 'embed'),
      self.inits.residual,
      self.bias_out,
      self.dtype,
      self.matmul,
      name='out',
    )
    return out(y_BLHK.reshape(*x_BLD.shape[:2], -1)), cache

  def _across(
    self,
    q_BLHK: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, KVCache]:
    """Attends to the encoder's output, or to its keys and values in `cache`."""
    keys_and_values = None
    if context.memory_BMD is not None:
      keys_and_values = self._keys_and_values(context.memory_BMD)
    return across(
      *(q_BLHK, keys_and_values, context, cache),
      scale=self.scale(q_BLHK.shape[-1], layer),
      softcap=self.scale.softcap,
      dropout=self._dropout(len(q_BLHK)),
      run=lambda request: attend_rows(
        request, backend=backend_for(request, self._backend())
      ),
    )

  def _within(
    self,
    q_BLHK: jax.Array,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """Attends among the tokens of each row, and to those of the cache."""
    if cache is not None:
      _check_cache(self.pattern, context, cache)
    source_BMD = context.source_BLD
    if source_BMD is None:
      source_BMD = context.keys(x_BLD)
    if isinstance(cache, SegmentMemory):
      source_BMD = jnp.concatenate([cache.hidden_BMD, source_BMD], axis=1)
    k_BMGK, v_BMGK = self._keys_and_values(source_BMD)
    positions_BL = context.positions(x_BLD.shape[1])
    rotate = self.position.rotation(self.pattern)
    if rotate is not None:
      q_BLHK = rotate(q_BLHK, positions_BL)
      k_BMGK = rotate(k_BMGK, positions_BL)
    if isinstance(cache, KVCache):
      cache = cache.written(positions_BL, k_BMGK, v_BMGK)
    scale, bias = self.scale(self.head_size, layer), context.bias
    if self.position.terms:
      inputs = ScoreInputs(
        *(q_BLHK, k_BMGK, context, cache, self.pattern, layer, scale),
        d_model=x_BLD.shape[-1],
      )
      q_BLHK, bias = self.terms(inputs)
    seen, before = context.visibility, 0
    if isinstance(cache, SegmentMemory):
      before = cache.hidden_BMD.shape[1]
      seen = _with_memory(seen, cache, k_BMGK.shape[1] - before)
    request = Request(
      *(q_BLHK, k_BMGK, v_BMGK, self.pattern, seen),
      scale,
      bias,
      self._dropout(len(q_BLHK)),
      context.positions_BL,
      self.scale.softcap,
      layer,
    )
    if cache is not None or context.predicted_BP is not None:
      _check_whole(self.pattern)
    if isinstance(cache, KVCache):
      y_BLHK = _attend_to_cache(request, self.position, positions_BL, cache)
      return y_BLHK, cache
    streams = [request]
    if context.predicted_BP is not None:
      streams = _two_streams(request, context.predicted_BP, before)
    backend = self._backend()
    parts = [
      attend_rows(stream, backend=backend_for(stream, backend))
      for stream in streams
    ]
    y_BLHK = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
    return y_BLHK, cache

  def _backend(self) -> Backend:
    """Initialisation uses rows of one token, which few backends serve."""
    return reference() if self.is_initializing() else self.backend

  def _dropout(self, num_rows: int) -> AttentionDropout | None:
    """The dropout of the probabilities, in training."""
    if not self.dropout or not self.has_rng('dropout'):
      return None
    seed = jax.random.bits(self.make_rng('dropout'), dtype=jnp.uint32)
    return AttentionDropout(self.dropout, seed, row_numbers(num_rows))

  def _keys_and_values(
    self, source_BMD: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """[B, M, G, K] each; K of values may differ."""
    to = self.projections
    return to.keys(source_BMD), to.values(source_BMD)


def _check_cache(pattern: Pattern, context: Context, cache: Cache) -> None:
  """Refuses patterns and inputs that cannot be computed with a cache."""
  if isinstance(cache, SegmentMemory):
    # All real tokens of a memory are visible.
    assert context.positions_BL is None
    return
  # Padding and documents describe the new tokens only, not those in the cache.
  seen = context.visibility
  assert seen.key_mask_BM is None and seen.segments_BL is None
  # A caller that passes its own mask over the cache vouches for it.
  if not pattern.causal and seen.visible_BLM is None:
    raise UsageError(
      'model.attention=bidirectional: cannot decode with a cache, since '
      'each new token would change the states of all before it; take '
      'causal patterns'
    )


def _with_memory(
  visibility: Visibility, memory: SegmentMemory, length: int
) -> Visibility:
  """The visibility of a memory's tokens and of the row's `length` keys."""
  assert visibility.segments_BL is None and visibility.prefix_B is None
  real_BM, given_BLM = visibility.key_mask_BM, visibility.visible_BLM
  B, before = memory.hidden_BMD.shape[:2]
  if real_BM is not None or memory.real_BM is not None:
    if real_BM is None:
      real_BM = jnp.ones((1, length), bool)
    real_BM = jnp.broadcast_to(real_BM, (B, length))
    real_BM = jnp.concatenate([memory.real(), real_BM], axis=1)
  if given_BLM is not None:
    given_BLM = jnp.pad(
      given_BLM, ((0, 0), (0, 0), (before, 0)), constant_values=True
    )
  order = visibility.order
  if order is not None:  # all see the memory
    lowest = jnp.full((B, before), jnp.iinfo(jnp.int32).min, jnp.int32)
    ranks_BM = jnp.concatenate([lowest, order.ranks_BM], axis=1)
    order = order._replace(ranks_BM=ranks_BM)
  return visibility._replace(
    key_mask_BM=real_BM, visible_BLM=given_BLM, order=order
  )


def _two_streams(
  request: Request, predicted_BP: jax.Array, before: int
) -> list[Request]:
  """The request of a row's tokens, and that of its predictions."""
  L, bias = request.k_BLGK.shape[1] - before, request.bias
  assert isinstance(bias, DistanceProducts)
  row, predicted = (
    request._replace(
      q_BLHK=request.q_BLHK[:, part],
      visibility=request.visibility.of_queries(part),
      bias=bias.of_some(part),
    )
    for part in (slice(L), slice(L, None))
  )
  return [row, predicted._replace(places_BL=predicted_BP + before, first=L)]


def _attend_to_cache(
  request: Request,
  position: Position,
  positions_BL: jax.Array,
  cache: KVCache,
) -> jax.Array:
  """Attends to a cache: [B, L, H, K].

  Queries see its slots up to their positions; with segments, those of their
  segment and its memory.
  """
  seen = request.visibility
  given_BLM, places_1M = seen.given_BLM, jnp.arange(cache.num_slots)[None]
  if position.segment_length:
    reached = reaches(position, positions_BL[:, :, None], places_1M[:, None])
    given_BLM = reached if given_BLM is None else given_BLM & reached
  # Slots past the newest token hold padding or zeros. They are later than every
  # query, so the causal mask hides them.
  mask = visible(
    request.pattern,
    Tokens(positions_BL, positions_BL),
    Tokens(places_1M, places_1M),
    seen.prefix_B,
    given_BLM,
  )
  assert not isinstance(request.bias, ByDistance | DistanceProducts)
  return attend_to_cache(
    request.q_BLHK,
    *cache.keys_and_values(),
    mask=mask,
    scale=request.scale,
    bias=request.bias,
    softcap=request.softcap,
  )


def _check_whole(pattern: Pattern) -> None:
  """Refuses patterns that need whole rows."""
  if pattern.blocks is not None:
    raise UsageError(
      f'model.attention={pattern.name}: needs whole rows, '
      'without memories, caches and second streams; take bidirectional'
    )
