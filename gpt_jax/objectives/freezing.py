# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with the lowest layers left as they are, or the whole model.

With layers stay the embeddings of tokens and positions, but those of the new
tokens, which no text has taught yet. With the whole model only heads learn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.nn import lowest_layers as layers
from gpt_jax.objectives.base import Objective


class Frozen:
  """Which parameters stay."""

  def __init__(self, model: Any, *, num_layers: int | None, num_rows: int):
    """The lowest `num_layers` layers, `num_rows` rows of the token table.

    `num_layers` None: all but the heads.
    """
    self._model, self._num_layers = model, num_layers
    self._num_rows = num_rows

  def masks(self, params: Any) -> Any:
    """True where a parameter stays."""
    if self._num_layers is None:
      return jax.tree_util.tree_map_with_path(
        lambda path, x: np.full((1,) * x.ndim, path[0].key != 'heads'), params
      )
    inside = layers.lowest(params, self._num_layers, self._model)
    return layers.rows_before(params, inside, self._num_rows)

  def objective(self, objective: Objective) -> Objective:
    """The objective, whose gradient is 0 in what stays."""

    def loss(params, batch, key):
      stopped = jax.lax.stop_gradient(params)
      params = layers.combine(self.masks(params), stopped, params)
      return objective.loss(params, batch, key)

    return objective._replace(loss=loss)

  def optimizer(
    self, optimizer: optax.GradientTransformation
  ) -> optax.GradientTransformation:
    """The optimizer, whose weight decay leaves alone what stays."""

    def keep(updates, params):
      zeros = jax.tree.map(jnp.zeros_like, updates)
      return layers.combine(self.masks(params), zeros, updates)

    return optax.chain(optimizer, optax.stateless(keep))
