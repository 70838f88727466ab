# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Logging to stderr, and the name and start time of the command."""

import contextlib
import logging
import sys
import time

from rich.console import Console
from rich.logging import RichHandler

# Close to the start of the process: this module is imported early.
_STARTED = time.monotonic()

# Logs and progress go to stderr: stdout is for results.
console = Console(stderr=True)
log = logging.getLogger('gpt_jax')


def set_up() -> None:
  """Sends our log to stderr, and silences the libraries'."""
  if console.is_terminal:
    handler = RichHandler(console=console, show_path=False)
  else:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  log.handlers[:] = [handler]
  log.setLevel(logging.INFO)
  # Orbax and others log through absl for their own developers; we report the
  # errors that they raise.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log.propagate = False


def say(text: str) -> None:
  """Flushes stdout, then writes a line to stderr at once.

  Either pipe may be closed, as after `| head`. That is ignored, so the caller
  can go on to end the process.
  """
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    # One write, so that the log of another thread cannot interleave.
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


class _Started:
  """The command that this process runs."""

  program = 'gpt-jax'


def started_as(command: str) -> None:
  """Sets the command's name, for messages that end the process."""
  _Started.program = f'gpt-jax {command}'


def program() -> str:
  """`gpt-jax COMMAND`, the prefix of messages on stderr."""
  return _Started.program


def seconds_since_start() -> float:
  """Seconds since the command was started."""
  return time.monotonic() - _STARTED
