# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training state, frozen models, and training in two stages.

Frozen are the teacher of a student and, with several tasks, the heads of the
tasks that a batch does not belong to. Their parameters are in the one tree,
`params['parts'][NAME]`, and so in its checkpoints. Gradients, optimizer state
and averages are trees of the other parameters.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.optim import rounding


def trained(params: Any, frozen: Collection[str]) -> Any:
  """The trained part of the parameters, or of a tree of the same form.

  Args:
    params: of all models.
    frozen: names of frozen parts; none: returns the tree unchanged.
  """
  if not frozen:
    return params
  rest = {name: x for name, x in params.items() if name != 'parts'}
  parts = {n: x for n, x in params['parts'].items() if n not in frozen}
  return {**rest, 'parts': parts} if parts else rest


def with_frozen(tree: Any, params: Any, frozen: Collection[str]) -> Any:
  """Merges a tree of trained parameters with the frozen ones of `params`.

  Args:
    tree: in the form that `trained` returns.
    params: of all models.
    frozen: see `trained`.
  """
  if not frozen:
    return tree
  kept = {name: params['parts'][name] for name in frozen}
  return {**tree, 'parts': {**tree.get('parts', {}), **kept}}


# The state that a step changes and a checkpoint holds.


class TrainState(NamedTuple):
  """All that a checkpoint holds. The data order follows from `step` alone."""

  step: Any  # int32 scalar: steps done
  params: Any
  opt_state: Any
  ema: Any = None  # average of the trained parameters, if one is kept

  @property
  def eval_params(self) -> Any:
    """The parameters for evaluation and decoding: the average if kept."""
    if self.ema is None:
      return self.params
    frozen = {*self.params.get('parts', {})} - {*self.ema.get('parts', {})}
    return with_frozen(self.ema, self.params, frozen)


# Training in two stages: some models first, the others after them.
#
# The stage is a function of the step: the first step of the second stage begins
# by setting the models' parameters for it, and resets the optimizer and the
# averages. So a resume needs only the step.


class Stages(NamedTuple):
  """The two stages of an objective that trains some parts before the rest.

  Attributes:
    start: the first step of the second stage, counted from 0.
    first: names of the parts that the first stage trains. The second trains
      the others and the run's model.
    enter: from parameters to those that the second stage starts from.
    loss: as `Objective.loss`, with a last argument bool [], whether it is the
      second stage.
  """

  start: int
  first: tuple[str, ...]
  enter: Callable[[Any], Any]
  loss: Callable[..., Any]


def entered(
  state: TrainState, stages: Stages, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state for a step; reset at the first step of the second stage."""

  def enter(state: TrainState) -> TrainState:
    params = stages.enter(state.params)
    kept = rounding.to_float32(params)
    ema = None if state.ema is None else kept
    return TrainState(state.step, params, optimizer.init(kept), ema)

  first = state.step == stages.start
  return jax.lax.cond(first, enter, lambda state: state, state)


def loss(stages: Stages, step: jax.Array) -> Callable[..., Any]:
  """The loss function of a step's stage, as `Objective.loss`."""
  second = step >= stages.start
  return lambda params, batch, key: stages.loss(params, batch, key, second)


def moved(updates: Any, stages: Stages, step: jax.Array) -> Any:
  """Zeroes the updates of models that the stage does not train.

  Their gradients are 0, but weight decay would still change them.
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
