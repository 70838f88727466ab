# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Logging to stderr, and which command was started when."""

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
  # What Orbax and others log through absl is for their developers; we report
  # the errors that they raise.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log.propagate = False


def say(text: str) -> None:
  """Writes a line to stderr at once, after the output.

  Nothing may read them any more, as after `| head`: what ends the process then
  ends it all the same.
  """
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    # One write, so that the log of another thread cannot interleave.
    sys.stderr.write(f'{text}\n')
    sys.stderr.flush()


class _Started:
  """What this process was started as."""

  program = 'gpt-jax'


def started_as(command: str) -> None:
  """Tells which command was run, for messages that end the process."""
  _Started.program = f'gpt-jax {command}'


def program() -> str:
  """`gpt-jax COMMAND`: how a message on stderr begins."""
  return _Started.program


def seconds_since_start() -> float:
  """Seconds since the command was started."""
  return time.monotonic() - _STARTED
