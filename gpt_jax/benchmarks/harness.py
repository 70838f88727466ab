# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: turns, the processes of a comparison, tables.

What is compared takes turns, so that a busy machine slows all sides down. A
comparison with torch runs each side in a process of its own, which is asked and
answers in lines of JSON, and waits between them, so that the others have all
cores.
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

from gpt_jax.spec import UsageError, install

OURS, TORCH = 'ours', 'torch'
MIB = 2**20


class Times(NamedTuple):
  """Seconds of each call: of the clock, and of all cores."""

  wall: list[float]
  cpu: list[float]

  @property
  def median(self) -> float:
    """Of the clock."""
    return statistics.median(self.wall)


def in_turns(
  calls: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1
) -> dict[str, Times]:
  """Times each call `rounds` times, one after the other in each round.

  Args:
    calls: return when they are done.
    rounds: that count.
    warm_up: rounds before those.
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
  """A table of Markdown."""
  lines = ['| ' + ' | '.join(map(str, row)) + ' |' for row in (header, *rows)]
  return '\n'.join([lines[0], '|' + '---|' * len(header), *lines[1:]])


def check_installed(*names: str, extras: Sequence[str] = ('hf',)) -> None:
  """Checks that the libraries of a comparison are installed."""
  for name in names:
    if importlib.util.find_spec(name) is None:
      raise UsageError(
        f'--against=torch: {name} is not installed; run {install(*extras)}'
      )


class Side:
  """A process that runs `worker`."""

  def __init__(self, process: subprocess.Popen):
    """Waits until it has loaded its model; `last` is its newest answer."""
    self._process = process
    self.last: dict[str, Any] = {}
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
def side(what: str, *args: Any) -> Iterator[Side]:
  """Runs `worker` for one side of a comparison."""
  with subprocess.Popen(
    [sys.executable, '-m', 'gpt_jax.benchmarks.worker', what, *map(str, args)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      yield Side(process)
    finally:
      process.kill()


@contextlib.contextmanager
def both(what: str, folder: str) -> Iterator[dict[str, Side]]:
  """Ours and torch's, when each has loaded what is in `folder`."""
  with contextlib.ExitStack() as stack:
    yield {
      name: stack.enter_context(side(what, folder, name))
      for name in (OURS, TORCH)
    }


def answers() -> Callable[[dict], None]:
  """What a worker answers with; all else that it prints goes to stderr."""
  file = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)

  def say(answer: dict) -> None:
    file.write(json.dumps(answer) + '\n')
    file.flush()

  return say


def reset_peak() -> None:
  """Lets the peak of the resident memory start anew; Linux only."""
  with open('/proc/self/clear_refs', 'w', encoding='utf-8') as file:
    file.write('5')


def peak_bytes() -> int:
  """Most bytes of resident memory since then."""
  with open('/proc/self/status', encoding='utf-8') as file:
    lines = dict(line.split(':', 1) for line in file)
  return int(lines['VmHWM'].split()[0]) * 1024


class Clock:
  """Seconds of this process, wall and CPU, while it is its turn."""

  def __init__(self):
    """Starts a turn."""
    self.seconds = self.cpu_seconds = 0.0
    self.go_on()

  def go_on(self) -> None:
    """Starts a turn."""
    self._wall, self._cpu = time.perf_counter(), time.process_time()
    self._before = self.seconds

  def take(self) -> float:
    """Counts what has passed; returns the seconds of this turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    self.seconds += wall - self._wall
    self.cpu_seconds += cpu - self._cpu
    self._wall, self._cpu = wall, cpu
    return self.seconds - self._before

  def result(self) -> dict[str, float]:
    """The seconds of all turns."""
    return {'seconds': self.seconds, 'cpu_seconds': self.cpu_seconds}
