# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The residual block: attention and feed-forward layer, and where norms go."""

from collections.abc import Callable
from typing import ClassVar

import jax
from flax import linen as nn

from gpt_jax.nn.attention import KVCache


class PreNormBlock(nn.Module):
  """x + sublayer(norm(x)), for attention and then the FFN (GPT-2, 2.3)."""

  # The stream leaves the last block without a norm, so one more follows.
  final_norm: ClassVar[bool] = True

  norm: Callable[..., nn.Module]
  attention: Callable[..., nn.Module]
  ffn: Callable[..., nn.Module]
  dropout: float

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    positions_BL: jax.Array | None,
    cache: KVCache | None,
  ) -> tuple[jax.Array, KVCache | None]:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    y_BLD, cache = self.attention(name='attention')(
      self.norm(name='attention_norm')(x_BLD), positions_BL, cache
    )
    x_BLD += drop(y_BLD)
    y_BLD = self.ffn(name='ffn')(self.norm(name='ffn_norm')(x_BLD))
    return x_BLD + drop(y_BLD), cache


class PostNormBlock(nn.Module):
  """norm(x + sublayer(x)), for attention and then the FFN (GPT-1)."""

  final_norm: ClassVar[bool] = False

  norm: Callable[..., nn.Module]
  attention: Callable[..., nn.Module]
  ffn: Callable[..., nn.Module]
  dropout: float

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    positions_BL: jax.Array | None,
    cache: KVCache | None,
  ) -> tuple[jax.Array, KVCache | None]:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    y_BLD, cache = self.attention(name='attention')(x_BLD, positions_BL, cache)
    x_BLD = self.norm(name='attention_norm')(x_BLD + drop(y_BLD))
    y_BLD = self.ffn(name='ffn')(x_BLD)
    return self.norm(name='ffn_norm')(x_BLD + drop(y_BLD)), cache


BLOCKS = {'pre': lambda: PreNormBlock, 'post': lambda: PostNormBlock}
