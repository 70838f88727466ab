# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a task is: something that measures a model on texts."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpt_jax.data.progress import Report
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Scorer


class Setting(NamedTuple):
  """How a task is put to the model.

  Attributes:
    shots: solved examples before each one.
    seed: of the draw of these.
  """

  shots: int = 0
  seed: int = 0


class Task(Protocol):
  """Texts, and figures of how well a model does on them."""

  @property
  def takes_shots(self) -> bool:
    """Whether solved examples can be shown before."""
    ...

  def measure(
    self,
    scorer: Scorer,
    setting: Setting,
    journal: Journal,
    report: Report,
  ) -> Figures:
    """Measures a model.

    With shots, `shots_shown` says how many there was room for on average.

    Raises:
      UsageError: a file is missing or bad, or an example exceeds the context.
    """
    ...

  def check(self, shots: int) -> None:
    """Reads all that is measured, and shown if `shots` is not 0.

    Raises:
      UsageError: a file is missing or bad, or has too few examples to show.
    """
    ...

  def texts(self) -> Sequence[tuple[str, str]]:
    """What training must not have seen: 'file:line' and text of each."""
    ...
