# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Positions that score by the queries and keys themselves.

Transformer-XL, XLNet and DeBERTa add products of queries or keys with vectors
of distances (or of segments) to the scores. `Position.terms` makes a module
for each layer, from its `Projections`, that is called with what is below:
`relative.TransformerXL`, `disentangled.Disentangled`. Its parameters stand
beside the projections'.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.nn.context import Cache, Context, KVCache, SegmentMemory
from gpt_jax.nn.dense import Projections, dense, parameter
from gpt_jax.nn.dot_product import float32_einsum
from gpt_jax.nn.masks import Pattern
from gpt_jax.spec import UsageError


class Asked(NamedTuple):
  """Queries [B, L, H, K] and keys [B, M, G, K], and where they stand.

  A module of `Position.terms` is called with an `Asked` alone and returns the
  queries, changed or not, and a bias on the scores [B or 1, H, L, M] or None:
  score = scale * queries' keys + bias, so that the bias is already scaled.

  Attributes:
    q_BLHK: queries.
    k_BMGK: keys, those of a memory first; of the new tokens alone where the
      others are in a `KVCache`.
    context: positions, visibility, whatever else the layers share.
    cache: a `KVCache`'s slots, M of them, are the positions 0, 1, 2, ...;
      otherwise the queries stand where the last L keys do.
    pattern: which keys are seen.
    layer: index of the layer, from 0.
    scale: of the products of queries and keys.
    d_model: width of the hidden states.
  """

  q_BLHK: jax.Array
  k_BMGK: jax.Array
  context: Context
  cache: Cache | None
  pattern: Pattern
  layer: jax.Array
  scale: float | jax.Array
  d_model: int

  @property
  def num_keys(self) -> int:
    """M."""
    if isinstance(self.cache, KVCache):
      return self.cache.num_slots
    return self.k_BMGK.shape[1]


# Sines and cosines of positions or distances.


def sinusoids(positions: jax.Array, d_model: int, *, layout: str) -> jax.Array:
  """Sines and cosines of positions / 10000^(2 i / d_model), float32.

  `interleaved` puts sine and cosine of one wave side by side (the paper's);
  `halves` puts all sines before all cosines (tensor2tensor, Transformer-XL).
  """
  if d_model % 2:
    raise UsageError(
      f'model.d_model={d_model}: must be even, for pairs of sine and cosine'
    )
  waves = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
  waves = jnp.asarray(waves, jnp.float32)
  lead = (1,) * positions.ndim + (-1,)
  angles = positions.astype(jnp.float32)[..., None] * waves.reshape(lead)
  both = [jnp.sin(angles), jnp.cos(angles)]
  if layout == 'halves':
    return jnp.concatenate(both, axis=-1)
  return jnp.stack(both, axis=-1).reshape(*positions.shape, d_model)


# Transformer-XL's attention by distance (Dai et al. 2019, section 3.3).


class RelativeBiases(nn.Module):
  """u and v [H, K] of a layer, or, as in the paper, of all layers."""

  num_heads: int
  head_size: int

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """Both."""
    zeros, axes = nn.initializers.zeros, ('heads', 'head')
    shape = self.num_heads, self.head_size
    return (
      parameter(self, 'content_bias', zeros, shape, axes),
      parameter(self, 'position_bias', zeros, shape, axes),
    )


class TransformerXL(nn.Module):
  """Its terms (b), (c), (d): a module of `Position.terms`.

  score = (q + u) k + (q + v) W_kR R_(i - j): u goes to the queries, and the
  second product is a bias on the scores. Distances above `clamp`, where that
  is not 0, count as that one. With `shared` u and v are those of the context.
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

  def __call__(self, asked: Asked) -> tuple[jax.Array, jax.Array]:
    """See `Asked`."""
    context, q_BLHK = asked.context, asked.q_BLHK
    if not asked.pattern.causal or context.visibility.prefix_B is not None:
      raise UsageError(
        'model.position=transformer_xl: looks back only, so that it needs '
        'causal attention; take another position for bidirectional layers, '
        'encoders and prefixes'
      )
    biases = context.relative_biases if self.shared else self.biases()
    assert biases is not None
    q_content, q_position = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype) for bias_HK in biases
    )
    r_MHK = self._distances(asked.num_keys, asked.d_model)
    bias: jax.Array = float32_einsum('BLHK,MHK->BHLM', q_position, r_MHK)
    bias *= asked.scale
    if isinstance(asked.cache, KVCache):
      positions_BL = context.positions(q_BLHK.shape[1])
      return q_content, _at_positions(bias, positions_BL)
    return q_content, moved_left(bias)

  def _distances(self, num_keys: int, d_model: int) -> jax.Array:
    """W_kR R of the distances M - 1, ..., 1, 0: [M, H, K]."""
    distances = jnp.arange(num_keys)[::-1]
    if self.clamp:
      distances = jnp.minimum(distances, self.clamp)
    waves_MD = sinusoids(distances, d_model, layout='halves')
    waves_1MD = waves_MD.astype(self.projections.dtype)[None]
    return self.projections.heads(self.relative(waves_1MD))[0]


def moved_left(x_BHLN: jax.Array) -> jax.Array:
  """Row i moved left by L - 1 - i: from distances to keys.

  Of N = M distances M - 1, ..., 1, 0 column j becomes that of key j from query
  M - L + i; what wraps around is later, and hidden. Of N = 2 L - 1 distances
  L - 1, ..., 1 - L column j < L becomes that of key j from query i.
  """
  B, H, L, N = x_BHLN.shape
  x = jnp.pad(x_BHLN, ((0, 0), (0, 0), (0, 0), (1, 0)))
  return x.reshape(B, H, N + 1, L)[:, :, 1:].reshape(B, H, L, N)


def _at_positions(bias_BHLM: jax.Array, positions_BL: jax.Array) -> jax.Array:
  """From distances M - 1, ..., 0 to keys, for queries at some positions."""
  M = bias_BHLM.shape[-1]
  distance_BLM = positions_BL[:, :, None] - jnp.arange(M)[None, None]
  index_BLM = jnp.clip(M - 1 - distance_BLM, 0, M - 1)
  return jnp.take_along_axis(bias_BHLM, index_BLM[:, None], axis=-1)


# XLNet's attention by distance and segment (Yang et al. 2019, 2.4 and 2.5).


class SegmentTerms(nn.Module):
  """Its terms: a module of `Position.terms`.

  score = (q + u) k + (q + v) W_kR R_(i - j) + (q + w) s, where s is one vector
  where both tokens are of the same type, and another where they are not. As
  Transformer-XL, but to both sides; tokens of a memory are of type 0. Distances
  above `clamp`, where that is not 0, count as that one.
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

  def __call__(self, asked: Asked) -> tuple[jax.Array, jax.Array]:
    """See `Asked`."""
    if isinstance(asked.cache, KVCache):
      raise UsageError(
        'model.position=xlnet: cannot decode with a cache; score texts, or '
        'take transformer_xl'
      )
    context, q_BLHK = asked.context, asked.q_BLHK
    q_content, q_position, q_segment = (
      q_BLHK + bias_HK[None, None].astype(q_BLHK.dtype)
      for bias_HK in (self.content_bias, self.position_bias, self.segment_bias)
    )
    num_keys, M = asked.num_keys, 0
    if isinstance(asked.cache, SegmentMemory):
      M = asked.cache.hidden_BMD.shape[1]
    L = num_keys - M
    r_RHK = self._distances(num_keys, L, asked.d_model)
    bias: Any = float32_einsum('BLHK,RHK->BHLR', q_position, r_RHK)
    parts = [_shifted(bias[:, :, :L], num_keys)]
    if context.asked_BP is not None:
      parts.append(_at(bias[:, :, L:], context.asked_BP, num_keys, L))
    bias = jnp.concatenate(parts, axis=2)
    if context.token_types_BL is not None:
      segments = self.segments.astype(q_segment.dtype)
      either: Any = float32_einsum('BLHK,SHK->BHLS', q_segment, segments)
      types_BL = context.token_types_BL
      of_keys = jnp.pad(types_BL[:, :L], ((0, 0), (M, 0)))
      other_BLM = types_BL[:, :, None] != of_keys[:, None]
      bias += jnp.where(other_BLM[:, None], either[..., 1:], either[..., :1])
    return q_content, bias * asked.scale

  def _distances(self, num_keys: int, length: int, d_model: int) -> jax.Array:
    """W_kR R of the distances M - 1, ..., 0, ..., 1 - L: [M + L - 1, H, K]."""
    distances = jnp.arange(num_keys - 1, -length, -1)
    if self.clamp:
      distances = jnp.clip(distances, -self.clamp, self.clamp)
    waves_RD = sinusoids(distances, d_model, layout='halves')
    waves_1RD = waves_RD.astype(self.projections.dtype)[None]
    return self.projections.heads(self.relative(waves_1RD))[0]


def _shifted(bias_BHLR: jax.Array, num_keys: int) -> jax.Array:
  """From distances to keys, for queries that stand where the last keys do.

  Row i is moved left by L - 1 - i: of M - 1, ..., 1 - L it begins with
  M - L + i, the distance from the first key.
  """
  B, H, L, R = bias_BHLR.shape
  bias = jnp.pad(bias_BHLR, ((0, 0), (0, 0), (0, 0), (1, 0)))
  bias = bias.reshape(B, H, R + 1, L)[:, :, 1:].reshape(B, H, L, R)
  return bias[..., :num_keys]


def _at(
  bias_BHPR: jax.Array, asked_BP: jax.Array, num_keys: int, length: int
) -> jax.Array:
  """From distances to keys, for queries at places of the last `length` keys."""
  first_BP = length - 1 - asked_BP
  index_BPM = first_BP[..., None] + jnp.arange(num_keys)[None, None]
  return jnp.take_along_axis(bias_BHPR, index_BPM[:, None], axis=-1)
