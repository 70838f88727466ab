# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a row are not the original ones (ELECTRA, section 2)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.activations import Activation
from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializer


class ReplacedHead(nn.Module):
  """w act(W h + b) + c of each token's state.

  The paper has sigmoid(w h); the released code, and so the released models,
  have the dense layer before it.

  Attributes:
    initializer: of the kernels.
    activation: act.
    dtype: of the first product.
  """

  initializer: Initializer
  activation: Activation
  dtype: Any

  @nn.compact
  def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
    """[B, L, D] to float32 logits [B, L]; above 0: replaced."""
    size = hidden_BLD.shape[-1]
    inner = Dense(
      *(size, ('embed', 'mlp'), self.initializer, True, self.dtype),
      name='replaced_dense',
    )
    # One output costs nothing in float32.
    last = Dense(
      *(1, ('embed', 'head'), self.initializer, True, jnp.float32),
      name='replaced',
    )
    x_BLD = self.activation(inner(hidden_BLD))
    return last(x_BLD.astype(jnp.float32))[..., 0]
