# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What stays as it is: a teacher beside its student, and of several tasks the
heads of those that a batch is not of.

Their parameters are in the one tree, `params['parts'][NAME]`, and so in its
checkpoints. Gradients, optimizer state and averages are trees of the rest.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.optim import rounding


def trained(params: Any, frozen: Collection[str]) -> Any:
  """What is trained of the parameters, or of any tree like theirs.

  Args:
    params: of all models.
    frozen: names of those that stay; none: the tree comes back as it is.
  """
  if not frozen:
    return params
  rest = {name: x for name, x in params.items() if name != 'parts'}
  parts = {n: x for n, x in params['parts'].items() if n not in frozen}
  return {**rest, 'parts': parts} if parts else rest


def with_frozen(tree: Any, params: Any, frozen: Collection[str]) -> Any:
  """What is trained, together with what stays of the parameters.

  Args:
    tree: such as `trained` gives.
    params: of all models.
    frozen: see `trained`.
  """
  if not frozen:
    return tree
  kept = {name: params['parts'][name] for name in frozen}
  return {**tree, 'parts': {**tree.get('parts', {}), **kept}}


# What a step changes, and a checkpoint holds.


class TrainState(NamedTuple):
  """All that a checkpoint holds. The data order follows from `step` alone."""

  step: Any  # int32 scalar: steps done
  params: Any
  opt_state: Any
  ema: Any = None  # average of what is trained, where one is kept

  @property
  def eval_params(self) -> Any:
    """What evaluates and generates: the average where one is kept."""
    if self.ema is None:
      return self.params
    frozen = {*self.params.get('parts', {})} - {*self.ema.get('parts', {})}
    return with_frozen(self.ema, self.params, frozen)


# Runs whose models are trained one after the other, in two stages.
#
# What a step does is a function of its number: the first step of the second
# stage begins by giving the models their parameters for it, and the optimizer,
# and averages, anew. So a resume needs no more than the step.


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
