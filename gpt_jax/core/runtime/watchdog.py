# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The current phase of the main thread, and a watchdog for hangs.

During compilation the main thread is inside XLA and runs no Python, so it
cannot react to signals or notice a hang. `preemption` and the watchdog below
read its phase from other threads instead.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpt_jax.core.runtime.log import end


class Phase(NamedTuple):
  """A phase, and the time when it began or last made progress."""

  name: str  # start, prepare, compile, step, evaluation, save, end
  since: float  # time.monotonic()


_now = Phase('start', time.monotonic())


def now() -> Phase:
  """The current phase."""
  return _now


def enter(name: str) -> None:
  """Enters a phase, or restarts its deadline."""
  global _now
  _now = Phase(name, time.monotonic())


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
  """Runs a phase nested in the current one."""
  before = _now.name
  enter(name)
  try:
    yield
  finally:
    enter(before)


# The watchdog: ends a process that hangs, and shows where.
#
# Each phase of a run has its own deadline: one long enough for a compilation
# would hide a hung step for an hour.


def deadlines(config: Any) -> dict[str, float]:
  """Seconds by phase, from the section `watchdog` of a config."""
  return {name.removesuffix('_seconds'): seconds for name, seconds in config.watchdog.items()}


@contextlib.contextmanager
def watching(deadlines: Mapping[str, float], file: str) -> Iterator[None]:
  """Watches the phases from a thread.

  Past a deadline it writes the stacks of all threads to stderr and to `file`,
  and ends the process with exit code 1 and the phase in the last line. It does
  not depend on the main thread, which may be stuck outside Python.

  Args:
    deadlines: seconds by phase; 0 or missing: no deadline.
    file: to write the stacks to; its folder is created if needed.
  """
  limits = {name: limit for name, limit in deadlines.items() if limit > 0}
  if not limits:
    yield
    return
  done = threading.Event()
  # At most a tenth of the shortest deadline late, and at most a second.
  interval = min(1.0, min(limits.values()) / 10)

  def watch():
    while not done.wait(interval):
      phase = now()
      limit = limits.get(phase.name)
      if limit is not None and time.monotonic() - phase.since > limit:
        _end(phase.name, limit, file)

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()


def _end(phase: str, limit: float, file: str) -> None:
  written = f'stacks in {file}'
  try:
    os.makedirs(os.path.dirname(file) or '.', exist_ok=True)
    with open(file, 'w', encoding='utf-8') as f:
      f.write(f'phase {phase}, after {limit:g} seconds\n')
      f.flush()
      faulthandler.dump_traceback(f, all_threads=True)
  except OSError as e:
    written = f'stacks above; {file} could not be written ({e})'
  faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
  end(
    f'failed: phase {phase} has gone on for more than '
    f'watchdog.{phase}_seconds={limit:g}; {written}',
    1,
  )
