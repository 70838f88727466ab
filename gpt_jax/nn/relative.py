# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL's attention by distance (Dai et al. 2019, section 3.3)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import KVCache
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.products import float32_einsum
from gpt_jax.nn.projections import Projections, dense
from gpt_jax.nn.sinusoids import sinusoids
from gpt_jax.nn.terms import Asked
from gpt_jax.spec import UsageError


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
    """See `Asked`.

    Raises:
      UsageError: a token may see later ones.
    """
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
