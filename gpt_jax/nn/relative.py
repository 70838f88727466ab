# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL's attention by distance (Dai et al. 2019, section 3.3)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import Cache, Context, KVCache
from gpt_jax.nn.dense import Dense, parameter
from gpt_jax.nn.dot_product import float32_einsum
from gpt_jax.nn.positions import sinusoids
from gpt_jax.spec import UsageError


def relative(
  attention: Any,
  q_BLHK: jax.Array,
  d_model: int,
  num_keys: int,
  context: Context,
  cache: Cache | None,
  layer: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """The terms (b), (c), (d), whose parameters are those of `attention`.

  score = (q + u) k + (q + v) W_kR R_(i - j): u goes to the queries, and the
  second product is a bias on the scores.

  Raises:
    UsageError: a token may see later ones.
  """
  if not attention.pattern.causal or context.visibility.prefix_B is not None:
    raise UsageError(
      'model.position=transformer_xl: looks back only, so that it needs '
      'causal attention; take another position for bidirectional layers, '
      'encoders and prefixes'
    )
  H, K = q_BLHK.shape[2:]
  heads = ('heads', 'head')
  zeros = nn.initializers.zeros
  u_HK = parameter(attention, 'content_bias', zeros, (H, K), heads)
  v_HK = parameter(attention, 'position_bias', zeros, (H, K), heads)
  r_MHK = _distances(attention, num_keys, d_model)
  q_position = q_BLHK + v_HK[None, None].astype(q_BLHK.dtype)
  bias: Any = float32_einsum('BLHK,MHK->BHLM', q_position, r_MHK)
  bias = bias * attention.scale(K, layer)
  if isinstance(cache, KVCache):
    bias = _at_positions(bias, context.positions(q_BLHK.shape[1]))
  else:
    bias = _at_the_end(bias)
  return q_BLHK + u_HK[None, None].astype(q_BLHK.dtype), bias


def _distances(attention: Any, num_keys: int, d_model: int) -> jax.Array:
  """W_kR R of the distances M - 1, ..., 1, 0: [M, H, K]."""
  distances = jnp.arange(num_keys)[::-1]
  if attention.position.clamp:
    distances = jnp.minimum(distances, attention.position.clamp)
  waves_MD = sinusoids(distances, d_model, layout='halves')
  project = Dense(
    attention.num_heads * attention.head_size,
    ('embed', 'heads'),
    attention.inits.kernel,
    bias=False,
    dtype=attention.dtype,
    name='relative',
  )
  r_MD = project(waves_MD.astype(attention.dtype))
  return r_MD.reshape(num_keys, attention.num_heads, attention.head_size)


def _at_the_end(bias_BHLM: jax.Array) -> jax.Array:
  """From distances M - 1, ..., 0 to keys, for queries that are the last.

  Row i is moved left by L - 1 - i, so that column j is the distance from key j
  to query M - L + i; what wraps around is later, and hidden.
  """
  B, H, L, M = bias_BHLM.shape
  bias = jnp.pad(bias_BHLM, ((0, 0), (0, 0), (0, 0), (1, 0)))
  return bias.reshape(B, H, M + 1, L)[:, :, 1:].reshape(B, H, L, M)


def _at_positions(bias_BHLM: jax.Array, positions_BL: jax.Array) -> jax.Array:
  """From distances M - 1, ..., 0 to keys, for queries at some positions."""
  M = bias_BHLM.shape[-1]
  distance_BLM = positions_BL[:, :, None] - jnp.arange(M)[None, None]
  index_BLM = jnp.clip(M - 1 - distance_BLM, 0, M - 1)
  return jnp.take_along_axis(bias_BHLM, index_BLM[:, None], axis=-1)
