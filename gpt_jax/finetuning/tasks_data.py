# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The examples of several tasks, as a run consumes and is measured by them."""

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from gpt_jax.data import pipeline
from gpt_jax.data.taken import Taken, TakenAt
from gpt_jax.data.task_order import TaskOrder
from gpt_jax.finetuning.task_data import Split, TaskEvaluation
from gpt_jax.training.parts import Parts

# What judges a run: the mean of each task's first metric.
AVERAGE = 'eval/validation/average'


class TasksData:
  """Batches of one task each; `task_order` says of which."""

  def __init__(
    self, splits: Mapping[str, Split], order: TaskOrder, batch_size: int
  ):
    """Makes the data of a run.

    Args:
      splits: of each task, what is trained on.
      order: of the steps.
      batch_size: rows of a batch.
    """
    self._splits, self._order = splits, order
    self._batch_size = batch_size
    # The last batch of a task's pass may have rows that do not count.
    self.rows_per_epoch = order.steps_per_epoch * batch_size

  def row_numbers(self, taken: Taken) -> list[int]:
    """Which examples of its task are the rows of a step, those that count."""
    return self._order.examples(self._order.step(self._number(taken)))

  def epochs(self, taken: Taken) -> dict[str, float]:
    """Passes before some rows of the run, over all tasks and over each."""
    return self._order.epochs(self._number(taken))

  def batch(self, number: int) -> pipeline.Batch:
    """All rows of a step, from 0; those that fill it up have weight 0."""
    step = self._order.step(number)
    found = self._order.examples(step)
    missing = self._batch_size - len(found)
    batch = self._splits[step.task].batch(
      np.array([*found, *[found[-1]] * missing])
    )
    counts = np.arange(self._batch_size) < len(found)
    return {**batch, 'weights': np.where(counts, batch['weights'], 0)}

  def batches(
    self, parts: Parts, start: int, rows: TakenAt
  ) -> Generator[pipeline.Batch]:
    """See `training_run.Data`."""

    def batch(step: int) -> pipeline.Batch:
      taken = rows(step)
      own = parts.host_rows(taken.count)
      whole = self.batch(self._number(taken))
      return {name: x[own] for name, x in whole.items()}

    stop = parts.config.schedule.num_steps
    return pipeline.prefetch(batch, start, stop)

  def _number(self, taken: Taken) -> int:
    """Of the step; all have as many rows."""
    return taken.offset // self._batch_size


class TasksEvaluation:
  """The dev splits of all tasks, measured whenever it is called."""

  def __init__(self, parts: Parts, *, splits: Mapping[str, Split]):
    """Compiles what the outputs of each task need."""
    self.of = {
      name: TaskEvaluation(parts, split=split, task=name)
      for name, split in splits.items()
    }
    self._judges = {n: split.task.metrics[0] for n, split in splits.items()}

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Measures as `eval/TASK/...`, and `AVERAGE`; see `training_run`."""
    values = {}
    for name, one in self.of.items():
      found = one.measured(params, stop)
      if found is None:
        return None
      values |= {f'eval/{name}/{key}': x for key, x in found.items()}
    judged = [values[f'eval/{n}/{key}'] for n, key in self._judges.items()]
    return {**values, AVERAGE: float(np.mean(judged))}

  def summary(self, values: dict[str, float]) -> str:
    """A line for people on each task, after one on all."""
    lines = [f'average {values[AVERAGE]:.4f} of {len(self.of)} tasks']
    lines += [f'{n}: {x.summary(values, n)}' for n, x in self.of.items()]
    return '\n  '.join(lines)
