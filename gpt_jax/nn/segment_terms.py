# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet's attention by distance and segment (Yang et al. 2019, 2.4 and 2.5)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import KVCache, SegmentMemory
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.products import float32_einsum
from gpt_jax.nn.projections import Projections, dense
from gpt_jax.nn.sinusoids import sinusoids
from gpt_jax.nn.terms import Asked
from gpt_jax.spec import UsageError


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
    """See `Asked`.

    Raises:
      UsageError: keys and values are cached, of which no types are known.
    """
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
