# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The convolution beside the first layer of DeBERTa's version 2.

It runs over the embeddings; the first layer's output becomes norm(output +
activation(convolution)). Released code only; the paper does not have it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.activations import ACTIVATIONS
from gpt_jax.nn.context import Cache, Context
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.dot_product import Visibility
from gpt_jax.nn.init import Initializer


class Convolved(NamedTuple):
  """What the first layer adds, and the parameters of the norm after it."""

  x_BLD: jax.Array
  norm: Any


class Convolution(nn.Module):
  """act(sum_t W_t x_(i + t) + b) over `width` neighbouring tokens.

  Padding and other documents of a packed row count as zeros. The kernel is
  [width, D, D].
  """

  width: int
  activation: str  # of `ACTIVATIONS`
  norm: Callable[..., nn.Module]
  initializer: Initializer
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array, visibility: Visibility) -> Convolved:
    """Of the embeddings [B, L, D]."""
    D, (mask_BL, segments_BL) = x_BLD.shape[-1], visibility[:2]
    shape, axes = (self.width, D, D), ('buckets', 'embed', 'mlp')
    kernel = parameter(self, 'kernel', self.initializer, shape, axes)
    bias = parameter(self, 'bias', nn.initializers.zeros, (D,), ('mlp',))
    if mask_BL is not None:
      x_BLD = x_BLD * mask_BL[..., None].astype(x_BLD.dtype)
    y_BLD = bias.astype(self.dtype)[None, None]
    for t in range(self.width):
      offset = t - self.width // 2
      tap_BLD = _neighbour(x_BLD, offset)
      if segments_BL is not None:
        same_BL = _neighbour(segments_BL, offset) == segments_BL
        tap_BLD = jnp.where(same_BL[..., None], tap_BLD, 0)
      y_BLD = y_BLD + jnp.dot(tap_BLD, kernel[t].astype(self.dtype))
    norm = self.norm(name='norm')
    if self.is_initializing():
      norm(y_BLD)
    params = nn.meta.unbox(norm.variables['params'])
    return Convolved(ACTIVATIONS[self.activation](y_BLD), params)


class FirstBlock(nn.Module):
  """A block with `context.convolved` after it in the first layer.

  Parameters are those of the block.
  """

  block: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]."""
    block = self.block()
    nn.share_scope(self, block)
    x_BLD, cache = block(x_BLD, context, cache, layer)
    added = context.convolved
    assert added is not None
    norm = self.norm(parent=None)
    normed: Any = norm.apply({'params': added.norm}, x_BLD + added.x_BLD)
    return jnp.where(layer == 0, normed, x_BLD), cache


def _neighbour(x: jax.Array, offset: int) -> jax.Array:
  """x[:, i + offset] at i, zeros beyond the ends."""
  L, reach = x.shape[1], abs(offset)
  pad = [(0, 0), (reach, reach)] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, pad)[:, reach + offset : reach + offset + L]
