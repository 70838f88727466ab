# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs whose models are trained one after the other, in two stages.

What a step does is a function of its number: the first step of the second
stage begins by giving the models their parameters for it, and the optimizer,
and averages, anew. So a resume needs no more than the step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.optim import rounding
from gpt_jax.optim.train_state import TrainState


class Stages(NamedTuple):
  """Of an objective that trains some parts first and the rest after them.

  Attributes:
    start: the first step, from 0, of the second stage.
    first: names of the parts that the first stage trains. The second trains
      the others and the run's model.
    enter: parameters to those that the second stage starts from.
    loss: as `Objective.loss`, of one of the stages: its last argument is bool
      [], whether it is the second.
  """

  start: int
  first: tuple[str, ...]
  enter: Callable[[Any], Any]
  loss: Callable[..., Any]


def entered(
  state: TrainState, stages: Stages, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state as the step takes it; changed in the second stage's first."""

  def enter(state: TrainState) -> TrainState:
    params = stages.enter(state.params)
    kept = rounding.to_float32(params)
    ema = None if state.ema is None else kept
    return TrainState(state.step, params, optimizer.init(kept), ema)

  first = state.step == stages.start
  return jax.lax.cond(first, enter, lambda state: state, state)


def loss(stages: Stages, step: jax.Array) -> Callable[..., Any]:
  """The loss of the stage that a step is in, as an objective has it."""
  second = step >= stages.start
  return lambda params, batch, key: stages.loss(params, batch, key, second)


def moved(updates: Any, stages: Stages, step: jax.Array) -> Any:
  """The updates without those of the models that a stage does not train.

  Their gradients are 0, but weights decay all the same.
  """
  second = step >= stages.start

  def kept(tree: Any, when: jax.Array) -> Any:
    return jax.tree.map(lambda x: jnp.where(when, x, 0), tree)

  own = {name: x for name, x in updates.items() if name != 'parts'}
  parts = {
    name: kept(x, ~second if name in stages.first else second)
    for name, x in updates['parts'].items()
  }
  return {**kept(own, second), 'parts': parts}
