# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The attention layer: self-attention, with a cache, and cross-attention."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.backends import Backend, attend_rows, reference
from gpt_jax.nn.dense import Dense, parameter
from gpt_jax.nn.dot_product import (
  Request,
  Visibility,
  attend,
  float32_einsum,
)
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.masks import Pattern
from gpt_jax.nn.positions import Position, sinusoids
from gpt_jax.nn.scales import Scale
from gpt_jax.spec import UsageError


class KVCache(NamedTuple):
  """Keys and values of the positions seen so far; M is the longest length.

  Only the G key/value heads are kept: with multi-query attention one. `cross`
  is for those of the encoder's output.
  """

  key_BMGK: jax.Array
  value_BMGK: jax.Array
  cross: 'KVCache | None' = None


class SegmentMemory(NamedTuple):
  """What a layer was given in earlier segments, newest last (Dai et al. 2019).

  Its keys and values stand before those of the segment: section 3.2,
  h~ = [SG(m) . h]; no gradient goes back into it.
  """

  hidden_BMD: jax.Array

  def then(self, x_BLD: jax.Array) -> 'SegmentMemory':
    """The memory for the next segment, of the same length."""
    M = self.hidden_BMD.shape[1]
    x = x_BLD.astype(self.hidden_BMD.dtype)
    return SegmentMemory(jnp.concatenate([self.hidden_BMD, x], axis=1)[:, -M:])


Cache = KVCache | SegmentMemory


class Context(NamedTuple):
  """What all layers of a stack share; None where there is no such thing.

  Attributes:
    positions_BL: where each token stands; None means 0, 1, 2, ...
    visibility: padding and packed documents.
    bias: on the scores of self-attention, [B or 1, H, L, M].
    memory_BMD: the encoder's output, for cross-attention.
    memory_mask_BM: bool, False for padding of `memory_BMD`.
  """

  positions_BL: jax.Array | None = None
  visibility: Visibility = Visibility()
  bias: jax.Array | None = None
  memory_BMD: jax.Array | None = None
  memory_mask_BM: jax.Array | None = None


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
      cache: written at the positions, then read as a whole; or a memory, read
        as tokens that stand before `x_BLD`; with `cross`, read instead of the
        encoder's output where that is None.
      layer: index of the layer, from 0.
      cross: queries from `x_BLD`, keys and values from the encoder's output.

    Returns:
      [B, L, D] and the cache with the new keys and values; a memory as it is.
    """
    H, G, K = self.num_heads, self.num_kv_heads, self.head_size
    source_BMD = context.memory_BMD if cross else x_BLD
    if isinstance(cache, SegmentMemory):
      # A mask of the new tokens says nothing about those in the memory.
      assert not cross and self.position.relative
      assert context.positions_BL is None
      assert all(x is None for x in context.visibility)
      source_BMD = jnp.concatenate([cache.hidden_BMD, x_BLD], axis=1)
    q_BLHK = self._project('query', x_BLD, H, 'heads')
    if source_BMD is None:
      assert isinstance(cache, KVCache)
      k_BMGK, v_BMGK = cache.key_BMGK, cache.value_BMGK
    else:
      k_BMGK = self._project('key', source_BMD, G, 'kv_heads')
      v_BMGK = self._project('value', source_BMD, G, 'kv_heads')
    dropout = None
    if self.dropout and self.has_rng('dropout'):
      dropout = nn.Dropout(self.dropout, deterministic=False)
    shared = {'scale': self.scale(K, layer), 'dropout': dropout}

    if cross:
      mask = context.memory_mask_BM
      if mask is None:
        mask = jnp.ones(k_BMGK.shape[:2], bool)
      mask = jnp.broadcast_to(mask[:, None], (*x_BLD.shape[:2], mask.shape[1]))
      y_BLHK = attend(q_BLHK, k_BMGK, v_BMGK, mask=mask, **shared)
      cache = KVCache(k_BMGK, v_BMGK)
    else:
      positions = _positions(context, x_BLD.shape[1])
      if self.position.rotate is not None:
        q_BLHK = self.position.rotate(q_BLHK, positions)
        k_BMGK = self.position.rotate(k_BMGK, positions)
      if isinstance(cache, KVCache):
        # A mask of the new tokens says nothing about those in the cache.
        assert all(x is None for x in context.visibility)
        if not self.pattern.causal:
          raise UsageError(
            'model.attention=bidirectional: cannot decode with a cache, since '
            'each new token would change the states of all before it; take '
            'causal patterns'
          )
        cache = _write(cache, positions, k_BMGK, v_BMGK)
        k_BMGK, v_BMGK = cache.key_BMGK, cache.value_BMGK
      bias = context.bias
      if self.position.relative:
        q_BLHK, bias = self._relative(
          q_BLHK, x_BLD.shape[-1], k_BMGK.shape[1], positions, cache, layer
        )
      shared['bias'] = bias
      if cache is None:
        # Parameters are made with rows of one token, which few backends serve.
        initial = self.is_initializing()
        request = Request(
          q_BLHK,
          k_BMGK,
          v_BMGK,
          self.pattern,
          context.visibility,
          positions_BL=context.positions_BL,
          **shared,
        )
        y_BLHK = attend_rows(
          request, backend=reference() if initial else self.backend
        )
      else:
        # Slots past the newest token hold padding or zeros: they are later
        # than every query, so that the causal mask hides them.
        slots = jnp.arange(k_BMGK.shape[1])
        if isinstance(cache, SegmentMemory):
          positions += cache.hidden_BMD.shape[1]
        mask = self.pattern.visible(positions[:, :, None], slots[None, None])
        y_BLHK = attend(q_BLHK, k_BMGK, v_BMGK, mask=mask, **shared)
    out = Dense(
      x_BLD.shape[-1],
      ('heads', 'embed'),
      self.inits.residual,
      self.bias_out,
      self.dtype,
      name='out',
    )
    return out(y_BLHK.reshape(*x_BLD.shape[:2], H * K)), cache

  def _project(
    self, name: str, x: jax.Array, num_heads: int, axis: str
  ) -> jax.Array:
    """[B, L, D] to heads [B, L, num_heads, K]."""
    dense = Dense(
      num_heads * self.head_size,
      ('embed', axis),
      self.inits.kernel,
      self.bias_in,
      self.dtype,
      name=name,
    )
    return dense(x).reshape(*x.shape[:2], num_heads, self.head_size)

  def _relative(
    self,
    q_BLHK: jax.Array,
    d_model: int,
    num_keys: int,
    positions: jax.Array,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Transformer-XL's terms (b), (c), (d) (Dai et al. 2019, section 3.3).

    score = (q + u) k + (q + v) W_kR R_(i - j): u goes to the queries, and the
    second product is a bias on the scores.
    """
    if not self.pattern.causal:
      raise UsageError(
        'model.position=transformer_xl: looks back only, so that it needs '
        'causal attention; take another position for bidirectional layers and '
        'encoders'
      )
    L, H, K = q_BLHK.shape[1:]
    M = num_keys
    heads = ('heads', 'head')
    zeros = nn.initializers.zeros
    u_HK = parameter(self, 'content_bias', zeros, (H, K), heads)
    v_HK = parameter(self, 'position_bias', zeros, (H, K), heads)
    # Distances M - 1, ..., 1, 0.
    distances = jnp.arange(M)[::-1]
    if self.position.clamp:
      distances = jnp.minimum(distances, self.position.clamp)
    waves_MD = sinusoids(distances, d_model, layout='halves')
    project = Dense(
      H * K,
      ('embed', 'heads'),
      self.inits.kernel,
      bias=False,
      dtype=self.dtype,
      name='relative',
    )
    r_MHK = project(waves_MD.astype(self.dtype)).reshape(M, H, K)
    q_position = q_BLHK + v_HK[None, None].astype(q_BLHK.dtype)
    bias = float32_einsum('BLHK,MHK->BHLM', q_position, r_MHK)
    bias = bias * self.scale(K, layer)
    if not isinstance(cache, KVCache):
      # Row i is moved left by L - 1 - i, so that column j is the distance from
      # key j to query M - L + i; what wraps around is later, and hidden.
      bias = jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (1, 0)))
      bias = bias.reshape(*bias.shape[:2], M + 1, L)[:, :, 1:]
      bias = bias.reshape(*bias.shape[:2], L, M)
    else:
      distance = positions[:, :, None] - jnp.arange(M)[None, None]
      index = jnp.clip(M - 1 - distance, 0, M - 1)
      bias = jnp.take_along_axis(bias, index[:, None], axis=-1)
    return q_BLHK + u_HK[None, None].astype(q_BLHK.dtype), bias


def _positions(context: Context, length: int) -> jax.Array:
  """Positions [B or 1, L]."""
  if context.positions_BL is not None:
    return context.positions_BL
  return jnp.arange(length)[None]


def _write(
  cache: KVCache, positions: jax.Array, key: jax.Array, value: jax.Array
) -> KVCache:
  """Puts keys and values [B, L, G, K] into the slots of their positions."""
  rows = jnp.arange(key.shape[0])[:, None]
  return cache._replace(
    key_BMGK=cache.key_BMGK.at[rows, positions].set(key),
    value_BMGK=cache.value_BMGK.at[rows, positions].set(value),
  )
