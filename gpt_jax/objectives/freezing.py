# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training some parameters with the others frozen."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.nn import params as params_lib
from gpt_jax.objectives.base import Objective


class Frozen:
  """The set of frozen parameters."""

  def __init__(self, masks: Callable[[Any], Any]):
    """`masks(params)` is true where frozen: see `params.matching`."""
    self.masks = masks

  def objective(self, objective: Objective) -> Objective:
    """The objective, with zero gradients for frozen parameters."""

    def loss(params, batch, key):
      stopped = jax.lax.stop_gradient(params)
      params = params_lib.combine(self.masks(params), stopped, params)
      return objective.loss(params, batch, key)

    return objective.replaced(loss=loss)

  def optimizer(
    self, optimizer: optax.GradientTransformation
  ) -> optax.GradientTransformation:
    """The optimizer, with zero updates (weight decay) for frozen ones."""

    def keep(updates, params):
      zeros = jax.tree.map(jnp.zeros_like, updates)
      return params_lib.combine(self.masks(params), zeros, updates)

    return optax.chain(optimizer, optax.stateless(keep))


def lowest(model: Any, num_layers: int, num_rows: int) -> Frozen:
  """Freezes the lowest layers, and the embeddings below them.

  The embeddings of new tokens, which are untrained, are not frozen.

  Args:
    model: the decoder or encoder.
    num_layers: number of frozen layers, from the lowest on.
    num_rows: number of frozen rows of the token table.
  """

  def masks(params: Any) -> Any:
    inside = params_lib.lowest(params, num_layers, model)
    return params_lib.rows_before(params, inside, num_rows)

  return Frozen(masks)


def body() -> Frozen:
  """Freezes all but the heads."""
  return Frozen(
    lambda params: jax.tree_util.tree_map_with_path(
      lambda path, x: np.full((1,) * x.ndim, path[0].key != 'heads'), params
    )
  )


def all_but(patterns: str) -> Frozen:
  """Freezes all that the patterns do not match: see `params.matching`."""
  return Frozen(
    lambda params: jax.tree.map(
      np.logical_not, params_lib.matching(params, patterns)
    )
  )
