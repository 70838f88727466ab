# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A progress bar of bytes, rate and time left, where someone watches."""

import contextlib
from collections.abc import Callable, Iterator

from rich import console, progress

# Takes the stage, the bytes done and the bytes in all (None: not known).
Report = Callable[[str, int, int | None], None]


@contextlib.contextmanager
def bar() -> Iterator[Report]:
  """Yields a report that draws on stderr if that is a terminal."""
  stderr = console.Console(stderr=True)
  columns = (
    progress.TextColumn('{task.description}'),
    progress.BarColumn(),
    progress.DownloadColumn(),
    progress.TransferSpeedColumn(),
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

    yield report
