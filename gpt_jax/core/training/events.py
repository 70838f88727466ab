# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The events of a run, for what it does beside training.

Which listeners a run has follows from its config: see `loop.LISTENERS`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.training.compiled import Compiled, Stages


class GoBack(Exception):
  """The run has to go back to its newest checkpoint."""


class Listener:
  """Is told what the loop does; by itself it does nothing."""

  def compiled(self, train_steps: Stages) -> None:
    """Comes before the first step, and after the run went back.

    Args:
      train_steps: all that are still to come.
    """

  def begin(self, done: int) -> None:
    """The run continues after step `done`."""

  def step(
    self,
    step: int,
    state: TrainState,
    batch: dict[str, np.ndarray],
    shape: Shape,
    program: Compiled,
    average_start: Sequence[jax.Array],
  ) -> tuple[TrainState, dict[str, Any]] | None:
    """Takes a step in place of the loop; None: the loop takes it.

    Args:
      step: its number, from 1.
      state: before it; deleted, as if it were donated.
      batch: the rows of this process.
      shape: of the whole batch.
      average_start: further arguments of the program.

    Returns:
      The next state, and the outputs of the step.

    Raises:
      GoBack: the state is wrong.
    """

  def checked(self, last: int, outputs: Sequence[dict[str, Any]]) -> None:
    """The outputs of the steps up to `last`, which have no spike."""

  def spike(self, step: int, output: dict[str, Any]) -> bool:
    """Whether a spike counts only once it recurs from the newest checkpoint."""
    del step, output
    return False

  def before_save(self, step: int, state: TrainState) -> None:
    """The state after `step` is about to be saved.

    Raises:
      GoBack: the state is wrong.
    """
