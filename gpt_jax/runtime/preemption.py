# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: save at the next step boundary, all hosts together, and exit 75.

While steps are taken and evaluations made, the loop asks `reached` at each
boundary and saves. In the phases of `AT_ONCE` there is nothing new to save, and
the main thread may sit in a compilation that no signal handler can interrupt:
a thread ends the process there and then.

The first SIGINT (Ctrl-C) does the same as SIGTERM; the second ends the process
at once, with exit code 130.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from gpt_jax.runtime import phases
from gpt_jax.runtime.log import program

EXIT_CODE = 75

# Phases in which nothing is lost that the disk does not hold.
AT_ONCE = ('start', 'prepare', 'compile', 'end')


class Preempted(Exception):
  """The run was told to stop, and has saved: exit code 75."""


class _State:
  """Of the process, as signals are."""

  asked = False
  reached = False
  boundaries = 0
  distributed = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
  """Handles SIGTERM and SIGINT meanwhile; in the main thread only."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  _State.asked = _State.reached = _State.distributed = False
  _State.boundaries = 0
  # The number of a signal is written to the pipe by the C handler, even when
  # the main thread is not in Python.
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
        _end('interrupted', 130)
      if _State.distributed:
        # JAX's handler tells the other processes.
        os.kill(os.getpid(), signal.SIGTERM)
    if data[0] in (signal.SIGTERM, signal.SIGINT):
      ask()


def ask(before_exit: Callable[[], None] = lambda: None) -> None:
  """Asks the run to stop; ends the process where nothing is to be saved.

  Called in a thread of its own.
  """
  _State.asked = True
  phase = phases.now().name
  if phase in AT_ONCE:
    before_exit()
    _end(
      f'preempted in phase {phase}, with nothing new to save; start again to '
      'continue',
      EXIT_CODE,
    )


def _end(message: str, code: int) -> None:
  sys.stdout.flush()
  # One write: the log of the main thread does not come in between.
  sys.stderr.write(f'{program()}: {message}\n')
  sys.stderr.flush()
  os._exit(code)


def use_distributed() -> None:
  """From here on JAX handles SIGTERM, and its notice reaches every process."""
  _State.distributed = True


def reached() -> bool:
  """True from the boundary on at which every process is to stop.

  To be called at each boundary between steps or evaluation batches, by every
  process the same number of times. Waits for nothing.
  """
  if not _State.distributed:
    return _State.asked
  from jax.experimental import multihost_utils

  _State.boundaries += 1
  if multihost_utils.reached_preemption_sync_point(_State.boundaries):
    _State.reached = True
  return _State.reached


def check() -> None:
  """Raises if the run was asked to stop; all must be saved.

  Raises:
    Preempted: it was.
  """
  if _State.asked:
    raise Preempted('preempted; all is saved; start again to continue')
