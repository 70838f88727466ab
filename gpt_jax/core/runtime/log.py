# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Logging to stderr; the command of this process, and its start time."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from rich.logging import RichHandler

from gpt_jax.core.files import progress
from gpt_jax.core.files.progress import console
from gpt_jax.core.spec import printable

log = logging.getLogger('gpt_jax')


def set_up() -> None:
  """Sends our log to stderr, and silences the libraries'."""
  if console.is_terminal:
    handler = RichHandler(console=console, show_path=False)
  else:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  handler.addFilter(_one_line)
  log.handlers[:] = [handler]
  log.setLevel(logging.INFO)
  # Orbax and others log through absl for their own developers; we report the
  # errors that they raise.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  log.propagate = False


def _one_line(record: logging.LogRecord) -> bool:
  record.msg, record.args = printable(record.getMessage()), ()
  return True


def end(text: str, code: int) -> NoReturn:
  """Ends the process at once, and says why in its last line."""
  progress.leave()
  for handler in log.handlers:
    handler.acquire()  # other threads log nothing after the line
  say(f'{program()}: {text}')
  os._exit(code)


def say(text: str) -> None:
  """Flushes stdout, then writes a line, or several, to stderr at once.

  Either pipe may be closed, as after `| head`. That is ignored, so the caller
  can go on to end the process.
  """
  with contextlib.suppress(OSError):
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    # One write, so that the log of another thread cannot interleave.
    lines = map(printable, text.split('\n'))
    sys.stderr.write('\n'.join([*lines, '']))
    sys.stderr.flush()


class Given(NamedTuple):
  """What the user gave to the command of this process."""

  command: str  # as a shell takes it
  overrides: list[str]  # the fields of the config that flags set
  fields: Mapping[str, Any]  # of the config, flat, before any are filled in


class _Started:
  """The command that this process runs."""

  program = 'gpt-jax'
  given: Given | None = None
  # Close to the start of the process: this module is imported early.
  at = time.monotonic()


def started_as(command: str) -> None:
  """Sets the command's name, for messages that end the process."""
  _Started.program = f'gpt-jax {command}'


def started_with(given: Given) -> None:
  """Keeps what the user gave, for the records of runs."""
  _Started.given = given


def given() -> Given | None:
  """What the user gave; None in a process that runs no command."""
  return _Started.given


def program() -> str:
  """`gpt-jax COMMAND`, the prefix of messages on stderr."""
  return _Started.program


def start_anew() -> None:
  """Counts from now on, in a command that makes one run after another."""
  _Started.at = time.monotonic()


def seconds_since_start() -> float:
  """Seconds since the command or its present run was started."""
  return time.monotonic() - _Started.at
