# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published runs beside what `plan` predicts for their shapes: how far off it is.

`ledger.json` has a row for each run. Its prediction is written down when the row
is compiled for the first time, and stays; a measured step is entered by a later
command, so that the history shows which was first. The schedule of the compiled
program is there too, without what takes less than a ten-thousandth of the step:
today's estimate is a replay of it. The programs are ours, of the published
sizes, batch and mesh. `how` a row was predicted: trials on `fitted` rows
suggested what a matrix product reaches (`schedule.BUSY`); the step of a `seen`
one was known while the replay was written; an `apart` one was entered before it
was compiled, and changed nothing; of a `blind` one nobody here knew the step.

A plan is as accurate as the runs of its kind: see `band`.
"""

import datetime
import functools
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NotRequired, TypedDict

from gpt_jax.core import ranges
from gpt_jax.core.config import Config
from gpt_jax.core.costs import topologies
from gpt_jax.core.costs.topologies import Slices
from gpt_jax.core.files import schema
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.spec import UsageError, counted
from gpt_jax.planning import schedule
from gpt_jax.planning.op_costs import Work
from gpt_jax.planning.schedule import Fetch, Loop, Send, StepEstimate, Wait

FILE = pathlib.Path(__file__).with_name('ledger.json')
# Parameters from which a dense decoder counts as large.
LARGE = 1e9
# Tokens from which rows count as long.
LONG = 65_536
# Runs of a kind from which their worst error is the accuracy of a plan.
ENOUGH = 3
# Of the step, what an event takes that is written down.
LEAST = 1e-4
# What `kind_of` returns, in the order of the table.
KINDS = (
  'dense, large',
  'dense, small',
  'experts',
  'int8',
  'long rows',
  'several slices',
  'tpu7x',
  'other',
)


def kind_of(config: Config, slices: Slices, num_params: int) -> str:
  """Which published runs a program is like; the first that holds counts."""
  model = config.model
  choices = ModelChoices.of(model)
  if model.num_encoder_layers or not choices.causal:
    return 'other'
  if choices.matmul:
    return 'int8'
  if any(ffn.router for ffn in choices.ffn):
    return 'experts'
  if slices.chip.name == 'tpu7x':
    return 'tpu7x'
  if slices.number > 1:
    return 'several slices'
  if model.context_length >= LONG:
    return 'long rows'
  return 'dense, large' if num_params >= LARGE else 'dense, small'


class Measured(TypedDict):
  """One of the two, as its authors print it."""

  seconds: NotRequired[ranges.Positive]  # of a step
  mfu: NotRequired[ranges.Share]  # with attention over the whole row


class Predicted(TypedDict):
  """What `plan` said when the row was compiled for the first time."""

  seconds: ranges.Positive
  mfu: ranges.Positive
  peak_gib: NotRequired[ranges.Positive]  # of a chip
  date: str
  made_with: dict[str, str]  # versions


class Row(TypedDict):
  """A published run."""

  name: str
  kind: str  # of `KINDS`
  how: str  # fitted, seen, apart or blind
  config: str
  topology: str
  slices: ranges.Count
  overrides: dict[str, Any]
  source: str  # who published it, and what differs here
  measured: Measured
  predicted: Predicted
  model_flops: ranges.Positive  # of a step, by PaLM's formula
  events: list[Any]  # see `to_json`


class Outcome(NamedTuple):
  """A row, and what the replay says of it today."""

  row: Row
  estimate: StepEstimate
  mfu: float

  @property
  def measured(self) -> float | None:
    """Seconds of a step as published; None: not entered."""
    if 'seconds' in self.row['measured']:
      return self.row['measured']['seconds']
    if 'mfu' in self.row['measured']:
      return self.mfu * self.estimate.step / self.row['measured']['mfu']
    return None

  @property
  def off(self) -> float | None:
    """Estimated over measured seconds, less 1."""
    return None if self.measured is None else self.estimate.step / self.measured - 1

  @property
  def first_off(self) -> float | None:
    """The same of the prediction that was written down first."""
    if self.measured is None:
      return None
    return self.row['predicted']['seconds'] / self.measured - 1


class Band(NamedTuple):
  """How accurate an estimate is, by the measured runs of its kind."""

  error: float | None  # either way; None: not known
  text: str


def band(kind: str, estimate: StepEstimate) -> Band:
  """The accuracy of an estimate of a program of this kind.

  It is the worst error among the runs of the kind, if there are `ENOUGH`, and if
  one of them spends as little of its step in matrix units.
  """
  runs = [x for x in outcomes() if x.row['kind'] == kind and x.off is not None]
  offs = [x.off or 0.0 for x in runs]
  if len(runs) < ENOUGH:
    said = ', '.join(f'{off:+.0%}' for off in offs)
    of = (
      f'{counted(len(runs), "published run")} of its kind ({kind})'
      if runs
      else (f'no published run is of its kind ({kind})')
    )
    return Band(None, f'accuracy unknown: {of}' + (f', off by {said}' if runs else ''))
  least = min(x.estimate.products / x.estimate.step for x in runs)
  if estimate.products < least * estimate.step:
    return Band(
      None,
      f'accuracy unknown: none of {len(runs)} published runs of its kind ({kind}) spends '
      'as little of a step in matrix units',
    )
  worst = max(map(abs, offs))
  return Band(worst, f'±{worst:.0%}, the worst of {len(runs)} published runs of its kind ({kind})')


@functools.cache
def outcomes() -> tuple[Outcome, ...]:
  """All rows, replayed."""
  return tuple(map(outcome, read()))


def outcome(row: Row) -> Outcome:
  """Replays a row's schedule."""
  slices = topologies.parse(row['topology'], row['slices'])
  estimate = schedule.step_time(from_json(row['events']), schedule.rates(slices))
  mfu = row['model_flops'] / (estimate.step * slices.devices * slices.peak)
  return Outcome(row, estimate, mfu)


def read() -> list[Row]:
  """The rows of the ledger."""
  try:
    rows = json.loads(FILE.read_bytes())
  except ValueError as e:
    raise UsageError(f'{FILE}: is damaged, not JSON ({e}); restore it from the repository') from e
  if said := schema.problem(rows, list[Row]):
    raise UsageError(f'{FILE}: is damaged, {said}; restore it from the repository')
  return rows


def _write(rows: list[Row]) -> None:
  """One row on each line but for its events, which have one of their own."""
  write_atomically(str(FILE), '[\n' + ',\n'.join(map(json.dumps, rows)) + '\n]\n')
  outcomes.cache_clear()


def described(name: str) -> Row | None:
  """The row of this name, if there is one."""
  return next((row for row in read() if row['name'] == name), None)


def found(name: str) -> Row:
  """The row of this name.

  Raises:
    UsageError: there is none.
  """
  row = described(name)
  if row is None:
    names = ', '.join(x['name'] for x in read())
    raise UsageError(f'--record={name}: no row has this name; one of {names}')
  return row


def enter(row: Row) -> None:
  """Adds a row, or replaces the one of its name."""
  rows = read()
  names = [x['name'] for x in rows]
  if row['name'] in names:
    rows[names.index(row['name'])] = row
  else:
    rows.append(row)
  _write(rows)


def predicted(seconds: float, mfu: float, peak_gib: float) -> Predicted:
  """What is written down of an estimate, with today's date and versions."""
  return {
    'seconds': float(f'{seconds:.4g}'),
    'mfu': round(mfu, 4),
    'peak_gib': round(peak_gib, 3),
    'date': datetime.date.today().isoformat(),
    'made_with': made_with(),
  }


def made_with() -> dict[str, str]:
  """The versions of what compiles."""
  return {name: importlib.metadata.version(name) for name in ('jax', 'libtpu')}


def enter_measured(name: str, text: str) -> Outcome:
  """Enters what was measured, `13.484s` or `45.7%`, into the row of this name."""
  row = found(name)
  match = _MEASURED.fullmatch(text)
  if not match or not float(match[1]):
    raise UsageError(
      f'--measured={text}: give seconds of a step, as in 13.484s, or MFU, as in 45.7%'
    )
  number = float(match[1])
  row['measured'] = {'seconds': number} if match[2] == 's' else {'mfu': number / 100}
  if said := schema.problem(row['measured'], Measured):
    raise UsageError(f'--measured={text}: {said}')
  enter(row)
  return outcome(row)


_MEASURED = re.compile(r'(\d+(?:\.\d+)?)(s|%)')


def said(x: Outcome) -> str:
  """A row in one line."""
  first = x.row['predicted']
  return (
    f'predicted {first["seconds"]:.4g} s ({first["date"]}), today {x.estimate.step:.4g} s; '
    f'measured: {_measured(x)} {_off(x.off)}'.rstrip()
  )


# The schedules.


def to_json(events: Iterable[schedule.Event], digits: int = 3) -> list[Any]:
  """As lists of a name and its fields; numbers are rounded."""
  return [
    [
      type(x).__name__,
      *(
        to_json(y, digits)
        if isinstance(y, tuple)
        else float(f'{y:.{digits}g}')
        if isinstance(y, float)
        else y
        for y in x
      ),
    ]
    for x in events
  ]


def from_json(lists: list[Any]) -> tuple[schedule.Event, ...]:
  """What `to_json` wrote."""
  kinds: dict[str, Any] = {kind.__name__: kind for kind in (Work, Fetch, Send, Wait, Loop)}
  return tuple(
    kinds[name](*(from_json(y) if isinstance(y, list) else y for y in fields))
    for name, *fields in lists
  )


def shorten(events: tuple[schedule.Event, ...], slices: Slices) -> tuple[schedule.Event, ...]:
  """Without what takes less than `LEAST` of the step."""
  rates = schedule.rates(slices)
  least = LEAST * schedule.step_time(events, rates).step

  def takes(x: schedule.Event) -> float:
    waits = [Wait(x.key)] if isinstance(x, Fetch | Send) else []
    return schedule.step_time([x, *waits], rates).step

  def of(events: Any, trips: float) -> tuple[schedule.Event, ...]:
    kept = []
    for x in events:
      if isinstance(x, Loop):
        kept.append(x._replace(events=of(x.events, trips * x.trips)))
      elif isinstance(x, Wait) or trips * takes(x) >= least:
        kept.append(x)
    started = {x.key for x in kept if isinstance(x, Fetch | Send)}
    short = {key: str(number) for number, key in enumerate(sorted(started))}
    return tuple(
      x._replace(key=short[x.key]) if hasattr(x, 'key') else x
      for x in kept
      if not isinstance(x, Wait) or x.key in started
    )

  return of(events, 1)


# The table of the docs.


def markdown() -> str:
  """The accuracy by kind, then all rows."""
  found = sorted(outcomes(), key=lambda x: KINDS.index(x.row['kind']))
  lines = [
    '| kind | rows, measured | mean, worst error | bound by: matrix units, vector units, HBM, '
    'waiting for chips, for slices |',
    '|---|---|---|---|',
  ]
  for kind in KINDS:
    rows = [x for x in found if x.row['kind'] == kind]
    offs = [abs(x.off) for x in rows if x.off is not None]
    if not rows:
      continue
    errors = f'{sum(offs) / len(offs):.0%}, {max(offs):.0%}' if offs else '-'
    lines.append(f'| {kind} | {len(rows)}, {len(offs)} | {errors} | {_shares(rows)} |')
  lines += [
    '',
    '| kind | run | slices | how | measured | predicted at first | off by | today | off by '
    '| source |',
    '|---|---|---|---|---|---|---|---|---|---|',
  ]
  for x in found:
    row, slices = x.row, topologies.parse(x.row['topology'], x.row['slices'])
    first = row['predicted']
    lines.append(
      f'| {row["kind"]} | {row["name"]} | {slices} | {row["how"]} | {_measured(x)} '
      f'| {first["seconds"]:.4g} s, {first["mfu"]:.1%} | {_off(x.first_off)} '
      f'| {x.estimate.step:.4g} s, {x.mfu:.1%} | {_off(x.off)} | {row["source"]} |'
    )
  return '\n'.join(lines)


def _shares(rows: list[Outcome]) -> str:
  """The mean shares of a step."""
  terms = StepEstimate._fields[1:]
  means = (sum(getattr(x.estimate, term) / x.estimate.step for x in rows) for term in terms)
  return ', '.join(f'{total / len(rows):.0%}' for total in means)


def _measured(x: Outcome) -> str:
  of = x.row['measured']
  if 'seconds' in of:
    return f'{of["seconds"]:.4g} s'
  return f'MFU {of["mfu"]:.1%}' if 'mfu' in of else 'not entered'


def _off(off: float | None) -> str:
  return '' if off is None else f'{off:+.0%}'
