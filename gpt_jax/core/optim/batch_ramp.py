# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parses `batch.size` and `batch.length`: a number, or stages.

`'ramp(0:512, 50k_steps:1024, 115k_steps:2048)'` is PaLM's (section 5): 512 rows
from step 0 on, 1024 from step 50,000 on, and so forth. `'stages(128, 90%:512)'`
is BERT's (appendix A.2): rows of 128 tokens, and of 512 in the last tenth of
the steps. A boundary may also be a number of tokens: the stage then begins at
the first step before which at least that many were consumed. The resulting
`Ramp` is in `optim.schedules`.
"""

import fractions
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt_jax.core import ranges, spec
from gpt_jax.core.optim import schedules
from gpt_jax.core.optim.schedules import Amount, Ramp, Stage
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import Pair, Table, UsageError

_START = Amount(0, 'steps')
_PERCENT = re.compile(r'(\d{1,2}(?:\.\d{1,30})?)%')


class Plateau(NamedTuple):
  """A value, and the amount of training at which it begins."""

  begin: Amount
  value: int


# From `schedule.num_steps`, of which a boundary may be a percentage.
Plan = Callable[[Any], list[Plateau]]


def build(
  rows: Any,
  lengths: Any = None,
  *,
  row_tokens: int,
  num_steps: Any = None,
  text_length: Callable[[int], int] = lambda length: length,
) -> Ramp:
  """Builds the ramp that `batch.size` and `batch.length` describe.

  Args:
    rows: a number, or a call-string of `RAMPS`.
    lengths: a call-string of `LENGTHS`; empty: all rows have `row_tokens`.
    row_tokens: the most tokens of a row that the model, or its encoder, reads.
    num_steps: of the run, as in the config.
    text_length: from such a length to the tokens of text in a row, which the
      ramp counts.
  """
  if type(rows) is int:
    if problem := ranges.declared(Count).problem(rows):
      raise UsageError(f'batch.size={spec.shown(rows)}: {problem}')
    sizes = [Plateau(_START, rows)]
  else:
    check_rows(rows)
    sizes = spec.build('batch.size', rows, RAMPS)(num_steps)
  if lengths is None:
    return _joined(sizes, [Plateau(_START, text_length(row_tokens))])
  of_lengths = spec.build('batch.length', lengths, LENGTHS)(num_steps)
  longest = max(plateau.value for plateau in of_lengths)
  if longest > row_tokens:
    raise UsageError(
      f'batch.length={spec.shown(lengths)}: rows of {longest} tokens do not '
      f'fit model.context_length={row_tokens}; lower them, or raise it'
    )
  texts = [p._replace(value=text_length(p.value)) for p in of_lengths]
  return _joined(sizes, texts)


def check_rows(rows: Any) -> None:
  """Refuses a `batch.size` that is neither a whole number nor a call."""
  if type(rows) is not int and not (isinstance(rows, str) and '(' in rows):
    raise UsageError(
      f'batch.size={spec.shown(rows)}: must be a whole number of rows, such as '
      "512, or stages as in 'ramp(0:512, 50k_steps:1024)'"
    )


def constant(rows: int, *, row_tokens: int) -> Ramp:
  """The same number of rows at every step."""
  return Ramp((Stage(0, rows, row_tokens, 0, 0),))


def ramp(*stages: Pair | int) -> Plan:
  """Rows per batch, by their start in steps or tokens: `0:4, 2000:8`.

  That is 4 rows, and 8 from step 2,000 on, as is `0:4, 2000_steps:8`. Others:
  `0:256, 390B_tokens:512`; `256, 50%:512`, from the middle of the run on.
  """
  return _plan('batch.size', stages, 'ramp(0:512, 50k_steps:1024)')


def stages(*stages: Pair | int) -> Plan:
  """Targets per row, by their start as in `ramp`: `128, 90%:512`."""
  return _plan('batch.length', stages, 'stages(128, 90%:512)')


def linear_ramp(start: Count, stop: Count, over: int | str, stages: Count) -> Plan:
  """Grows linearly over tokens or steps, in stages.

  Successive stages grow by about the same factor: equally long ones would spend
  most steps of GPT-3's ramp on its first rows. Each begins where the line
  reaches its number of rows.

  Args:
    start: rows at first.
    stop: rows from the end of `over` on.
    over: how long the growth lasts: 2000 (steps), or a text such as '4B_tokens'
      (GPT-3, section 2.3).
    stages: number of stages, including the first and the last; all but the
      last have a multiple of `start` rows.
  """
  if start >= stop or not 1 < stages <= 1 + (stop - start) // start:
    raise UsageError(
      f'batch.size: linear_ramp: from start={start} to stop={stop} in '
      f'stages={stages}: needs rows that grow by {start} or more in each of '
      'at least 2 stages'
    )
  rows = [start]
  for i in range(1, stages - 1):
    multiple = round((stop / start) ** (i / (stages - 1)))
    rows.append(max(multiple * start, rows[-1] + start))

  def plan(num_steps: Any) -> list[Plateau]:
    count, unit = _boundary('batch.size: over', str(over), num_steps)
    return [Plateau(Amount(count * (r - start) // (stop - start), unit), r) for r in [*rows, stop]]

  return plan


def _plan(field: str, entries: tuple[Pair | int, ...], example: str) -> Plan:
  """Checks the values of stages; the first may omit its 0."""
  pairs: list[Pair] = []
  for stage in entries:
    if not isinstance(stage, Pair):
      if pairs:
        raise UsageError(
          f'{field}: stages={spec.shown(stage)} has no start; give START:VALUE, as in {example!r}'
        )
      stage = Pair('0', stage)
    pairs.append(stage)
    if problem := ranges.declared(Count).problem(stage.value):
      raise UsageError(f'{field}: {stage.key}:{spec.shown(stage.value)}: {problem}')

  def plan(num_steps: Any) -> list[Plateau]:
    entries = [
      Plateau(_boundary(f'{field}: boundary', stage.key, num_steps), stage.value) for stage in pairs
    ]
    if not entries or entries[0].begin.count:
      raise UsageError(f'{field}: the first stage must begin at 0, as in {example!r}')
    return entries

  return plan


def _boundary(field: str, text: str, num_steps: Any) -> Amount:
  """Where a stage begins: '2000', '50k_steps', '1B_tokens' or '90%'."""
  if not text.endswith('%'):
    return schedules.parse(field, text)
  percent = _PERCENT.fullmatch(text)
  if not percent:
    raise UsageError(
      f"{field}={spec.shown(text)}: give a part of the steps below '100%', as in '90%'"
    )
  whole = schedules.parse('schedule.num_steps', num_steps)
  if whole.unit != 'steps':
    raise UsageError(
      f'{field}={text!r}: is a part of schedule.num_steps={num_steps!r}, which '
      'is in tokens; give the boundary in tokens too, or num_steps in steps'
    )
  part = fractions.Fraction(percent[1]) / 100
  return Amount(math.ceil(part * whole.count), 'steps')


def _joined(sizes: list[Plateau], lengths: list[Plateau]) -> Ramp:
  """Finds each stage's first step, with the stages before it."""
  given = {
    'batch.size: the stage of {} rows': sizes,
    'batch.length: the stage of rows of {} tokens': lengths,
  }
  rows, length = sizes[0].value, lengths[0].value
  began = [0, 0]
  left = [plateaus[1:] for plateaus in given.values()]
  ramp = Ramp((Stage(0, rows, length, 0, 0),))
  while any(left):
    starts = [ramp.step_at(plateaus[0].begin) if plateaus else None for plateaus in left]
    for name, start, before, plateaus in zip(given, starts, began, left, strict=True):
      if start is not None and start <= before:
        begin, value = plateaus[0]
        raise UsageError(
          f'{name.format(value)} begins at {begin.count:,} {begin.unit}, which '
          f'is step {start}; it must begin after the one before it'
        )
    first = min(start for start in starts if start is not None)
    if starts[0] == first:
      rows, began[0] = left[0].pop(0).value, first
    if starts[1] == first:
      length, began[1] = left[1].pop(0).value, first
    before = ramp.offset(first), ramp.tokens(first)
    ramp = Ramp((*ramp.stages, Stage(first, rows, length, *before)))
  return ramp


RAMPS = {'ramp': ramp, 'linear_ramp': linear_ramp}
LENGTHS = {'stages': stages}
# Of runs on several tasks, `finetune.mixing`: each has a method `ramp(config)`.
MIXINGS = Table({}, 'finetune.mixing')
