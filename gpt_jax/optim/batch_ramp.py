# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many rows each step takes: a number, or one that grows in stages.

`'ramp(0:512, 50k_steps:1024, 115k_steps:2048)'` is PaLM's (section 5): 512 rows
from step 0 on, 1024 from step 50,000 on, and so forth. A boundary may also be
a number of tokens; the stage then begins at the first step that finds so many,
or more, consumed. All is arithmetic of whole numbers, so that any step's rows
are known without those before it.
"""

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt_jax import ranges, spec
from gpt_jax.optim import amount
from gpt_jax.optim.amount import Amount
from gpt_jax.ranges import Count
from gpt_jax.spec import Pair, UsageError


class Stage(NamedTuple):
  """Steps that take equally many rows."""

  start: int  # the first of them
  rows: int  # in a batch
  offset: int  # rows consumed before


@dataclasses.dataclass(frozen=True)
class Ramp:
  """The rows of every step: closed forms of the step, counted from 0."""

  stages: tuple[Stage, ...]  # the last one has no end
  row_tokens: int  # targets in a row

  def stage(self, step: int) -> Stage:
    """The stage that `step` belongs to."""
    return self.stages[
      bisect.bisect_right(self.stages, step, key=lambda s: s.start) - 1
    ]

  def rows(self, step: int) -> int:
    """Rows in the batch of `step`."""
    return self.stage(step).rows

  def offset(self, step: int) -> int:
    """Rows of all steps before `step`."""
    stage = self.stage(step)
    return stage.offset + (step - stage.start) * stage.rows

  def batch(self, step: int) -> tuple[int, int]:
    """(offset, count): the rows of the run that `step` takes."""
    return self.offset(step), self.rows(step)

  def tokens(self, step: int) -> int:
    """Tokens of all steps before `step`."""
    return self.offset(step) * self.row_tokens

  def step_at_tokens(self, tokens: int) -> int:
    """The first step before which `tokens`, or more, were consumed."""
    rows = -(-tokens // self.row_tokens)
    before = bisect.bisect_left(self.stages, rows, key=lambda s: s.offset)
    stage = self.stages[max(before - 1, 0)]
    return stage.start - (stage.offset - rows) // stage.rows

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


# From the tokens of a row to the stages.
Plan = Callable[[int], Ramp]


def build(rows: Any, *, row_tokens: int) -> Ramp:
  """Makes the ramp that `batch.size` describes.

  Args:
    rows: a number, or a call-string of `RAMPS`.
    row_tokens: targets in a row.

  Raises:
    UsageError: it is neither, or the stages make no sense.
  """
  if type(rows) is int:
    if problem := ranges.declared(Count).problem(rows):
      raise UsageError(f'batch.size={spec.shown(rows)}: {problem}')
    return constant(rows, row_tokens=row_tokens)
  if not isinstance(rows, str):
    raise UsageError(
      f'batch.size={rows!r}: give a number of rows, or stages as in '
      "'ramp(0:512, 50k_steps:1024)'"
    )
  return spec.build('batch.size', rows, RAMPS)(row_tokens)


def constant(rows: int, *, row_tokens: int) -> Ramp:
  """The same number of rows at every step."""
  return Ramp((Stage(0, rows, 0),), row_tokens)


def ramp(*stages: Pair) -> Plan:
  """Rows by where they begin: `0:256, 390B_tokens:512`."""
  plateaus = []
  for stage in stages:
    begin = 0 if stage.key == '0' else stage.key
    if problem := ranges.declared(Count).problem(stage.value):
      raise UsageError(
        f'batch.size: {stage.key}:{spec.shown(stage.value)}: {problem}'
      )
    plateaus.append((amount.parse('batch.size: boundary', begin), stage.value))
  if not plateaus or plateaus[0][0].count:
    raise UsageError("batch.size: the first stage begins at 0: 'ramp(0:512)'")
  return lambda row_tokens: _ramp(plateaus, row_tokens)


def linear_ramp(start: Count, stop: Count, over: str, stages: Count) -> Plan:
  """Grows on a straight line over tokens or steps, in stages.

  The stages grow by about the same factor, since equally long ones would spend
  most of the steps of GPT-3's ramp on its first rows. Each begins where the
  line reaches its rows.

  Args:
    start: rows at first.
    stop: rows from the end of `over` on.
    over: how long the growth lasts, such as '4B_tokens' (GPT-3, section 2.3).
    stages: how many, the first and the last included; all but the last have
      a multiple of `start`.
  """
  if start >= stop or not 1 < stages <= 1 + (stop - start) // start:
    raise UsageError(
      f'batch.size: linear_ramp: from start={start} to stop={stop} in '
      f'stages={stages}: needs rows that grow by {start} or more in each of '
      'at least 2 stages'
    )
  length = amount.parse('batch.size: over', over)
  rows = [start]
  for i in range(1, stages - 1):
    multiple = round((stop / start) ** (i / (stages - 1)))
    rows.append(max(multiple * start, rows[-1] + start))
  plateaus = [
    (length._replace(count=length.count * (r - start) // (stop - start)), r)
    for r in [*rows, stop]
  ]
  return lambda row_tokens: _ramp(plateaus, row_tokens)


def _ramp(plateaus: list[tuple[Amount, int]], row_tokens: int) -> Ramp:
  """Finds each stage's first step, with the stages before it.

  Raises:
    UsageError: a stage begins no later than the one before.
  """
  found = constant(plateaus[0][1], row_tokens=row_tokens)
  for begin, rows in plateaus[1:]:
    start = found.step_at(begin)
    if start <= found.stages[-1].start:
      raise UsageError(
        f'batch.size: the stage of {rows} rows begins at {begin.count:,} '
        f'{begin.unit}, which is step {start}; the one before it begins there '
        'or later'
      )
    stage = Stage(start, rows, found.offset(start))
    found = Ramp((*found.stages, stage), row_tokens)
  return found


RAMPS = {'ramp': ramp, 'linear_ramp': linear_ramp}
