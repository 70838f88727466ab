# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimisers: optax transformations by name, after clipping."""

from typing import Any

import jax
import optax

from gpt_jax.optim.adafactor import adafactor
from gpt_jax.optim.adam import adam, adamw, lamb
from gpt_jax.optim.base import Axes, Build
from gpt_jax.optim.decay import decay_mask
from gpt_jax.optim.muon import muon
from gpt_jax.spec import UsageError


def lion(b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.1) -> Build:
  """Lion (Chen et al. 2023, algorithm 2): the sign of a momentum."""

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.lion(
      schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=decay_mask
    )

  return build


def sgd(momentum: float = 0.0, nesterov: bool = False) -> Build:
  """Gradient descent (Sutskever et al. 2013: momentum and Nesterov's).

  v <- momentum * v + g; the step is along v, or along g + momentum * v with
  `nesterov`.
  """
  if nesterov and not momentum:
    raise UsageError('optim.name: sgd(nesterov=True) needs a momentum')

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.sgd(schedule, momentum=momentum or None, nesterov=nesterov)

  return build


def none() -> Build:
  """Changes nothing and keeps nothing: for models that are not trained."""
  return lambda schedule, axes: optax.set_to_zero()


def at_step(opt_state: Any, step: jax.Array) -> Any:
  """Gives every schedule of an optimizer the run's step, from 0.

  optax lets each schedule count the updates, which are fewer than the steps
  once one was skipped. Moments keep their own count: it corrects their start
  at zero (Adam's bias, Adafactor's 1 - k^-decay), and a skipped gradient did
  not enter them.
  """

  def is_schedule(part: Any) -> bool:
    return type(part).__name__ in _SCHEDULE_STATES

  return jax.tree.map(
    lambda part: part._replace(count=step) if is_schedule(part) else part,
    opt_state,
    is_leaf=is_schedule,
  )


# Of `optax.scale_by_schedule`, and of `optax.add_decayed_weights` with one; the
# second is not among optax's public names.
_SCHEDULE_STATES = ('ScaleByScheduleState', 'WeightDecaySchedule')

OPTIMIZERS = {
  'adafactor': adafactor,
  'adam': adam,
  'adamw': adamw,
  'lamb': lamb,
  'lion': lion,
  'muon': muon,
  'none': none,
  'sgd': sgd,
}
