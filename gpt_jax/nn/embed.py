# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Token embeddings and the output head that scores the vocabulary."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer


class Embedding(nn.Module):
  """A table with one row for each token: the first layer, or the last."""

  vocab_size: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the table."""
    shape = (self.vocab_size, self.d_model)
    self.embedding = parameter(
      self, 'embedding', self.initializer, shape, ('vocab', 'embed')
    )

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Looks tokens up: [B, L] -> [B, L, D]."""
    # Looked up in whole rows, or the compiler splits the gather over both
    # axes of the table and moves all of it.
    table_VD = nn.with_logical_constraint(self.embedding, ('vocab', None))
    x_BLD = jnp.take(table_VD, tokens_BL, axis=0).astype(self.dtype)
    return nn.with_logical_constraint(x_BLD, ('batch', 'length', None))

  def table(self) -> jax.Array:
    """The table in the compute dtype, [V, D]: logits are x table^T."""
    return self.embedding.astype(self.dtype)
