# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: all hosts save at the same step boundary and exit with code 75.

During training and evaluation the loop calls `reached` at each boundary, and
saves. In the phases of `AT_ONCE` there is nothing new to save, and the main
thread may be in a compilation that no signal handler can interrupt, so a thread
ends the process immediately.

The first SIGINT (Ctrl-C) acts like SIGTERM; the second ends the process
immediately, with exit code 130.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from gpt_jax.runtime import watchdog
from gpt_jax.runtime.log import program, say

EXIT_CODE = 75
INTERRUPTED = 130  # as a shell says of SIGINT
# Calls take microseconds, and a rollout may draw millions of tokens.
_MOST_POLLS = 1000

# Phases in which everything is already on disk.
AT_ONCE = ('start', 'prepare', 'compile', 'end')


class Preempted(Exception):
  """The run stops for SIGTERM or SIGINT and has saved; exit code 75."""


class _State:
  """State global to the process, as signals are."""

  asked = False
  asked_at = 0.0  # of the monotonic clock
  reached = False
  boundaries = 0
  distributed = False


_leaving: list[Callable[[], None]] = []  # called before the process ends


@contextlib.contextmanager
def listening() -> Iterator[None]:
  """Handles SIGTERM and SIGINT in its context; in the main thread only."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  _State.asked = _State.reached = _State.distributed = False
  _State.boundaries = 0
  # The C-level handler writes the signal's number to the pipe even if the main
  # thread is not running Python.
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  numbers = (signal.SIGTERM, signal.SIGINT)
  old = [signal.signal(number, lambda *_: None) for number in numbers]
  thread = threading.Thread(target=_listen, args=(reader,), daemon=True)
  thread.start()
  try:
    yield
  finally:
    for number, handler in zip(numbers, old, strict=True):
      signal.signal(number, handler)
    signal.set_wakeup_fd(old_writer)
    os.close(writer)
    thread.join()
    os.close(reader)


def _listen(reader: int) -> None:
  while data := os.read(reader, 1):
    if data[0] == signal.SIGINT:
      if _State.asked:
        _end('interrupted', INTERRUPTED)
      if _State.distributed:
        # JAX's handler notifies the other processes.
        os.kill(os.getpid(), signal.SIGTERM)
    if data[0] in (signal.SIGTERM, signal.SIGINT):
      ask()


def ask(before_exit: Callable[[], None] = lambda: None) -> None:
  """Requests a stop; ends the process at once if there is nothing to save.

  Called from a separate thread.
  """
  if not _State.asked:
    _State.asked_at = time.monotonic()
  _State.asked = True
  phase = watchdog.now().name
  if phase in AT_ONCE:
    for function in (*_leaving, before_exit):
      function()
    _end(
      f'preempted in phase {phase}, with nothing new to save; start again to '
      'continue',
      EXIT_CODE,
    )


@contextlib.contextmanager
def leaving(function: Callable[[], None]) -> Iterator[None]:
  """Calls `function` if the process ends at once within this context."""
  _leaving.append(function)
  try:
    yield
  finally:
    _leaving.remove(function)


def _end(message: str, code: int) -> None:
  say(f'{program()}: {message}')
  os._exit(code)


def use_distributed() -> None:
  """Leaves SIGTERM to JAX from now on, which notifies every process."""
  _State.distributed = True


def reached() -> bool:
  """True from the step boundary on at which all processes must stop.

  Every process must call it at each boundary between steps or evaluation
  batches, the same number of times. Does not block.
  """
  if not _State.distributed:
    return _State.asked
  from jax.experimental import multihost_utils

  _State.boundaries += 1
  if multihost_utils.reached_preemption_sync_point(_State.boundaries):
    _State.reached = True
  return _State.reached


def seconds_since_asked() -> float:
  """Seconds since a stop was requested; 0 if none was, or of another host."""
  return time.monotonic() - _State.asked_at if _State.asked else 0.0


class Polls:
  """Calls `reached` in work that has other moments in each process.

  Processes call it the same number of times all the same: at most
  `_MOST_POLLS`, evenly over the most moments that there may be; `finish` makes
  the calls that are left.
  """

  def __init__(self, most: int):
    """`most`, at least 1, is the same in all processes."""
    self._every = -(-most // _MOST_POLLS)
    self._moments, self._left = 0, most // self._every
    self._reached = False

  def __call__(self) -> bool:
    """Whether to end the work, at one of its moments."""
    self._moments += 1
    if self._moments % self._every == 0:
      self._poll()
    return self._reached

  def finish(self) -> bool:
    """Whether all processes must stop, after the work."""
    while self._left:
      self._poll()
    return self._reached

  def _poll(self) -> None:
    self._left -= 1
    self._reached = reached()


def check() -> None:
  """Raises `Preempted` if a stop was requested; call it after saving."""
  if _State.asked:
    raise Preempted('preempted; all is saved; start again to continue')
