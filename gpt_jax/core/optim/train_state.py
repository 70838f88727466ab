# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training state, and which parameters train: frozen models, rates, stages.

Frozen are the teacher of a student and, with several tasks, the heads of the
tasks that a batch does not belong to. Their parameters are in the one tree,
`params['parts'][NAME]`, and so in its checkpoints. Gradients, optimizer state
and averages are trees of the other parameters.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.core.optim import rounding


def trained(params: Any, frozen: Collection[str]) -> Any:
  """The trained part of the parameters, or of a tree of the same form.

  Args:
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
    frozen: see `trained`.
  """
  if not frozen:
    return tree
  frozen_params = {name: params['parts'][name] for name in frozen}
  return {**tree, 'parts': {**tree.get('parts', {}), **frozen_params}}


# The state that a step changes and a checkpoint holds.


class TrainState(NamedTuple):
  """All that a checkpoint holds. The data order follows from `step` alone.

  Attributes:
    step: int32 []: steps done.
    params: the tree of parameters, of all models.
    opt_state: of the optimizer.
    ema: average of the trained parameters; None: none is kept.
  """

  step: Any
  params: Any
  opt_state: Any
  ema: Any = None

  @property
  def eval_params(self) -> Any:
    """The parameters for evaluation and decoding: the average if kept."""
    if self.ema is None:
      return self.params
    return with_frozen(self.ema, self.params, self.never_trained)

  @property
  def never_trained(self) -> set[str]:
    """Names of the parts that have no average, if one is kept."""
    return {*self.params.get('parts', {})} - {*self.ema.get('parts', {})}


# Training in stages: each trains other parameters than the one before.
#
# The stage is a function of the step, so a resume needs only the step. The
# first step of a stage begins with a new state of the optimizer: the moments
# of parameters that were not trained before, and those of all others, are 0,
# and so are the counts that correct them.


class Stages(NamedTuple):
  """The stages of an objective that does not train all parameters all along.

  Attributes:
    starts: the first step of each stage but stage 0, counted from 0, ascending.
    trains: from a tree like the parameters, and the stage, int32 [], to which
      entries the stage trains: bool arrays that broadcast against the leaves.
    enter: from parameters to those that a stage starts from; None: the same.
      If it changes them, averages start anew.
  """

  starts: tuple[int, ...]
  trains: Callable[[Any, jax.Array], Any]
  enter: Callable[[Any], Any] | None = None

  def at(self, step: jax.Array | int) -> jax.Array:
    """The stage of a step."""
    return jnp.sum(step >= np.array(self.starts))


def entered(
  state: TrainState, stages: Stages, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state for a step; reset at the first step of a stage."""

  def enter(state: TrainState) -> TrainState:
    params, ema = state.params, state.ema
    if stages.enter:
      params = stages.enter(params)
      ema = None if ema is None else rounding.to_float32(params)
    opt_state = optimizer.init(rounding.to_float32(params))
    return TrainState(state.step, params, opt_state, ema)

  first = jnp.any(state.step == np.array(stages.starts))
  return jax.lax.cond(first, enter, lambda state: state, state)


# The rate of each entry, as a factor of the schedule's. An entry whose factor is
# 0 or false is not trained: it has no gradient, so that its moments stay 0, and
# no update, so that weight decay does not change it either.


class Rates(NamedTuple):
  """The rates of a run's parameters.

  Attributes:
    factors: each from a tree like the parameters to factors that broadcast
      against the leaves, float32 or bool, the same in all steps.
    stages: see `Stages`; None: what trains is the same in all steps.
  """

  factors: tuple[Callable[[Any], Any], ...] = ()
  stages: Stages | None = None

  def stopped(self, params: Any, step: jax.Array | int) -> Any:
    """The parameters, without a gradient of what the step does not train."""
    for factors in self._at(step):
      params = jax.tree.map(_stopped, params, factors(params))
    return params

  def scaled(self, updates: Any, step: jax.Array | int) -> Any:
    """The updates of a step times the factors."""
    for factors in self._at(step):
      updates = jax.tree.map(_scaled, updates, factors(updates))
    return updates

  def _at(self, step: jax.Array | int) -> list[Callable[[Any], Any]]:
    stages = self.stages
    if stages is None:
      return [*self.factors]
    return [*self.factors, lambda tree: stages.trains(tree, stages.at(step))]


def _scaled(x: jax.Array, factor: Any) -> jax.Array:
  return jnp.where(factor, x, 0) if factor.dtype == bool else x * factor


def _stopped(x: jax.Array, factor: Any) -> jax.Array:
  stopped = jax.lax.stop_gradient(x)
  # A whole array needs no select: the compiler then drops an unused gradient.
  if not isinstance(factor, jax.Array) and np.all(factor) == np.any(factor):
    return x if np.all(factor) else stopped
  return jnp.where(factor, x, stopped)
