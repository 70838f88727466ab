# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: all hosts save at the same step boundary and exit with code 75.

During training and evaluation the loop calls `reached` at each boundary, and
saves. In the phases of `AT_ONCE` there is nothing new to save, and the main
thread may be in a compilation that no signal handler can interrupt, so a thread
ends the process immediately.

The first SIGINT (Ctrl-C) acts like SIGTERM; the second ends the process
immediately, with exit code 130. A thread says at once what a stop waits for.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from gpt_jax.core.runtime import watchdog
from gpt_jax.core.runtime.log import end, program, say

EXIT_CODE = 75
INTERRUPTED = 130  # as a shell says of SIGINT
TERMINATED = 143  # as a shell says of SIGTERM
_ENDED_BY: dict[int, tuple[str, int]] = {
  signal.SIGINT: ('interrupted', INTERRUPTED),
  signal.SIGTERM: ('ended by SIGTERM', TERMINATED),
}
_POLL_SECONDS = 0.2
# Calls take microseconds, and a rollout may sample millions of tokens.
_MOST_POLLS = 1000

# Phases in which everything is already on disk.
AT_ONCE = ('start', 'prepare', 'compile', 'end')


class Preempted(Exception):
  """The run stops for SIGTERM or SIGINT and has saved; exit code 75."""


class _State:
  """State global to the process, as signals are."""

  asked = False
  ahead = 'saving'  # of a stop, in words
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
  with _heard(_stop):
    numbers = (signal.SIGTERM, signal.SIGINT)
    old = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
      yield
    finally:
      for number, handler in zip(numbers, old, strict=True):
        signal.signal(number, handler)


@contextlib.contextmanager
def announcing() -> Iterator[None]:
  """Says at once that SIGINT came, where `KeyboardInterrupt` ends the work.

  For work that is on disk as it goes, and may be in C++ or wait for others; the
  second SIGINT ends the process. In the main thread only.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  _State.asked = False
  with _heard(_announce):
    yield


@contextlib.contextmanager
def ending() -> Iterator[None]:
  """SIGINT and SIGTERM end the process at once, whatever it does.

  For work that has nothing to save. The signals are blocked, and a thread waits
  for them: the main thread may be in C++, and libraries such as libtpu replace
  the handler of SIGTERM by one that writes a stack. In the main thread only.
  """
  numbers = {number for number in _ENDED_BY if signal.getsignal(number) is not signal.SIG_IGN}
  if threading.current_thread() is not threading.main_thread() or not numbers:
    yield
    return
  ended = threading.Event()

  def wait() -> None:
    while not ended.is_set():
      if heard := signal.sigtimedwait(numbers, _POLL_SECONDS):
        for function in _leaving:
          function()
        end(*_ENDED_BY[heard.si_signo])

  old = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
  thread = threading.Thread(target=wait, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextlib.contextmanager
def _heard(act: Callable[[int], None]) -> Iterator[None]:
  """Calls `act` with the number of each signal, in a thread."""
  # The C-level handler writes the signal's number to the pipe even if the main
  # thread is not running Python.
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

  def listen() -> None:
    while data := os.read(reader, 1):
      act(data[0])

  thread = threading.Thread(target=listen, daemon=True)
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(old)
    os.close(writer)
    thread.join()
    os.close(reader)


def _announce(number: int) -> None:
  if number == signal.SIGINT:
    if _State.asked:
      end('interrupted', INTERRUPTED)
    _State.asked = True
    say(
      f'{program()}: stopping: what is done is kept, and the same command goes '
      'on from there; Ctrl-C again ends now'
    )


def _stop(number: int) -> None:
  if number == signal.SIGINT:
    if _State.asked:
      end('interrupted', INTERRUPTED)
    if _State.distributed:
      # JAX's handler notifies the other processes.
      os.kill(os.getpid(), signal.SIGTERM)
  if number in (signal.SIGTERM, signal.SIGINT):
    ask()


def ask(before_exit: Callable[[], None] = lambda: None) -> None:
  """Requests a stop; ends the process at once if there is nothing to save.

  Called from a separate thread.
  """
  first, _State.asked = not _State.asked, True
  phase = watchdog.now().name
  if phase in AT_ONCE:
    for function in (*_leaving, before_exit):
      function()
    end(f'preempted in phase {phase}, with nothing new to save; start again to continue', EXIT_CODE)
  if first:
    say(f'{program()}: stopping: {_State.ahead}; Ctrl-C again ends now, without saving')


@contextlib.contextmanager
def with_ahead(work: str) -> Iterator[None]:
  """Sets, in words, what a stop within the context has ahead of it."""
  before, _State.ahead = _State.ahead, work
  try:
    yield
  finally:
    _State.ahead = before


def before_step(step: int) -> None:
  """From now on a stop comes after `step`, or with other hosts a later one."""
  named = 'a step on all hosts' if _State.distributed else f'step {step}'
  _State.ahead = f'finishing {named}, then saving'


@contextlib.contextmanager
def leaving(function: Callable[[], None]) -> Iterator[None]:
  """Calls `function` if the process ends at once within this context."""
  _leaving.append(function)
  try:
    yield
  finally:
    _leaving.remove(function)


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
