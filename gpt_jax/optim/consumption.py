# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each step consumes: closed forms of the step, in whole numbers."""

import bisect
import dataclasses
from typing import NamedTuple

from gpt_jax.optim.amount import Amount


class Shape(NamedTuple):
  """Of a batch: all of one shape are taken by the same program."""

  rows: int
  length: int
  task: str = ''  # of several, whose examples it has; '': there is one

  @property
  def tokens(self) -> int:
    """In a batch."""
    return self.rows * self.length


class Stage(NamedTuple):
  """Steps that take equally many rows of equal length."""

  start: int  # the first of them
  rows: int  # in a batch
  length: int  # targets in a row
  offset: int  # rows consumed before, of whatever length
  tokens: int  # tokens consumed before
  task: str = ''  # see `Shape`

  @property
  def shape(self) -> Shape:
    """Of its batches."""
    return Shape(self.rows, self.length, self.task)

  @property
  def index(self) -> int:
    """Its first row's place in the order of all rows of its length.

    As many tokens come before it there as were consumed, so that what is
    counted in tokens or in epochs goes on where the stage before ended.
    """
    return -(-self.tokens // self.length)


@dataclasses.dataclass(frozen=True)
class Ramp:
  """The rows of every step: closed forms of the step, counted from 0."""

  stages: tuple[Stage, ...]  # the last one has no end

  def stage(self, step: int) -> Stage:
    """The stage that `step` belongs to."""
    return self.stages[
      bisect.bisect_right(self.stages, step, key=lambda s: s.start) - 1
    ]

  def rows(self, step: int) -> int:
    """Rows in the batch of `step`."""
    return self.stage(step).rows

  def shape(self, step: int) -> Shape:
    """Rows in the batch of `step`, and their length."""
    return self.stage(step).shape

  def offset(self, step: int) -> int:
    """Rows of all steps before `step`."""
    stage = self.stage(step)
    return stage.offset + (step - stage.start) * stage.rows

  def batch(self, step: int) -> tuple[int, int, int, int]:
    """(offset, count, length, index): the rows of the run that `step` takes.

    The first has the number `offset` in the run, and is row `index` in the
    order of all rows of its length.
    """
    stage = self.stage(step)
    before = (step - stage.start) * stage.rows
    return (
      *(stage.offset + before, stage.rows),
      *(stage.length, stage.index + before),
    )

  def tokens(self, step: int) -> int:
    """Tokens of all steps before `step`."""
    stage = self.stage(step)
    return stage.tokens + (step - stage.start) * stage.rows * stage.length

  def tokens_by_shape(self, start: int, stop: int) -> dict[Shape, int]:
    """Tokens of the steps [start, stop), by the shape of their batch."""
    stages = self.between(start, stop)
    found: dict[Shape, int] = {}
    for i, stage in enumerate(stages):
      end = stages[i + 1].start if i + 1 < len(stages) else stop
      steps = end - max(start, stage.start)
      before = found.get(stage.shape, 0)
      found[stage.shape] = before + steps * stage.shape.tokens
    return found

  def step_at_tokens(self, tokens: int) -> int:
    """The first step before which `tokens`, or more, were consumed."""
    before = bisect.bisect_left(self.stages, tokens, key=lambda s: s.tokens)
    stage = self.stages[max(before - 1, 0)]
    return stage.start - (stage.tokens - tokens) // (stage.rows * stage.length)

  def step_at(self, when: Amount) -> int:
    """The first step at or after `when`."""
    if when.unit == 'steps':
      return when.count
    return self.step_at_tokens(when.count)

  def tokens_at(self, when: Amount) -> int:
    """`when` in tokens."""
    return when.count if when.unit == 'tokens' else self.tokens(when.count)

  def between(self, start: int, stop: int) -> list[Stage]:
    """The stages of the steps [start, stop)."""
    first = self.stage(start).start
    return [s for s in self.stages if first <= s.start < stop]

  @property
  def longest(self) -> int:
    """Targets in the longest rows."""
    return max(stage.length for stage in self.stages)
