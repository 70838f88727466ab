# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder: from a source and the tokens written so far to the scores of the next."""

import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.attention import causal_mask
from gpt_jax.plain.blocks import cross_expert_block, expert_block
from gpt_jax.plain.blocks import pre_block as block
from gpt_jax.plain.blocks import pre_cross_block as cross_block
from gpt_jax.plain.layers import dropout, folded, split
from gpt_jax.plain.norms import layer_norm as norm
from gpt_jax.plain.positions import bucket_bias, sinusoids
from gpt_jax.plain.recipe import (
  D_MODEL,
  DTYPE,
  EMBEDDING_DROPOUT,
  EMBEDDING_SCALE,
  EXPERT_EVERY,
  FINAL_NORM,
  NUM_ENCODER_LAYERS,
  PACKED,
  SCORE_BIAS,
  SINUSOIDS,
)
from gpt_jax.plain.types import Batch, Params


def embedded(params: Params, tokens: Array, positions: Array, key: Array | None) -> Array:
  """The vectors of tokens: of either side, by one table."""
  x = params['embed']['embedding'][tokens].astype(DTYPE)
  if EMBEDDING_SCALE != 1:
    x *= jnp.asarray(EMBEDDING_SCALE, DTYPE)
  if SINUSOIDS:
    x += sinusoids(positions, D_MODEL).astype(DTYPE)
  return dropout(x, EMBEDDING_DROPOUT, key)


def encode(params: Params, batch: Batch) -> Array:
  """The encoder's output, [B, M, D]."""
  sources, key = batch['sources'], folded(batch.get('key'), 0)
  places = jnp.arange(sources.shape[1])
  if PACKED:
    positions, segments = batch['source_positions'], batch['source_segments']
    # Texts of a row do not see each other.
    mask = batch['source_mask'][:, None, None, :]
    mask = mask & (segments[:, None, :, None] == segments[:, None, None, :])
  else:
    positions, mask = places[None], True
  x = embedded(params, sources, positions, folded(key, NUM_ENCODER_LAYERS))
  bias = 0.0
  if SCORE_BIAS:
    # One table for all layers.
    bias = bucket_bias(params['encoder_bias']['embedding'], places, places, True)
  for i, layer in enumerate(params['encoder_layers']):
    x = block(x, layer, bias, mask, positions, folded(key, i))
  return norm(x, params['encoder_norm']) if FINAL_NORM else x


def seq2seq_states(params: Params, batch: Batch) -> Array:
  """The last states of the decoder's tokens, [B, L, D]; without a key there is no dropout."""
  memory = encode(params, batch)
  tokens, key = batch['inputs'], folded(batch.get('key'), 1)
  places = jnp.arange(tokens.shape[1])
  mask = causal_mask(tokens.shape[1])
  if PACKED:
    positions, segments = batch['positions'], batch['segments']
    mask = mask & (segments[:, None, :, None] == segments[:, None, None, :])
    source_mask = segments[:, None, :, None] == batch['source_segments'][:, None, None, :]
    source_mask = source_mask & batch['source_mask'][:, None, None, :]
  else:
    positions, source_mask = places[None], True
  x = embedded(params, tokens, positions, folded(key, len(params['layers'])))
  bias = 0.0
  if SCORE_BIAS:
    bias = bucket_bias(params['decoder_bias']['embedding'], places, places, False)
  for i, layer in enumerate(params['layers']):
    x = cross_block(x, memory, layer, bias, mask, source_mask, positions, folded(key, i))
  return norm(x, params['final_norm']) if FINAL_NORM else x


def switch_seq2seq_states(params: Params, batch: Batch) -> tuple[Array, Array]:
  """The last states of the decoder's tokens, [B, L, D], and the sum of all experts' balances."""
  # Without a key, when a text is written, experts take all of their tokens.
  keys = split(batch.get('key'), 2)
  balances = jnp.float32(0)
  places = jnp.arange(batch['sources'].shape[1])
  x = embedded(params, batch['sources'], places[None], folded(keys[0], NUM_ENCODER_LAYERS))
  bias = bucket_bias(params['encoder_bias']['embedding'], places, places, True)
  for i, layer in enumerate(params['encoder_layers']):
    if i % EXPERT_EVERY == EXPERT_EVERY - 1:
      x, balance = expert_block(x, layer, bias, True, places[None], folded(keys[0], i))
      balances += balance
    else:
      x = block(x, layer, bias, True, places[None], folded(keys[0], i))
  memory = norm(x, params['encoder_norm'])
  places, mask = jnp.arange(batch['inputs'].shape[1]), causal_mask(batch['inputs'].shape[1])
  x = embedded(params, batch['inputs'], places[None], folded(keys[1], len(params['layers'])))
  bias = bucket_bias(params['decoder_bias']['embedding'], places, places, False)
  for i, layer in enumerate(params['layers']):
    key = folded(keys[1], i)
    if i % EXPERT_EVERY == EXPERT_EVERY - 1:
      x, balance = cross_expert_block(x, memory, layer, bias, mask, places[None], key)
      balances += balance
    else:
      x = cross_block(x, memory, layer, bias, mask, True, places[None], key)
  return norm(x, params['final_norm']), balances


def switch_seq2seq_states_alone(params: Params, batch: Batch) -> Array:
  """The last states of the decoder's tokens, [B, L, D]."""
  return switch_seq2seq_states(params, batch)[0]
