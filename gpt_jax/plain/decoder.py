# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder: from tokens to the scores of the next ones."""

import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.attention import causal_mask
from gpt_jax.plain.blocks import expert_block
from gpt_jax.plain.blocks import pre_block as block
from gpt_jax.plain.layers import dropout, folded
from gpt_jax.plain.norms import layer_norm as norm
from gpt_jax.plain.positions import alibi
from gpt_jax.plain.recipe import (
  ALIBI,
  DTYPE,
  EMBEDDING_DROPOUT,
  EXPERT_EVERY,
  FINAL_NORM,
  OUTPUT_SCALE,
  PACKED,
  POSITION_TABLE,
  TIED,
  WINDOW,
)
from gpt_jax.plain.types import Batch, Params


def hidden_states(params: Params, batch: Batch) -> Array:
  """The last states of the tokens of a batch, [B, L, D]."""
  tokens = batch['inputs']
  # Without a key there is no dropout.
  key = batch.get('key')
  L = tokens.shape[1]
  mask = causal_mask(L)
  if PACKED:
    positions, segments = batch['positions'], batch['segments']
    # Documents of a row do not see each other.
    mask = mask & (segments[:, None, :, None] == segments[:, None, None, :])
  else:
    positions = jnp.arange(L)[None]
  x = params['embed']['embedding'][tokens].astype(DTYPE)
  if POSITION_TABLE:
    x = x + params['positions']['embedding'][:L].astype(DTYPE)
  x = dropout(x, EMBEDDING_DROPOUT, folded(key, len(params['layers'])))
  bias = alibi(L) if ALIBI else 0.0
  for i, layer in enumerate(params['layers']):
    if WINDOW:
      # Every second layer sees its window alone.
      near = jnp.arange(L)[:, None] - jnp.arange(L) < WINDOW
      seen = mask & near if i % 2 else mask
      x = block(x, layer, bias, seen, positions, folded(key, i))
    else:
      x = block(x, layer, bias, mask, positions, folded(key, i))
  return norm(x, params['final_norm']) if FINAL_NORM else x


def switch_states(params: Params, batch: Batch) -> tuple[Array, Array]:
  """The last states of the tokens of a batch, [B, L, D], and the sum of the experts' balances."""
  tokens = batch['inputs']
  # Without a key, when a text is written, experts take all of their tokens.
  key = batch.get('key')
  L = tokens.shape[1]
  mask, positions = causal_mask(L), jnp.arange(L)[None]
  x = params['embed']['embedding'][tokens].astype(DTYPE)
  if POSITION_TABLE:
    x = x + params['positions']['embedding'][:L].astype(DTYPE)
  x = dropout(x, EMBEDDING_DROPOUT, folded(key, len(params['layers'])))
  balances = jnp.float32(0)
  for i, layer in enumerate(params['layers']):
    if i % EXPERT_EVERY == EXPERT_EVERY - 1:
      x, balance = expert_block(x, layer, 0.0, mask, positions, folded(key, i))
      balances += balance
    else:
      x = block(x, layer, 0.0, mask, positions, folded(key, i))
  return norm(x, params['final_norm']), balances


def switch_states_alone(params: Params, batch: Batch) -> Array:
  """The last states of the tokens of a batch, [B, L, D]."""
  return switch_states(params, batch)[0]


def logits(params: Params, hidden: Array) -> Array:
  """Scores of the vocabulary, float32 [..., V]."""
  table = params['embed']['embedding'] if TIED else params['head']['embedding']
  if OUTPUT_SCALE != 1:
    hidden *= jnp.asarray(OUTPUT_SCALE, DTYPE)
  table = table.astype(DTYPE)
  return jnp.einsum('...d,vd->...v', hidden, table, preferred_element_type=jnp.float32)
