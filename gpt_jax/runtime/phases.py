# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The current phase of the main thread, for the threads that watch it.

During compilation the main thread is inside XLA and runs no Python, so it
cannot react to signals or notice a hang: `preemption` and `watchdog` look here
instead.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple


class Phase(NamedTuple):
  """A phase, and when it began or last made progress."""

  name: str  # start, prepare, compile, step, evaluation, save, end
  since: float  # time.monotonic()


_now = Phase('start', time.monotonic())


def now() -> Phase:
  """The current phase."""
  return _now


def enter(name: str) -> None:
  """Begins a phase, or its deadline anew."""
  global _now
  _now = Phase(name, time.monotonic())


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
  """Runs a phase nested in the current one."""
  before = _now.name
  enter(name)
  try:
    yield
  finally:
    enter(before)
