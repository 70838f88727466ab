# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training some parameters with the others frozen, or more slowly.

Factors of `train_state.Rates`: from a tree like the parameters to factors.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.optim.train_state import Stages


def above(model: Any, num_layers: int, num_rows: int) -> Callable[[Any], Any]:
  """Freezes the lowest layers, and the embeddings below them.

  The embeddings of new tokens, which are untrained, are not frozen.

  Args:
    model: the decoder or encoder.
    num_layers: number of frozen layers, from the lowest on.
    num_rows: number of frozen rows of the token table.
  """

  def factors(params: Any) -> Any:
    inside = params_lib.lowest(params, num_layers, model)
    return jax.tree.map(np.logical_not, params_lib.rows_before(params, inside, num_rows))

  return factors


def heads(params: Any) -> Any:
  """Freezes all but the heads."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: np.full((1,) * x.ndim, path[0].key == 'heads'), params
  )


# Fine-tuning layer by layer (Howard and Ruder, 2018: ULMFiT, sections 3.2 and
# 3.3), by the levels of `params.levels`: embeddings, layers, and the head.


def by_level(model: Any, num_rows: int, decay: float) -> Callable[[Any], Any]:
  """Discriminative fine-tuning: each level has `decay` times the rate above.

  The head has the schedule's. ULMFiT: eta^{l-1} = eta^l / 2.6.
  """

  def factors(params: Any) -> Any:
    return jax.tree.map(
      lambda level: np.float32(decay ** (model.num_layers + 1 - level)),
      params_lib.levels(params, model, num_rows),
    )

  return factors


def gradual(model: Any, num_rows: int, every: int) -> Stages:
  """Gradual unfreezing: the head is trained alone, then one more level, ...

  Args:
    model: the decoder or encoder.
    num_rows: rows of the token table that are not new.
    every: steps after which the next lower level is trained too.
  """
  top = model.num_layers + 1

  def trains(tree: Any, stage: jax.Array) -> Any:
    levels = params_lib.levels(tree, model, num_rows)
    return jax.tree.map(lambda level: level >= top - stage, levels)

  return Stages(tuple(every * n for n in range(1, top + 1)), trains)
