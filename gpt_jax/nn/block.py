# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The residual block: which sublayers there are, and where norms go."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.context import Cache, Context, KVCache, SegmentMemory
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError

Factory = Callable[..., nn.Module]
Result = tuple[jax.Array, Cache | None]


class PreNormBlock(nn.Module):
  """x + sublayer(norm(x)), one sublayer after the other (GPT-2, 2.3).

  `cross` adds attention to the encoder's output between the two others.
  """

  norm: Factory
  attention: Factory
  ffn: Factory
  dropout: float
  cross: bool

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    norm = self.norm(name='attention_norm')
    y_BLD, cache = self.attention(name='attention')(
      layout.gather(norm(x_BLD)),
      context,
      _normalized(cache, norm),
      layer=layer,
    )
    x_BLD = layout.stream(x_BLD + drop(y_BLD))
    if self.cross:
      h_BLD = layout.gather(self.norm(name='cross_norm')(x_BLD))
      attention = self.attention(name='cross')
      y_BLD, cache = _across(attention, h_BLD, context, cache, layer)
      x_BLD = layout.stream(x_BLD + drop(y_BLD))
    h_BLD = layout.gather(self.norm(name='ffn_norm')(x_BLD))
    y_BLD = self.ffn(name='ffn')(h_BLD, decoding=isinstance(cache, KVCache))
    return layout.stream(x_BLD + drop(y_BLD)), cache


class PostNormBlock(nn.Module):
  """norm(x + sublayer(x)), one sublayer after the other (the Transformer,
  GPT-1). `cross` as in `PreNormBlock`.
  """

  norm: Factory
  attention: Factory
  ffn: Factory
  dropout: float
  cross: bool

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    y_BLD, cache = self.attention(name='attention')(
      layout.gather(x_BLD), context, cache, layer=layer
    )
    x_BLD = layout.stream(x_BLD + drop(y_BLD))
    x_BLD = layout.stream(self.norm(name='attention_norm')(x_BLD))
    if self.cross:
      h_BLD, attention = layout.gather(x_BLD), self.attention(name='cross')
      y_BLD, cache = _across(attention, h_BLD, context, cache, layer)
      x_BLD = layout.stream(x_BLD + drop(y_BLD))
      x_BLD = layout.stream(self.norm(name='cross_norm')(x_BLD))
    y_BLD = self.ffn(name='ffn')(
      layout.gather(x_BLD), decoding=isinstance(cache, KVCache)
    )
    x_BLD = layout.stream(x_BLD + drop(y_BLD))
    return layout.stream(self.norm(name='ffn_norm')(x_BLD)), cache


class ParallelBlock(nn.Module):
  """x + attention(norm(x)) + ffn(norm(x)) (PaLM, section 2).

  With `num_norms=2` each sublayer has its own norm (GPT-NeoX, Falcon 40B).
  """

  num_norms: int
  norm: Factory
  attention: Factory
  ffn: Factory
  dropout: float
  cross: bool

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> Result:
    """[B, L, D] -> [B, L, D] and the cache with this block's keys, values."""
    if self.cross:
      raise UsageError(
        'model.block=parallel: has no cross-attention; take pre or post for an '
        'encoder-decoder, or set model.num_encoder_layers=0'
      )
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    norm = self.norm(name='attention_norm')
    h_BLD = layout.gather(norm(x_BLD))
    y_BLD, cache = self.attention(name='attention')(
      h_BLD, context, _normalized(cache, norm), layer=layer
    )
    if self.num_norms == 2:
      h_BLD = layout.gather(self.norm(name='ffn_norm')(x_BLD))
    z_BLD = self.ffn(name='ffn')(h_BLD, decoding=isinstance(cache, KVCache))
    return layout.stream(x_BLD + drop(y_BLD) + drop(z_BLD)), cache


def _across(
  attention: nn.Module,
  h_BLD: jax.Array,
  context: Context,
  cache: Cache | None,
  layer: jax.Array,
) -> Result:
  """Attention to the encoder's output, kept in the cache where it has room."""
  seen = cache.cross if isinstance(cache, KVCache) else None
  y_BLD, seen = attention(h_BLD, context, seen, layer=layer, cross=True)
  if isinstance(cache, KVCache) and cache.cross is not None:
    cache = cache._replace(cross=seen)
  return y_BLD, cache


def _normalized(cache: Cache | None, norm: nn.Module) -> Cache | None:
  """A memory as attention's input is; it holds inputs of blocks."""
  if isinstance(cache, SegmentMemory):
    return SegmentMemory(norm(cache.hidden_BMD))
  return cache


class Choice(NamedTuple):
  """A block, and whether a norm follows the last one.

  Where the blocks do not normalise the stream itself, one more norm does.
  """

  make: Factory
  final_norm: bool


def pre() -> Choice:
  """GPT-2, LLaMA, T5."""
  return Choice(PreNormBlock, True)


def post() -> Choice:
  """The Transformer, GPT-1, BERT."""
  return Choice(PostNormBlock, False)


def parallel(num_norms: Count = 1) -> Choice:
  """GPT-J, PaLM, Falcon 7B; with two norms GPT-NeoX, Falcon 40B."""
  if num_norms not in (1, 2):
    raise UsageError(f'model.block: num_norms={num_norms} must be 1 or 2')
  return Choice(functools.partial(ParallelBlock, num_norms), True)


BLOCKS = {'parallel': parallel, 'post': post, 'pre': pre}
