# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training some parameters with the others frozen, or more slowly."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import Batch, Loss, Params
from gpt_jax.core.optim.train_state import Stages


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

  def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
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
  return Frozen(lambda params: jax.tree.map(np.logical_not, params_lib.matching(params, patterns)))


def only(
  patterns: str, objective: Objective, optimizer: optax.GradientTransformation
) -> tuple[Objective, optax.GradientTransformation]:
  """Objective and optimizer that train what `optim.trained` matches alone."""
  frozen = all_but(patterns)
  return frozen.objective(objective), frozen.optimizer(optimizer)


# Fine-tuning layer by layer (Howard and Ruder, 2018: ULMFiT, sections 3.2 and
# 3.3), by the levels of `params.levels`: embeddings, layers, and the head.


def by_level(
  optimizer: optax.GradientTransformation, model: Any, num_rows: int, decay: float
) -> optax.GradientTransformation:
  """Discriminative fine-tuning: each level has `decay` times the rate above.

  The head has the schedule's. ULMFiT: eta^{l-1} = eta^l / 2.6.
  """

  def scale(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(
      lambda x, level: x * np.float32(decay ** (model.num_layers + 1 - level)),
      updates,
      params_lib.levels(updates, model, num_rows),
    )

  return optax.chain(optimizer, optax.stateless(scale))


def gradual(objective: Objective, model: Any, num_rows: int, every: int) -> Objective:
  """Gradual unfreezing: the head is trained alone, then one more level, ...

  Args:
    objective: trains all levels.
    model: the decoder or encoder.
    num_rows: rows of the token table that are not new.
    every: steps after which the next lower level is trained too.
  """
  top = model.num_layers + 1

  def trains(tree: Any, stage: jax.Array) -> Any:
    levels = params_lib.levels(tree, model, num_rows)
    return jax.tree.map(lambda level: level >= top - stage, levels)

  def loss(params: Params, batch: Batch, key: jax.Array | None, stage: jax.Array) -> Loss:
    params = jax.tree.map(
      lambda trained, x: jnp.where(trained, x, jax.lax.stop_gradient(x)),
      trains(params, stage),
      params,
    )
    return objective.loss(params, batch, key)

  starts = tuple(every * n for n in range(1, top + 1))
  return objective.replaced(stages=lambda: Stages(starts, trains, loss))
