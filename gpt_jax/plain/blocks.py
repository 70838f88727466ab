# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Blocks: how sublayers, norms and residuals follow each other."""

from typing import Any

from jax import Array

from gpt_jax.plain.attention import attention as self_attention
from gpt_jax.plain.attention import cross_attention
from gpt_jax.plain.feed_forward import mlp as feed_forward
from gpt_jax.plain.layers import dropout, split
from gpt_jax.plain.norms import layer_norm as norm
from gpt_jax.plain.recipe import DECODER_GROUP_SIZE, GROUP_SIZE, RESIDUAL_DROPOUT
from gpt_jax.plain.switch import switch_layer
from gpt_jax.plain.types import Params


def pre_block(
  x: Array, layer: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> Array:
  """The sum x + sublayer(norm(x)), for attention and then for the feed-forward layer: [B, L, D]."""
  keys = split(key, 3)
  y = norm(x, layer['attention_norm'])
  y = self_attention(y, layer['attention'], bias, mask, positions, keys[0])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[1])
  y = feed_forward(norm(x, layer['ffn_norm']), layer['ffn'])
  return x + dropout(y, RESIDUAL_DROPOUT, keys[2])


def post_block(
  x: Array, layer: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> Array:
  """norm(x + sublayer(x)), for attention and then for the feed-forward layer: [B, L, D]."""
  keys = split(key, 3)
  y = self_attention(x, layer['attention'], bias, mask, positions, keys[0])
  x = norm(x + dropout(y, RESIDUAL_DROPOUT, keys[1]), layer['attention_norm'])
  y = feed_forward(x, layer['ffn'])
  return norm(x + dropout(y, RESIDUAL_DROPOUT, keys[2]), layer['ffn_norm'])


def parallel_block(
  x: Array, layer: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> Array:
  """The sum x + attention(norm(x)) + feed_forward(norm(x)): [B, L, D]."""
  keys = split(key, 3)
  h = norm(x, layer['attention_norm'])
  y = self_attention(h, layer['attention'], bias, mask, positions, keys[0])
  z = feed_forward(h, layer['ffn'])
  return x + dropout(y, RESIDUAL_DROPOUT, keys[1]) + dropout(z, RESIDUAL_DROPOUT, keys[2])


def expert_block(
  x: Array, layer: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> tuple[Array, Array]:
  """The sum x + sublayer(norm(x)), for attention and then for experts: [B, L, D], their balance."""
  keys = split(key, 4)
  y = norm(x, layer['attention_norm'])
  y = self_attention(y, layer['attention'], bias, mask, positions, keys[0])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[1])
  y, balance = switch_layer(norm(x, layer['ffn_norm']), layer['ffn'], GROUP_SIZE, keys[3])
  return x + dropout(y, RESIDUAL_DROPOUT, keys[2]), balance


def pre_cross_block(
  x: Array,
  encoded: Array,
  layer: Params,
  bias: Any,
  mask: Any,
  source_mask: Any,
  positions: Array,
  key: Array | None,
) -> Array:
  """The sum x + sublayer(norm(x)), with attention to the encoder's output between: [B, L, D]."""
  keys = split(key, 5)
  y = norm(x, layer['attention_norm'])
  y = self_attention(y, layer['attention'], bias, mask, positions, keys[0])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[1])
  y = cross_attention(norm(x, layer['cross_norm']), encoded, layer['cross'], source_mask, keys[2])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[3])
  y = feed_forward(norm(x, layer['ffn_norm']), layer['ffn'])
  return x + dropout(y, RESIDUAL_DROPOUT, keys[4])


def post_cross_block(
  x: Array,
  encoded: Array,
  layer: Params,
  bias: Any,
  mask: Any,
  source_mask: Any,
  positions: Array,
  key: Array | None,
) -> Array:
  """norm(x + sublayer(x)), with attention to the encoder's output between: [B, L, D]."""
  keys = split(key, 5)
  y = self_attention(x, layer['attention'], bias, mask, positions, keys[0])
  x = norm(x + dropout(y, RESIDUAL_DROPOUT, keys[1]), layer['attention_norm'])
  y = cross_attention(x, encoded, layer['cross'], source_mask, keys[2])
  x = norm(x + dropout(y, RESIDUAL_DROPOUT, keys[3]), layer['cross_norm'])
  y = feed_forward(x, layer['ffn'])
  return norm(x + dropout(y, RESIDUAL_DROPOUT, keys[4]), layer['ffn_norm'])


def cross_expert_block(
  x: Array, encoded: Array, layer: Params, bias: Any, mask: Any, positions: Array, key: Array | None
) -> tuple[Array, Array]:
  """As `expert_block`, with attention to the whole of the encoder's output between."""
  keys = split(key, 6)
  y = norm(x, layer['attention_norm'])
  y = self_attention(y, layer['attention'], bias, mask, positions, keys[0])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[1])
  y = cross_attention(norm(x, layer['cross_norm']), encoded, layer['cross'], True, keys[2])
  x = x + dropout(y, RESIDUAL_DROPOUT, keys[3])
  h = norm(x, layer['ffn_norm'])
  y, balance = switch_layer(h, layer['ffn'], DECODER_GROUP_SIZE, keys[4])
  return x + dropout(y, RESIDUAL_DROPOUT, keys[5]), balance
