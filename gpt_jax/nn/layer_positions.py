# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Positions that are added before every layer (Al-Rfou et al. 2018)."""

from collections.abc import Callable

import jax
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.context import Cache, Context


class WithPositions(nn.Module):
  """block(x + the layer's own vectors of the positions).

  The paper's depth is why: the order would be lost on the way through 64
  layers. The block's parameters keep their names.
  """

  block: Callable[..., nn.Module]
  make_positions: Callable[..., nn.Module]

  def setup(self):
    """Creates the table, beside the block's parameters."""
    self.inner = self.block()
    nn.share_scope(self, self.inner)
    self.positions = self.make_positions()

  def __call__(
    self,
    x_BLD: jax.Array,
    context: Context,
    cache: Cache | None,
    layer: jax.Array,
  ) -> tuple[jax.Array, Cache | None]:
    """[B, L, D] -> [B, L, D] and the cache, as a block's."""
    x_BLD = layout.stream(self.positions(x_BLD, context.positions_BL))
    return self.inner(x_BLD, context, cache, layer)
