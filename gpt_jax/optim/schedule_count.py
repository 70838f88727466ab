# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an optimizer's schedules count: the steps of the run."""

from typing import Any

import jax

# Of `optax.scale_by_schedule`, and of `optax.add_decayed_weights` with one; the
# second is not among optax's public names.
_SCHEDULE_STATES = ('ScaleByScheduleState', 'WeightDecaySchedule')


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
