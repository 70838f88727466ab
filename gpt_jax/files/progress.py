# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress and time left: a bar on a terminal, else log lines."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from rich import console, progress

# Called with the stage, the amount done, and the total amount (None: unknown),
# in bytes or in the unit of the bar.
Report = Callable[[str, int, int | None], None]


_EVERY_SECONDS = 30.0

log = logging.getLogger('gpt_jax')


@contextlib.contextmanager
def bar(unit: str = '') -> Iterator[Report]:
  """Yields a `Report` that draws on stderr if that is a terminal, or logs.

  Args:
    unit: what is counted, such as 'examples'; '' for bytes.
  """
  stderr = console.Console(stderr=True)
  amount = (
    (progress.MofNCompleteColumn(), progress.TextColumn(unit))
    if unit
    else (progress.DownloadColumn(), progress.TransferSpeedColumn())
  )
  columns = (
    progress.TextColumn('{task.description}'),
    progress.BarColumn(),
    *amount,
    progress.TimeRemainingColumn(),
  )
  shown = progress.Progress(
    *columns, console=stderr, disable=not stderr.is_terminal
  )
  tasks: dict[str, progress.TaskID] = {}
  with shown:

    def report(stage: str, done: int, total: int | None):
      if stage not in tasks:
        tasks[stage] = shown.add_task(stage)
      shown.update(tasks[stage], completed=done, total=total)

    yield report if stderr.is_terminal else _logged(unit)


def counted(
  report: Report, stage: str, total: int | None
) -> Callable[[int], None]:
  """Returns a function that adds counts up, and reports their sum."""
  done = 0

  def add(count: int) -> None:
    nonlocal done
    done += count
    report(stage, done, total)

  return add


def _logged(unit: str) -> Report:
  """Logs what a bar would show, twice a minute."""
  starts: dict[str, tuple[float, int]] = {}
  logged = time.monotonic()

  def report(stage: str, done: int, total: int | None):
    nonlocal logged
    now = time.monotonic()
    start, before = starts.setdefault(stage, (now, done))
    if now - logged < _EVERY_SECONDS:
      return
    logged = now
    rate = (done - before) / max(now - start, 1e-9)
    left = ''
    if total and rate:
      left = f', {max(total - done, 0) / rate / 60:.1f} minutes left'
    if unit:
      log.info(*('%s: %d %s, %.1f a second%s', stage, done, unit, rate, left))
    else:
      log.info(
        *('%s: %.0f MB, %.1f MB/s%s', stage, done / 1e6, rate / 1e6, left)
      )

  return report
