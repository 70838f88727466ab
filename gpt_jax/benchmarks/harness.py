# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turns, processes and tables of the benchmarks.

All sides of a comparison take turns, so that a busy machine slows all of them
down. A comparison with torch runs each side in its own process, which reads and
writes lines of JSON and waits while it is another side's turn, so that each
side has all cores.
"""

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt_jax.core.spec import UsageError, install

OURS, TORCH, PRODUCTS = 'ours', 'torch', 'products'
MIB = 2**20


class Times(NamedTuple):
  """Seconds of each call: wall time, and CPU time of all cores."""

  wall: list[float]
  cpu: list[float]

  @property
  def median(self) -> float:
    """Median of the wall time."""
    return statistics.median(self.wall)


def in_turns(
  calls: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1
) -> dict[str, Times]:
  """Times each call `rounds` times, after `warm_up` rounds that do not count.

  In each round all calls run, one after the other.
  """
  out = {name: Times([], []) for name in calls}
  for i in range(warm_up + rounds):
    for name, call in calls.items():
      wall, cpu = time.perf_counter(), time.process_time()
      call()
      if i >= warm_up:
        out[name].wall.append(time.perf_counter() - wall)
        out[name].cpu.append(time.process_time() - cpu)
  return out


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
  """A Markdown table."""
  lines = ['| ' + ' | '.join(map(str, row)) + ' |' for row in (header, *rows)]
  return '\n'.join([lines[0], '|' + '---|' * len(header), *lines[1:]])


def check_installed(*names: str, extras: Sequence[str] = ('hf',)) -> None:
  """Checks that the libraries of a comparison are installed."""
  for name in names:
    if importlib.util.find_spec(name) is None:
      raise UsageError(f'--against=torch: {name} is not installed; run {install(*extras)}')


class WorkerProcess:
  """A process that runs `worker`."""

  def __init__(self, process: subprocess.Popen):
    """Waits until the process has loaded its model."""
    self._process = process
    self.last: dict[str, Any] = {}  # the newest answer
    self.answer()

  def tell(self, line: Any) -> None:
    """Sends a line."""
    assert self._process.stdin is not None
    self._process.stdin.write(json.dumps(line) + '\n')
    self._process.stdin.flush()

  def answer(self) -> dict:
    """Waits for a line.

    Raises:
      RuntimeError: the process has ended.
    """
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      code = self._process.wait()
      raise RuntimeError(f'{self._process.args}: ended with exit code {code}')
    self.last = json.loads(line)
    return self.last


@contextlib.contextmanager
def side(
  what: str, *args: Any, environment: Mapping[str, str] | None = None
) -> Iterator[WorkerProcess]:
  """Runs `worker` for one side of a comparison.

  Args:
    what: it does.
    environment: of the process; None: that of this one.
  """
  with subprocess.Popen(
    [sys.executable, '-m', 'gpt_jax.benchmarks.worker', what, *map(str, args)],
    env=environment,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      yield WorkerProcess(process)
    finally:
      process.kill()


@contextlib.contextmanager
def sides(
  what: str, folder: str, names: Sequence[str] = (OURS, TORCH)
) -> Iterator[dict[str, WorkerProcess]]:
  """The sides of a comparison, once each has loaded what is in `folder`."""
  with contextlib.ExitStack() as stack:
    yield {name: stack.enter_context(side(what, folder, name)) for name in names}


def answers() -> Callable[[dict], None]:
  """Returns a worker's answer function; its other output goes to stderr."""
  file = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)

  def say(answer: dict) -> None:
    file.write(json.dumps(answer) + '\n')
    file.flush()

  return say


class TurnsClock:
  """Wall and CPU seconds of this process during its turns."""

  def __init__(self):
    """Starts a turn."""
    self.seconds = self.cpu_seconds = 0.0
    self.go_on()

  def go_on(self) -> None:
    """Starts a turn."""
    self._wall, self._cpu = time.perf_counter(), time.process_time()
    self._before = self.seconds

  def take(self) -> float:
    """Adds the time since the last call; returns the seconds of this turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    self.seconds += wall - self._wall
    self.cpu_seconds += cpu - self._cpu
    self._wall, self._cpu = wall, cpu
    return self.seconds - self._before

  def result(self) -> dict[str, float]:
    """The seconds of all turns."""
    return {'seconds': self.seconds, 'cpu_seconds': self.cpu_seconds}
