# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layer that fine-tuning adds: W_y (GPT-1, equation 3)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer


class Classifier(nn.Module):
  """h W_y, without a bias, after dropout.

  Attributes:
    num_outputs: columns of W_y.
    initializer: of W_y.
    dropout: of its input (GPT-1, section 4.1: 0.1).
  """

  num_outputs: int
  initializer: Initializer
  dropout: float

  @nn.compact
  def __call__(self, hidden_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 [B, num_outputs]."""
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    shape = (hidden_BD.shape[-1], self.num_outputs)
    kernel = parameter(
      self, 'kernel', self.initializer, shape, ('embed', 'head')
    )
    # So few outputs cost nothing in float32.
    return drop(hidden_BD.astype(jnp.float32)) @ kernel.astype(jnp.float32)
