# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a training run works with, besides its state."""

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

import jax

from gpt_jax import config as config_lib
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.optim.spikes import WINDOW
from gpt_jax.rows import pipeline
from gpt_jax.rows.taken import Taken, TakenAt
from gpt_jax.runtime import hosts
from gpt_jax.training import metrics
from gpt_jax.training.history import History
from gpt_jax.training.metrics import HELD_OUT
from gpt_jax.training.parts import Parts


class Data(Protocol):
  """What a run consumes: rows in an order that the seed and the step give."""

  @property
  def rows_per_epoch(self) -> int:
    """Rows in one epoch, of the length of the first."""
    ...

  def batches(
    self, parts: Parts, start: int, rows: TakenAt
  ) -> Generator[pipeline.Batch]:
    """Gives this host's share of the batches of steps from `start`, from 0.

    Args:
      parts: gives the last step, and the share.
      start: the first step.
      rows: step -> the rows of the run that make its batch.
    """
    ...

  def epochs(self, taken: Taken) -> dict[str, float]:
    """Passes over the data before some rows of the run: `epochs`, ..."""
    ...

  def row_numbers(self, taken: Taken) -> list[int]:
    """Which rows of the data are these rows of the run."""
    ...


class Evaluation(Protocol):
  """What a run is measured by, compiled once."""

  def __call__(
    self, params: Any, stop: Callable[[], bool] = ...
  ) -> dict[str, Any] | None:
    """The measures, `eval/...`; None if `stop`, asked now and then, said so."""
    ...

  def summary(self, values: dict[str, Any]) -> str:
    """A line for people."""
    ...


class Past(NamedTuple):
  """What the loop must know of the steps done."""

  losses: list[float]  # logged last, oldest first
  skipped: list[int]  # steps whose update was left out
  held_out: list[tuple[int, float]]  # steps, and the criterion
  # What routers did in each step since the last log line: see `Meter`.
  unlogged: list[dict[str, Any]]

  def evaluated(self, step: int) -> bool:
    """Whether the step was evaluated."""
    return any(found == step for found, _ in self.held_out)


def gave_up(held_out: list[tuple[int, float]], patience: int) -> bool:
  """Whether the last `patience` evaluations were none the best; 0: never."""
  if not patience or len(held_out) <= patience:
    return False
  values = [value for _, value in held_out]
  return min(values[-patience:]) >= min(values[:-patience])


class TrainingRun(NamedTuple):
  """A run, its folder and its data.

  Attributes:
    parts: what is trained.
    workdir: its folder.
    data: what it consumes.
    checkpointer: what it saves by.
    history: what of its past decides how it goes on.
    evaluation: makes what measures it; None: nothing does.
    criterion: the measure by which one state is better than another, the less
      the better; with a leading '-' the more the better.
    patience: evaluations without a better one after which the run ends early;
      0: never.
  """

  parts: Parts
  workdir: str
  data: Data
  checkpointer: Checkpointer
  history: History
  evaluation: Callable[[Parts], Evaluation] | None = None
  criterion: str = HELD_OUT
  patience: int = 0

  def judged(self, values: dict[str, Any]) -> float | None:
    """The criterion among some measures, the less the better; None: absent.

    What is not finite is worse than any other.
    """
    value = values.get(self.criterion.lstrip('-'))
    if value is None:
      return None
    if not math.isfinite(value):
      return math.inf
    return -value if self.criterion.startswith('-') else value

  @property
  def active(self) -> bool:
    """Whether this process is the one that logs and writes."""
    return jax.process_index() == 0

  def open_metrics(self, done: int, **start: float) -> metrics.Metrics:
    """Opens the metrics at step `done`; `start` goes into their event."""
    config = self.parts.config
    length = config_lib.row_tokens(config)
    opened = metrics.open_all(config, self.workdir, done) if self.active else ()
    return metrics.Metrics(
      self.workdir,
      step=done,
      active=self.active,
      keep=self.history.add,
      trackers=opened,
      context_length=length,
      rows_per_epoch=self.data.rows_per_epoch,
      **start,
    )

  def unskipped_rows(self, step: int) -> Taken:
    """The rows of a step, from 0, if none are left out."""
    return config_lib.order(self.parts.ramp)(step)

  def past(self, done: int) -> Past:
    """The past at step `done`; every process is to ask at the same time."""
    lines = self.history.lines(done)
    logged = [m['loss'] for m in lines if 'loss' in m]
    unlogged = [
      m['routers']
      for m in lines
      if m.get('event') == 'unlogged' and m['step'] == done
    ]
    past: dict[str, Any] = dict(
      losses=[x for x in logged if math.isfinite(x)][-WINDOW:],
      skipped=[m['step'] for m in lines if m.get('event') == 'skipped'],
      held_out=[
        (m['step'], value)
        for m in lines
        if (value := self.judged(m)) is not None
      ],
      unlogged=unlogged[-1] if unlogged else [],
    )
    return Past(**hosts.broadcast_from_host0(past))

  def rows(self) -> TakenAt:
    """The rows of each step, from 0; those left out are passed over."""
    return self.history.skips.shifted(self.unskipped_rows)
