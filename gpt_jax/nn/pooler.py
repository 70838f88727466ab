# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One vector for a row, and what says how its two texts belong together."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.activations import Activation
from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializer


class Pooler(nn.Module):
  """act(W h + b) of the first token's state; with tanh it is BERT's C."""

  initializer: Initializer
  dtype: Any
  activation: Activation = jnp.tanh

  @nn.compact
  def __call__(self, hidden_BD: jax.Array) -> jax.Array:
    """[B, D] to [B, D]."""
    size = hidden_BD.shape[-1]
    dense = Dense(
      size, ('embed', 'mlp'), self.initializer, True, self.dtype, name='dense'
    )
    nn.share_scope(self, dense)
    return self.activation(dense(hidden_BD))


class PairHead(nn.Module):
  """Whether B follows A (0) or not (1), from the pooled vector."""

  initializer: Initializer

  @nn.compact
  def __call__(self, pooled_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 logits [B, 2]."""
    # So few outputs cost nothing in float32.
    dense = Dense(
      2, ('embed', 'head'), self.initializer, True, jnp.float32, name='dense'
    )
    nn.share_scope(self, dense)
    return dense(pooled_BD.astype(jnp.float32))
