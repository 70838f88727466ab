# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the main thread is doing, for the threads that watch over it.

A signal during compilation, or a hang in it, finds the main thread inside of
XLA, where it runs no Python: `preemption` and `watchdog` look here instead.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple


class Phase(NamedTuple):
  """A phase and when it began, or when it was last seen to go on."""

  name: str  # start, prepare, compile, step, evaluation, save, end
  since: float  # time.monotonic()


_now = Phase('start', time.monotonic())


def now() -> Phase:
  """The phase of the process."""
  return _now


def enter(name: str) -> None:
  """The next phase begins."""
  global _now
  _now = Phase(name, time.monotonic())


def tick() -> None:
  """The phase goes on: its deadline counts from here."""
  enter(_now.name)


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
  """A phase within another one."""
  before = _now.name
  enter(name)
  try:
    yield
  finally:
    enter(before)
