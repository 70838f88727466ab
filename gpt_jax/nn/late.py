# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's enhanced mask decoder (He et al. 2020, section 3.2).

Absolute positions come in late: the queries of the last layer have them, its
keys and values have not. Released code applies that layer twice, each time to
its own output, with the same keys and values.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.context import Cache, Context
from gpt_jax.nn.positions import POSITIONS


class LateBlock(nn.Module):
  """A block that is applied `times` in the last of `num_layers` layers.

  z_0 = H + P; z_t = block(queries and residual z_(t - 1), keys and values H).
  In the backward pass each layer has room for what the repetitions store; with
  `remat='full'` that is their input alone. Parameters are those of the block.
  """

  block: Callable[..., nn.Module]
  times: int
  num_layers: int

  @nn.compact
  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D]; `context.late_BLD` is P."""
    block = self.block()
    nn.share_scope(self, block)
    p_BLD, last = context.late_BLD, layer == self.num_layers - 1
    assert p_BLD is not None
    context = context._replace(source_BLD=x_BLD)
    z_BLD = x_BLD + jnp.where(last, p_BLD.astype(x_BLD.dtype), 0)
    z_BLD, cache = block(z_BLD, context, cache, layer)
    if self.times == 1 or self.is_initializing():
      return z_BLD, cache

    def again(block: nn.Module, z_BLD: jax.Array) -> jax.Array:
      for _ in range(self.times - 1):
        z_BLD, _ = block(z_BLD, context, None, layer)
      return z_BLD

    def kept(block: nn.Module, z_BLD: jax.Array) -> jax.Array:
      return z_BLD

    return nn.cond(last, again, kept, block, z_BLD), cache


def without(position: str) -> str:
  """`model.position` without a mask decoder: it is for pre-training alone."""
  found = spec.bind_all('model.position', position, POSITIONS)[0]
  if not found.kwargs.get('mask_decoder'):
    return position
  rest = {n: v for n, v in found.kwargs.items() if n != 'mask_decoder'}
  return spec.written(found._replace(args=(), kwargs=rest))
