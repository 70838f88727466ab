# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A process that a command starts ends with it, also if that is killed.

Otherwise it would go on alone, and keep its workdir from the same command.
"""

import ctypes
import os
import signal
import sys

_PARENT = 'GPT_JAX_PARENT'
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal at the parent's end


def environment() -> dict[str, str]:
  """The environment of a process that is to end with this one."""
  return {**os.environ, _PARENT: str(os.getpid())}


def end_with() -> None:
  """Asks Linux to kill this process at the end of the one that started it.

  Does nothing if that did not ask for it by `environment`. The child asks, as
  code between fork and exec would run beside the parent's threads.
  """
  parent = os.environ.pop(_PARENT, '')
  if parent and sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it was killed before
      os._exit(1)
