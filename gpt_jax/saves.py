# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""When the training loop saves: and how long it takes."""

import time

from gpt_jax import phases
from gpt_jax.checkpoint import Checkpointer
from gpt_jax.command import log
from gpt_jax.state import TrainState


class Saver:
  """Saves in the background, and warns of saves too slow for a preemption."""

  def __init__(self, checkpointer: Checkpointer, *, grace_seconds: float):
    """Saves to `checkpointer`; `grace_seconds` is what SIGTERM leaves."""
    self._checkpointer = checkpointer
    self._grace = grace_seconds
    self._started = None
    self._seconds = 0.0

  def save(self, state: TrainState) -> None:
    """Starts to save; waits only until the previous save is done."""
    with phases.during('save'):
      started = time.monotonic()
      self._checkpointer.save(state)
      self._started = started

  def poll(self) -> None:
    """Looks whether the save is done; to be called at each step."""
    if self._started is not None and not self._checkpointer.saving():
      seconds = self._seconds = time.monotonic() - self._started
      self._started = None
      if seconds > self._grace:
        log.warning(
          'a save took %.1f s, longer than checkpoint.grace_seconds=%g: a '
          'preemption would end the process before it is done',
          *(seconds, self._grace),
        )

  def close(self) -> float:
    """Waits until all is saved; returns how long the last save took."""
    with phases.during('save'):
      self._checkpointer.wait()
      self.poll()
      self._checkpointer.close()
    return self._seconds
