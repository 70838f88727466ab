# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Saves checkpoints from the training loop, and times them."""

import math
import time

from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import phases
from gpt_jax.runtime.log import log


class Saver:
  """Saves in the background, and warns of saves too slow for a preemption."""

  def __init__(self, checkpointer: Checkpointer, *, grace_seconds: float):
    """Saves to `checkpointer`; `grace_seconds` is what SIGTERM leaves."""
    self._checkpointer = checkpointer
    self._grace = grace_seconds
    self._started = None

  def save(self, state: TrainState) -> float:
    """Starts to save; waits only until the previous save is done.

    Returns:
      The seconds that this took.
    """
    with phases.during('save'):
      self._started = time.monotonic()
      self._checkpointer.save(state)
      return time.monotonic() - self._started

  def retry_due(self) -> bool:
    """Whether a save failed, and it is time to try again."""
    return self._checkpointer.retry_due()

  def poll(self) -> None:
    """Looks whether the save is done; to be called at each step."""
    if self._started is not None and not self._checkpointer.saving():
      seconds = time.monotonic() - self._started
      self._started = None
      if seconds > self._grace:
        log.warning(
          'a save took %.1f s, longer than checkpoint.grace_seconds=%g: a '
          'preemption would end the process before it is done',
          *(seconds, self._grace),
        )

  def finish(self, state: TrainState, *, preempted: bool = False) -> float:
    """Waits until `state` is saved, and closes; returns the seconds it took.

    Args:
      state: to save.
      preempted: gives up within the grace, to end with the reason said.

    Raises:
      RuntimeError: it cannot be saved.
    """
    with phases.during('save'):
      started = time.monotonic()
      # Half of it for the waits: the tries take time too.
      within = self._grace / 2 if preempted else math.inf
      self._checkpointer.finish(state, within=within)
      self.poll()
      return time.monotonic() - started
