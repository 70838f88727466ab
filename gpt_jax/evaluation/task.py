# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The interface of a task, which measures a model on texts."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.results import Figures
from gpt_jax.evaluation.score import Scorer
from gpt_jax.files.progress import Report


class Setting(NamedTuple):
  """What is measured of a task, and after what.

  Attributes:
    shots: number of solved examples before each one.
    seed: for drawing them.
    limit: measures the first examples only, so many of each group; None: all.
    seen: those of `Task.texts` that training has seen, by position; None: it
      is not known.
    outputs: path for the texts that the model writes; '': they are not kept.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  seen: frozenset[int] | None = None
  outputs: str = ''


class Task(Protocol):
  """Texts, and a measure of how well a model does on them."""

  @property
  def takes_shots(self) -> bool:
    """Whether few-shot examples can be shown."""
    ...

  @property
  def takes_sources(self) -> bool:
    """Whether a model writes texts for sources, as an encoder-decoder can too.

    Else only a decoder can be measured.
    """
    ...

  def measure(
    self,
    scorer: Scorer,
    setting: Setting,
    journal: Journal,
    report: Report,
  ) -> Figures:
    """Measures a model.

    With shots, `shots_shown` is the mean number that fitted into the context.
    Where it is known what training has seen, figures are also given for the
    examples that it has not; see `figures.clean`.
    """
    ...

  def check(self, shots: int) -> None:
    """Reads the measured examples, and the few-shot pool if `shots` > 0."""
    ...

  def texts(self) -> Sequence[tuple[str, str]]:
    """'file:line' and text of all that training must not contain."""
    ...
