# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands in processes of their own that need not import anything again.

They are forked from a server that has imported `preloaded` and has not used a
device: what takes them seconds less is only the start of Python.
"""

import contextlib
import multiprocessing
import os
import signal
import sys

from tests.support import quick

HANGS = 300  # seconds, after which a command does not end by itself
_CONTEXT = multiprocessing.get_context('forkserver')
# Also what the kits themselves import, as each process imports their module.
_CONTEXT.set_forkserver_preload(['tests.support.preloaded', 'tests.support.subjects'])


class Fork:
  """A command in a process; as much of `subprocess.Popen` as the kits use."""

  def __init__(self, argv: list[str], *, folder: str, said: str, devices: int = 1):
    """Starts `gpt-jax ARGV` in `folder`; what it says goes to file `said`."""
    open(said, 'w').close()  # what another process said is gone at once
    self._process = _CONTEXT.Process(target=_run, args=(argv, folder, said, devices))
    self._process.start()

  def poll(self) -> int | None:
    """The exit code, None while it runs."""
    return self._process.exitcode

  def wait(self) -> int:
    """The exit code, -N after signal N; one that hangs is aborted."""
    self._process.join(HANGS)
    if self._process.exitcode is None:
      self.send_signal(signal.SIGABRT)
      self._process.join()
    code = self._process.exitcode
    assert code is not None
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal; nothing happens if the process has just ended."""
    assert self._process.pid is not None
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._process.pid, number)


def variables(devices: int) -> dict[str, str]:
  """The environment of a process with `devices` CPU devices; it compiles as the tests do."""
  # XLA splits a sum over the threads: their number may not follow the devices.
  return {'XLA_FLAGS': quick.xla_flags(devices), 'PJRT_NPROC': '4'}


def _run(argv: list[str], folder: str, said: str, devices: int) -> None:
  # The server ignores it, and what it forks inherits that.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  os.environ.update(variables(devices))
  os.chdir(folder)
  to = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  os.dup2(to, 2)
  os.dup2(nowhere, 1)
  from gpt_jax import __main__

  sys.exit(__main__.main(argv))
