# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task's examples as training data, evaluation on them, and predictions."""

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import numpy as np

from gpt_jax import sharding
from gpt_jax.files.buckets import write_atomically
from gpt_jax.finetuning.kinds import Outputs, Split, judged
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import row_order
from gpt_jax.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.rows.task_order import TaskOrder
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tasks.task import UNLABELLED
from gpt_jax.tokens.mixture import Shuffle
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training.parts import Parts
from gpt_jax.training.run import Run

# The order of examples in `TaskData`, for config.json: see `tokens.mixture`.
ORDER = 'shuffle(rounds=12)'


class TaskData:
  """Training data of one task, shuffled anew in each epoch."""

  def __init__(self, split: Split, *, seed: int):
    """The seed determines the order."""
    self._split = split
    self.rows_per_epoch = len(split.rows)
    self._order = Shuffle(self.rows_per_epoch, seed)

  def row_numbers(self, taken: BatchRows) -> list[int]:
    """The examples that make up a batch."""
    return [self._order[i] for i in taken.indices]

  def epochs(self, taken: BatchRows) -> dict[str, float]:
    """Passes over the examples before a batch."""
    return {'epochs': taken.index / self.rows_per_epoch}

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Any = None
  ) -> Generator[row_order.Batch]:
    """See `training.run.Data`."""
    del state

    def batch(step: int) -> row_order.Batch:
      taken = rows(step)
      numbers = self.row_numbers(taken)[parts.host_rows(taken.count)]
      return self._split.batch(np.array(numbers))

    stop = parts.config.schedule.num_steps
    return row_order.prefetch(batch, start, stop)


class TasksData:
  """Training data of several tasks; each batch belongs to one of them."""

  def __init__(
    self, splits: Mapping[str, Split], order: TaskOrder, batch_size: int
  ):
    """Sets up the data of a run.

    Args:
      splits: the train split of each task.
      order: gives the task and examples of each step.
      batch_size: rows in a batch.
    """
    self._splits, self._order = splits, order
    self._batch_size = batch_size
    # The last batch of a pass over a task can have rows that do not count.
    self.rows_per_epoch = order.steps_per_epoch * batch_size

  def row_numbers(self, taken: BatchRows) -> list[int]:
    """The examples of a batch, within its task; rows that count only."""
    return self._order.examples(self._order.step(self._number(taken)))

  def epochs(self, taken: BatchRows) -> dict[str, float]:
    """Passes before a batch, over all tasks and over each."""
    return self._order.epochs(self._number(taken))

  def batch(self, number: int) -> row_order.Batch:
    """The batch of step `number`, from 0; padding rows have weight 0."""
    step = self._order.step(number)
    found = self._order.examples(step)
    missing = self._batch_size - len(found)
    batch = self._splits[step.task].batch(
      np.array([*found, *[found[-1]] * missing])
    )
    counts = np.arange(self._batch_size) < len(found)
    return {**batch, 'weights': np.where(counts, batch['weights'], 0)}

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Any = None
  ) -> Generator[row_order.Batch]:
    """See `training.run.Data`."""
    del state

    def batch(step: int) -> row_order.Batch:
      taken = rows(step)
      own = parts.host_rows(taken.count)
      whole = self.batch(self._number(taken))
      return {name: x[own] for name, x in whole.items()}

    stop = parts.config.schedule.num_steps
    return row_order.prefetch(batch, start, stop)

  def _number(self, taken: BatchRows) -> int:
    """The step of a batch; all batches have equally many rows."""
    return taken.offset // self._batch_size


# Selects the best step of a run on several tasks: the mean of each task's first
# metric.
AVERAGE = 'eval/validation/average'


class TaskEvaluation:
  """Evaluates a model on the dev split of each task."""

  def __init__(self, parts: Parts, splits: Mapping[str, Split]):
    """Compiles the evaluation; a single task has the name ''."""
    self._parts, self._splits = parts, splits
    self._steps = {
      name: compiled_lib.compile_outputs(parts, name).call for name in splits
    }

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Returns `eval/TASK/...` and `AVERAGE`; see `training.run.Evaluation`.

    For a single task the names are `eval/validation/...`.
    """
    values, judged = {}, []
    for name, split in self._splits.items():
      found = self.outputs(params, name, split, stop)
      if found is None:
        return None
      values |= {f'{_prefix(name)}/{k}': x for k, x in found.metrics.items()}
      values[f'{_prefix(name)}/examples'] = split.num_examples
      judged.append(values[f'{_prefix(name)}/{split.task.metrics[0]}'])
    if '' not in self._splits:
      values[AVERAGE] = float(np.mean(judged))
    return values

  def summary(self, values: dict[str, float]) -> str:
    """A readable line per task; with several tasks, after one for all."""
    lines = []
    if '' not in self._splits:
      count = len(self._splits)
      lines.append(f'average {values[AVERAGE]:.4f} of {count} tasks')
    for name, split in self._splits.items():
      of = {k: values[f'{_prefix(name)}/{k}'] for k in split.task.metrics}
      shown = ', '.join(f'{metric} {x:.4f}' for metric, x in of.items())
      loss, count = (values[f'{_prefix(name)}/{k}'] for k in _ALWAYS)
      text = f'{shown}, loss {loss:.4f}, over {count:,} examples'
      lines.append(f'{name}: {text}' if name else text)
    return '\n  '.join(lines)

  def outputs(
    self,
    params: Any,
    name: str,
    split: Split,
    stop: Callable[[], bool] = lambda: False,
  ) -> Outputs | None:
    """The model's outputs on any split of a task; None if stopped."""
    rows, count = self._parts.eval_rows, len(split.rows)
    found = []
    for start in range(0, count, rows):
      # The last batch is padded with the last example.
      numbers = np.minimum(np.arange(start, start + rows), count - 1)
      batch = split.batch(numbers[self._parts.host_rows(rows)])
      found.append(self._steps[name](params, self._parts.put(batch, rows)))
      sharding.wait_for_earlier(found)
      if stop():
        return None
    return judged(split, np.concatenate(jax.device_get(found))[:count])


_ALWAYS = ('loss', 'examples')


def _prefix(task: str) -> str:
  return f'eval/{task or "validation"}'


# Class weights in the loss.


# (labels [N], number of classes) -> float32 weights [num_labels].
Build = Callable[[np.ndarray, int], np.ndarray]


def _balanced() -> Build:
  """Weights 1 / frequency, whose mean over the examples is 1."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    seen = np.bincount(labels, minlength=count)
    return (len(labels) / (count * np.maximum(seen, 1))).astype(np.float32)

  return build


def _given(*weights: float) -> Build:
  """A weight for each class, in the order of the task's labels."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    del labels
    if len(weights) != count or min(weights) < 0 or not sum(weights):
      raise UsageError(
        f'finetune.class_weights=weights{weights}: has {len(weights)} weights '
        f'for {count} classes; give {count}, none of them negative'
      )
    return np.array(weights, np.float32)

  return build


CLASS_WEIGHTS = {
  'none': lambda: None,
  'balanced': _balanced,
  'weights': _given,
}


# Predictions as TSV: one line per example, in the order of the table.


# The file with the metrics of all splits, written at the end of a run.
RESULT = 'result.json'


def measured(
  training: Run,
  state: TrainState,
  evaluation: TaskEvaluation,
  name: str,
  splits: Mapping[str, Split],
) -> tuple[dict[str, Any], dict[str, Outputs]]:
  """Writes the predictions on a task's splits, and returns the metrics.

  Args:
    training: the run; predictions are written to its `predictions/NAME`.
    state: has the parameters.
    evaluation: of all tasks.
    name: the task.
    splits: by file name; those that were trained on are 'train' and
      `UNLABELLED`.

  Returns:
    The names of the task's `metrics`, and for each split its number of
    `examples`, how many were `cut`, and its metrics; and the outputs by split.
  """
  each: dict[str, Outputs] = {}
  train = splits['train']
  found: dict[str, Any] = {
    'train': {'examples': train.num_examples, 'cut': train.rows.cut},
    'metrics': [*train.task.metrics],
  }
  for file, split in splits.items():
    if file in ('train', UNLABELLED):
      continue
    outputs = evaluation.outputs(state.eval_params, name, split)
    assert outputs is not None  # never stopped
    each[file] = outputs
    found[file] = {'examples': split.num_examples, 'cut': split.rows.cut}
    found[file] |= outputs.metrics
    path = os.path.join(training.workdir, 'predictions', name, f'{file}.tsv')
    if training.active:
      write_predictions(path, split, outputs)
      log.info('wrote %s', path)
  return found, each


def write_predictions(path: str, split: Split, found: Outputs) -> None:
  """Writes `index`, and the columns of `Kind.columns`."""
  columns: dict[str, list] = {'index': [*range(split.num_examples)]}
  columns |= split.kind.columns(split, found)
  text = ''
  for line in ([*columns], *zip(*columns.values(), strict=True)):
    # White space within a cell would break lines or columns.
    text += '\t'.join(' '.join(str(cell).split()) for cell in line) + '\n'
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, text)
