# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress and time left: a bar on a terminal, else log lines."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from rich import filesize, progress
from rich.console import Console
from rich.status import Status
from rich.text import Text

# Called with the stage, the amount done, and the total amount (None: unknown),
# in bytes or in the unit of the bar.
Report = Callable[[str, int, int | None], None]


_EVERY_SECONDS = 30.0

# Of logs and bars, so that lines appear above the bars: stdout is for results.
console = Console(stderr=True)
log = logging.getLogger('gpt_jax')

_drawn: list[progress.Progress | Status] = []


@contextlib.contextmanager
def drawn(bars: progress.Progress | Status) -> Iterator[None]:
  """Draws bars on `console` within the context, and leaves them there."""
  _drawn.append(bars)
  try:
    with bars:
      yield
  finally:
    _drawn.remove(bars)


def leave() -> None:
  """For a process that ends at once: gives the terminal's cursor back."""
  for bars in _drawn:
    bars.stop()


class _Speed(progress.ProgressColumn):
  """Bytes a second since the start of a stage; rich's forgets past stages."""

  def render(self, task: progress.Task) -> Text:
    seconds = task.finished_time or task.elapsed
    rate = task.completed / seconds if seconds else 0
    return Text(f'{filesize.decimal(round(rate))}/s' if rate else '')


@contextlib.contextmanager
def bar(unit: str = '') -> Iterator[Report]:
  """Yields a `Report` that draws on stderr if that is a terminal, or logs.

  Args:
    unit: what is counted, such as 'examples'; '' for bytes.
  """
  amount = (
    (progress.MofNCompleteColumn(), progress.TextColumn(unit))
    if unit
    else (progress.DownloadColumn(), _Speed())
  )
  columns = (
    progress.TextColumn('{task.description}'),
    progress.BarColumn(),
    *amount,
    progress.TimeRemainingColumn(),
  )
  if not console.is_terminal:
    yield _logged(unit)
    return
  # The rate follows from all of a stage: its reports may be minutes apart.
  bars = progress.Progress(*columns, console=console, speed_estimate_period=math.inf)
  tasks: dict[str, progress.TaskID] = {}

  def end() -> None:
    """Ends the stages so far with what was done: totals may be estimates."""
    for task in bars.tasks:
      bars.update(task.id, total=task.completed)

  def report(stage: str, done: int, total: int | None):
    if stage not in tasks:
      end()
      tasks[stage] = bars.add_task(stage)
    bars.update(tasks[stage], completed=done, total=total)

  with drawn(bars):
    yield report
    end()


@contextlib.contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[Callable[[], None]]:
  """Calls `act` in a thread, every `seconds`.

  Yields:
    A function that starts counting them anew.
  """
  anew, ended = threading.Event(), threading.Event()

  def repeat() -> None:
    while not ended.is_set():
      if anew.wait(seconds):
        anew.clear()
      else:
        act()

  thread = threading.Thread(target=repeat, daemon=True)
  thread.start()
  try:
    yield anew.set
  finally:
    ended.set()
    anew.set()
    thread.join()


def counted(report: Report, stage: str, total: int | None) -> Callable[[int], None]:
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
      log.info('%s: %d %s, %.1f a second%s', stage, done, unit, rate, left)
    else:
      log.info('%s: %.0f MB, %.1f MB/s%s', stage, done / 1e6, rate / 1e6, left)

  return report
