# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What layers read beside their input, and what they share.

In DeBERTa and in Transformer-XL.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.context import Context
from gpt_jax.nn.convolution import Convolution
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.positions import LearnedPositions, Position
from gpt_jax.nn.relative import RelativeBiases


class Besides(nn.Module):
  """`table`, `convolution`, `late`, `shared_biases`: what the position has."""

  position: Position
  context_length: int
  d_model: int
  num_heads: int
  head_size: int
  norm: Callable[..., nn.Module]
  inits: Initializers
  dtype: Any

  def setup(self):
    """Creates the parts that the position has."""
    position, inits = self.position, self.inits
    if position.table:
      self.distances = position.table(
        self.d_model, self.norm, inits.position, self.dtype
      )
    if position.convolution:
      self.convolution = Convolution(
        position.convolution,
        position.activation,
        self.norm,
        inits.kernel,
        self.dtype,
      )
    if position.late:
      self.late_positions = LearnedPositions(
        0, self.context_length, inits.position
      )
    if position.shared_biases:
      self.relative_biases = RelativeBiases(self.num_heads, self.head_size)

  def __call__(self, context: Context, x_BLD: jax.Array) -> Context:
    """The context with them; `x_BLD` are the embeddings."""
    position = self.position
    if position.table:
      context = context._replace(table_ND=self.distances())
    if position.convolution:
      convolved = self.convolution(x_BLD, context.visibility)
      context = context._replace(convolved=convolved)
    if position.late:
      zeros = jnp.zeros_like(x_BLD)
      late_BLD = self.late_positions(zeros, context.positions_BL)
      context = context._replace(late_BLD=late_BLD)
    if position.shared_biases:
      context = context._replace(relative_biases=self.relative_biases())
    return context
