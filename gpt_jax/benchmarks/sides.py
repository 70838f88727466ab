# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison with torch, each in a process of its own.

A side is asked and answers in lines of JSON, and waits between them, so that
the other has all cores.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpt_jax.spec import UsageError, install

OURS, TORCH = 'ours', 'torch'


def check_installed() -> None:
  """Raises `UsageError` unless torch and transformers are installed."""
  for name in ('torch', 'transformers'):
    if importlib.util.find_spec(name) is None:
      raise UsageError(
        f'--against=torch: {name} is not installed; run {install("hf")}'
      )


class Side:
  """A process that runs a worker."""

  def __init__(self, process: subprocess.Popen):
    """`process` answers on its standard output."""
    self._process = process

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
    return json.loads(line)


@contextlib.contextmanager
def opened(module: str, folder: str) -> Iterator[dict[str, Side]]:
  """Both sides by name, when each has loaded what is in `folder`.

  Args:
    module: the worker; run with the name of its side, and the folder.
    folder: has what both need.
  """
  with contextlib.ExitStack() as stack:
    yield {
      name: stack.enter_context(_one(module, name, folder))
      for name in (OURS, TORCH)
    }


@contextlib.contextmanager
def _one(module: str, name: str, folder: str) -> Iterator[Side]:
  with subprocess.Popen(
    [sys.executable, '-m', module, name, folder],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      side = Side(process)
      side.answer()
      yield side
    finally:
      process.kill()


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
