# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds the first step at which a quantity is outside of a band."""

import math
from typing import NamedTuple

from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.training import norm_lines
from gpt_jax.looking.course import FIGURES, Course, Taken
from gpt_jax.looking.layers import Measuring


class Band(NamedTuple):
  """The values that a quantity may have."""

  low: float
  high: float

  @classmethod
  def of(cls, text: str) -> 'Band':
    """Reads LOW:HIGH; what is empty has no bound."""
    low, colon, high = text.partition(':')
    try:
      band = cls(float(low or '-inf'), float(high or 'inf'))
    except ValueError:
      band = cls(math.nan, math.nan)
    if not colon or text == ':' or not band.low <= band.high:
      raise UsageError(f'--band={text}: give LOW:HIGH, of which one may be empty, such as :50')
    return band

  def has(self, value: float) -> bool:
    """Whether a value is within; NaN is not."""
    return self.low <= value <= self.high


class Found(NamedTuple):
  """What a search found.

  Attributes:
    step: the first step outside, counted from 1.
    values: of the quantity, at all steps where it was measured.
  """

  step: int
  values: dict[int, float]


def first_outside(course: Course, first: int, last: int, quantity: str, band: Band) -> Found:
  """The first step of [first, last] at which a quantity is outside of its band.

  The states of checkpoints are bisected, and the steps between two of them are
  taken one after another. So a quantity that left its band and came back before
  a checkpoint is not found there.

  Args:
    course: of the run.
    first: step, counted from 1.
    last: step, included.
    quantity: of `step.train_step`, or one that `norm_lines` names; a kind of
      norm is the largest of all its layers and parts.
    band: where it should be.

  Raises:
    UsageError: there is no such quantity.
    FailedError: it is within at the last step.
  """
  known = (*FIGURES, *norm_lines.KINDS)
  if quantity.partition('/')[0] not in known:
    raise UsageError(
      f'--quantity={quantity}: give {", ".join(known)}, or a norm of one layer, such as '
      'gradient_norm/decoder/layer_3'
    )
  values: dict[int, float] = {}
  measuring = Measuring(course.parts)

  def measured() -> bool:
    """Takes the next step; whether it is outside."""
    taken = course.take()
    step = taken.batch.step
    values[step] = _value(taken, measuring, quantity)
    log.info('step %d: %s %.6g', step, quantity, values[step])
    return not band.has(values[step])

  def outside(step: int) -> bool:
    course.go_back(step - 1)
    course.advance(step - 1)
    return measured()

  if outside(first):
    return Found(first, values)
  saved = Checkpointer(course.run.workdir, read_only=True).steps()
  inside, steps = first, [*sorted(c + 1 for c in saved if first < c + 1 < last), last]
  if not outside(last):
    raise FailedError(
      f'--bisect={first}:{last}: {quantity} is {values[last]:.6g} at step {last}, within the band; '
      'give a range at whose end it is outside, or a narrower --band'
    )
  low, high = -1, len(steps) - 1  # of `steps`: within, outside
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if outside(steps[middle]) else (middle, high)
  if low >= 0:
    inside = steps[low]
  course.go_back(inside)
  course.advance(inside)
  while course.done + 1 < steps[high]:
    if measured():
      break
  return Found(min(step for step, x in values.items() if not band.has(x)), values)


def _value(taken: Taken, measuring: Measuring, quantity: str) -> float:
  if quantity in FIGURES:
    return float(taken.out[quantity])
  norms = measuring.of(taken).norms
  if quantity in norms:
    return norms[quantity]
  of_kind = [x for name, x in norms.items() if name.startswith(f'{quantity}/')]
  if not of_kind:
    raise UsageError(
      f'--quantity={quantity}: the model has no such part or layer; give one of {", ".join(norms)}'
    )
  return max(of_kind, key=lambda x: math.inf if math.isnan(x) else x)
