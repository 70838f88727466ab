# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a run went, from the lines of metrics.jsonl alone.

Each line has the time when it was written. Each start of the process, and each
rewind after a spike, writes an event `start` with the time it took and the
time spent on steps that it discards.
"""

import os
from typing import Any, NamedTuple

from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.reports import runs

# In display order.
KINDS = {
  'step': 'training steps that count',
  'data_wait': 'waiting for data',
  'start': 'imports, data, restoring',
  'compile': 'compiling, up to the first step',
  'evaluation': 'held-out evaluation',
  'save': 'saving, as far as training waits',
  'lost': 'work after the last checkpoint, done again',
  'downtime': 'no process ran, or none that got to its first line',
}
# The field of an event or a line that holds its seconds.
_EVENTS = {'compiled': 'compile', 'saved': 'save'}


class Account(NamedTuple):
  """Seconds by kind, which add up to the total; steps, tokens and rows."""

  seconds: dict[str, float]
  starts: int
  steps: int
  lost_steps: int
  tokens: int
  rows: float
  epochs: float

  @property
  def total(self) -> float:
    """Seconds from the first start to the last line."""
    return sum(self.seconds.values())

  def share(self, kind: str) -> float:
    """The fraction of the wall time spent on a kind."""
    return self.seconds[kind] / self.total if self.total else 0.0

  @property
  def goodput(self) -> float:
    """The fraction of wall time spent on training steps that were kept."""
    return self.share('step')


def wall_time(workdir: str, out: str | None = None) -> tuple[str, Account]:
  """Plots how wall time was spent; returns the PNG's path and the figures."""
  try:
    spent = account(metrics.read(workdir))
  except ValueError as e:
    raise UsageError(
      f'--workdir={workdir}: {e}; restore that file from a copy, or train a run there'
    ) from e
  figure, axes = runs.load_pyplot().subplots(figsize=(7, 3), dpi=120)
  kinds = list(reversed(KINDS))
  bars = axes.barh(kinds, [spent.seconds[kind] for kind in kinds])
  axes.bar_label(bars, [f'{spent.share(k):.1%}' for k in kinds], padding=3)
  axes.margins(x=0.12)
  axes.set_xlabel(f'seconds of {spent.total:,.0f}')
  axes.set_title(f'goodput {spent.goodput:.1%}')
  return runs.save_figure(figure, out or os.path.join(workdir, 'goodput.png')), spent


def account(lines: list[dict[str, Any]]) -> Account:
  """Adds up the lines of a run, from its first start.

  Raises:
    ValueError: the first line is not a start, or a line lacks a field.
  """
  _check(lines)
  seconds = dict.fromkeys(KINDS, 0.0)
  starts = steps = lost_steps = logged = 0
  end, last = None, dict[str, Any](tokens=0)
  for line in lines:
    if line.get('event') == 'start':
      logged = line['step']
      starts += 'rewound' not in line
      seconds['start'] += line['seconds']
      if 'lost_steps' in line:
        lost_steps += line['lost_steps']
        seconds['lost'] += line['lost_seconds']
        began = line['time'] - line['seconds']
        seconds['downtime'] += max(0.0, began - line['previous_time'])
    else:
      # Time not attributed to anything else was training.
      parts = {}
      if line.get('event') in _EVENTS:
        parts[_EVENTS[line['event']]] = line['seconds']
      if line.get('event') == 'first_step':
        # Compiling the evaluation, measuring the peak, and the first step.
        parts['compile'] = line['time'] - end
      if 'eval_seconds' in line:
        parts['evaluation'] = line['eval_seconds']
      if 'loss' in line:
        new = line['step'] - logged
        parts['data_wait'] = line['data_wait_seconds'] * new
        logged, last = line['step'], line
      steps = max(steps, line['step'])
      if line.get('event') == 'compiled':
        # The start may compile a step to see what fits. The line comes later,
        # but the time of the start already includes it.
        early = max(0.0, line['seconds'] - (line['time'] - end))
        seconds['start'] -= early
        seconds['step'] += early
      for kind, spent in parts.items():
        seconds[kind] += spent
      seconds['step'] += line['time'] - end - sum(parts.values())
    end = line['time']
  first, tokens = lines[0], last['tokens']
  # Runs with rows of several lengths log the number of rows.
  rows = last.get('rows', tokens / first['context_length'])
  return Account(
    seconds,
    starts,
    steps,
    lost_steps,
    tokens,
    rows,
    last.get('epochs', rows / first['rows_per_epoch']),
  )


def _check(lines: list[dict[str, Any]]) -> None:
  """Checks that the lines have the fields that `account` adds up."""
  if not lines or lines[0].get('event') != 'start':
    raise ValueError('metrics.jsonl does not begin with a start')
  for number, line in enumerate(lines, start=1):
    needed = ['time']
    if line.get('event') in ('start', *_EVENTS):
      needed.append('seconds')
    if 'loss' in line and line.get('event') != 'start':
      needed += ['data_wait_seconds', 'tokens']
    if line.get('event') == 'start' and 'lost_steps' in line:
      needed += ['lost_seconds', 'previous_time']
    if number == 1:
      needed += ['context_length', 'rows_per_epoch']
    if missing := [name for name in needed if name not in line]:
      raise ValueError(f'line {number} of metrics.jsonl lacks {", ".join(missing)}')
