# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Global tokens before a row that are none of its own (BigBird's extended
construction, Zaheer et al., 2020, section 2; ETC, Ainslie et al., 2020).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import Context
from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer
from gpt_jax.spec import UsageError


class ExtraTokens(nn.Module):
  """Learned vectors that go through the layers before each row."""

  number: int
  initializer: Initializer
  dtype: Any

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """[B, L, D] -> [B, number + L, D], and the context of such rows.

    Raises:
      UsageError: the position is a bias on the scores, which has no entries
        for these tokens.
    """
    if context.bias is not None:
      raise UsageError(
        'model.position: adds a bias of distances, which the tokens of '
        'model.attention=bigbird(extra=...) have not; take learned, '
        'sinusoidal, rope or none'
      )
    shape, axes = (self.number, x_BLD.shape[-1]), ('position', 'embed')
    table_ED = parameter(self, 'embedding', self.initializer, shape, axes)
    front = jnp.broadcast_to(
      table_ED.astype(self.dtype)[None], (len(x_BLD), *shape)
    )
    return jnp.concatenate([front, x_BLD], axis=1), self._before(context)

  def _before(self, context: Context) -> Context:
    """All see these tokens; the row's own stand so much further back."""
    E, seen = self.number, context.visibility
    mask_BM, visible_BLM = seen.key_mask_BM, seen.visible_BLM
    if mask_BM is not None:
      mask_BM = jnp.pad(mask_BM, ((0, 0), (E, 0)), constant_values=True)
    if visible_BLM is not None:
      widths = ((0, 0), (E, 0), (E, 0))
      visible_BLM = jnp.pad(visible_BLM, widths, constant_values=True)
    positions_BL = context.positions_BL
    if positions_BL is not None:
      front = jnp.broadcast_to(jnp.arange(E)[None], (len(positions_BL), E))
      positions_BL = jnp.concatenate([front, positions_BL + E], axis=1)
    return context._replace(
      positions_BL=positions_BL,
      visibility=seen._replace(key_mask_BM=mask_BM, visible_BLM=visible_BLM),
    )
