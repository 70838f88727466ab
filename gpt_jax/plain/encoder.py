# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The encoder: from tokens to the scores of those that were masked, and of the second text."""

import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.blocks import post_block as block
from gpt_jax.plain.layers import dense, dropout, folded
from gpt_jax.plain.layers import gelu_exact as activation
from gpt_jax.plain.norms import layer_norm as norm
from gpt_jax.plain.recipe import DTYPE, EMBEDDING_DROPOUT
from gpt_jax.plain.types import Batch, Params


def encoder_states(params: Params, batch: Batch) -> Array:
  """The last states of the tokens of a batch, [B, L, D]; without a key there is no dropout."""
  tokens, key = batch['inputs'], batch.get('key')
  x = params['embed']['embedding'][tokens].astype(DTYPE)
  x += params['segments']['embedding'][batch['token_types']].astype(DTYPE)
  x += params['positions']['embedding'][: tokens.shape[1]].astype(DTYPE)
  x = dropout(norm(x, params['embed_norm']), EMBEDDING_DROPOUT, folded(key, len(params['layers'])))
  mask, positions = batch['mask'][:, None, None, :], jnp.arange(tokens.shape[1])[None]
  for i, layer in enumerate(params['layers']):
    x = block(x, layer, 0.0, mask, positions, folded(key, i))
  return x


def masked_logits(params: Params, hidden: Array, positions: Array) -> Array:
  """Scores of the vocabulary for the masked tokens alone, float32 [B, P, V]."""
  hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)
  hidden = norm(activation(dense(hidden, params['output_dense'])), params['output_norm'])
  table = params['embed']['embedding'].astype(DTYPE)
  scores = jnp.einsum('bpd,vd->bpv', hidden, table, preferred_element_type=jnp.float32)
  return scores + params['head_bias']


def pair_logits(params: Params, hidden: Array) -> Array:
  """Whether the second text follows the first (0) or not (1), by the state of [CLS]: [B, 2]."""
  pooled = jnp.tanh(dense(hidden[:, 0], params['heads']['pooler']))
  pair = params['heads']['pair']
  return pooled.astype(jnp.float32) @ pair['kernel'] + pair['bias']
