# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows as the data of a run, evaluation on them, and predictions."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.objectives.loss import Mean
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import row_order
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Shuffle
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import report
from gpt_jax.core.training.held_out import exponential
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.run import Run
from gpt_jax.tasks.task import UNLABELLED
from gpt_jax.tuning.kinds import Outputs, TaskSplit, judged
from gpt_jax.tuning.task_order import TaskOrder

# The order of rows in `ShuffledRows`, for config.json: see `tokens.mixture`.
ORDER = 'shuffle(rounds=12)'
# The metrics of a dev split have this prefix.
DEV = 'eval/validation/'
# Selects the best step of a run on several tasks: the mean of each task's first
# metric.
AVERAGE = f'{DEV}average'

Row = TypeVar('Row')


class BatchMaker(Protocol):
  """The rows of a split, from which batches are made."""

  def __len__(self) -> int:
    """Number of rows."""
    ...

  def batch(self, numbers: Sequence[int]) -> row_order.Batch:
    """The arrays of rows, among them `weights` [rows, ...]."""
    ...


def limited(config: Config, rows: list[Row]) -> list[Row]:
  """`finetune.examples` of the rows of a train split, drawn by the seed."""
  count = config.finetune.examples
  if not count or count >= len(rows):
    return rows
  order = np.random.default_rng(config.seed).permutation(len(rows))
  return [rows[i] for i in order[:count]]


class ShuffledRows:
  """Rows as the data of a run, shuffled anew in each epoch."""

  def __init__(self, split: BatchMaker, seed: int):
    """The seed determines the order."""
    self._split = split
    self.rows_per_epoch = len(split)
    self._order = Shuffle(self.rows_per_epoch, seed)

  def row_numbers(self, rows: BatchRows) -> list[int]:
    """The rows that make up a batch."""
    return [self._order[i] for i in rows.indices]

  def epochs(self, rows: BatchRows) -> dict[str, float]:
    """Passes over the rows before a batch."""
    return {'epochs': rows.index / self.rows_per_epoch}

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Any = None
  ) -> Generator[row_order.Batch]:
    """See `training.run.Data`."""
    del state

    def batch(step: int) -> row_order.Batch:
      taken = rows(step)
      numbers = self.row_numbers(taken)[parts.host_rows(taken.count)]
      return self._split.batch(numbers)

    stop = parts.config.schedule.num_steps
    return row_order.prefetch(batch, start, stop)


class TasksData:
  """Training data of several tasks; each batch belongs to one of them."""

  def __init__(self, splits: Mapping[str, TaskSplit], order: TaskOrder, batch_size: int):
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

  def row_numbers(self, rows: BatchRows) -> list[int]:
    """The examples of a batch, within its task; rows that count only."""
    return self._order.examples(self._order.step(self._number(rows)))

  def epochs(self, rows: BatchRows) -> dict[str, float]:
    """Passes before a batch, over all tasks and over each."""
    return self._order.epochs(self._number(rows))

  def batch(self, number: int) -> row_order.Batch:
    """The batch of step `number`, from 0; padding rows have weight 0."""
    step = self._order.step(number)
    examples = self._order.examples(step)
    missing = self._batch_size - len(examples)
    numbers = [*examples, *[examples[-1]] * missing]
    batch = self._splits[step.task].batch(numbers)
    counts = np.arange(self._batch_size) < len(examples)
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

  def _number(self, rows: BatchRows) -> int:
    """The step of a batch; all batches have equally many rows."""
    return rows.offset // self._batch_size


def eval_batches(parts: Parts, split: BatchMaker) -> Iterator[tuple[np.ndarray, row_order.Batch]]:
  """Batches with each row of a split once; the share of this process.

  Yields:
    Which rows count, bool [rows]: the last batch is filled up with the last
    row; and the arrays.
  """
  rows, count = parts.eval_rows, len(split)
  for start in range(0, count, rows):
    numbers = np.arange(start, start + rows)[parts.host_rows(rows)]
    yield numbers < count, split.batch(np.minimum(numbers, count - 1).tolist())


def outputs(
  parts: Parts,
  step: Callable[[Any, Any], jax.Array],
  params: Any,
  split: BatchMaker,
  stop: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
  """The objective's outputs of all rows, float32 [N, K]; None if stopped.

  Args:
    step: from `compiled.compile_outputs`.
  """
  each = []
  for _, batch in eval_batches(parts, split):
    each.append(step(params, parts.put(batch, parts.eval_rows)))
    sharding.wait_for_earlier(each)
    if stop():
      return None
  return np.concatenate(jax.device_get(each))[: len(split)]


class MeansEvaluation:
  """The loss and the objective's metrics, as means over a dev split."""

  def __init__(self, parts: Parts, split: BatchMaker, shown: Sequence[str]):
    """Compiles the evaluation; `shown` are metrics for people."""
    self._parts, self._split, self._shown = parts, split, shown
    self._step = compiled_lib.compile_eval_step(parts).call

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """See `training.run.Evaluation`; each row counts once."""
    sums = []
    for counts, batch in eval_batches(self._parts, self._split):
      batch['weights'][~counts] = 0
      means = self._step(params, self._parts.put(batch, self._parts.eval_rows))
      sums.append(means | {'loss': means['loss'][0]})
      sharding.wait_for_earlier(sums)
      if stop():
        return None
    # In float64, so that order and number of the batches do not matter.
    means: Any = jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *jax.device_get(sums))
    values = {
      name: float(mean.sum / mean.weight)
      for name, mean in means.items()
      if isinstance(mean, Mean) and mean.weight
    }
    if 'perplexity' in self._shown:
      values |= exponential('perplexity', values['loss'])
      values['num_tokens'] = int(means['loss'].weight)
    return {f'{DEV}{name}': value for name, value in values.items()}

  def summary(self, values: dict[str, float]) -> str:
    """A line for people."""
    dev = {name.removeprefix(DEV): x for name, x in values.items()}
    return f'dev {report.named(dev, self._shown, decimals=4)}'


class TaskEvaluation:
  """Evaluates a model on the dev split of each task."""

  def __init__(self, parts: Parts, splits: Mapping[str, TaskSplit]):
    """Compiles the evaluation; a single task has the name ''."""
    self._parts, self._splits = parts, splits
    self._steps = {name: compiled_lib.compile_outputs(parts, name).call for name in splits}

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Returns `eval/TASK/...` and `AVERAGE`; see `training.run.Evaluation`.

    For a single task the names are `eval/validation/...`.
    """
    values, judged = {}, []
    for name, split in self._splits.items():
      task_outputs = self.outputs(params, name, split, stop)
      if task_outputs is None:
        return None
      values |= {f'{_prefix(name)}/{k}': x for k, x in task_outputs.metrics.items()}
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
    self, params: Any, name: str, split: TaskSplit, stop: Callable[[], bool] = lambda: False
  ) -> Outputs | None:
    """The model's outputs on any split of a task; None if stopped."""
    raw = outputs(self._parts, self._steps[name], params, split, stop)
    return None if raw is None else judged(split, raw)


_ALWAYS = ('loss', 'examples')


def _prefix(task: str) -> str:
  return f'eval/{task or "validation"}'


# Class weights in the loss.


# (labels [N], number of classes) -> float32 weights [num_labels].
Build = Callable[[np.ndarray, int], np.ndarray]


def _balanced() -> Build:
  """Weights 1 / frequency, whose mean over the examples is 1."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    counts = np.bincount(labels, minlength=count)
    return (len(labels) / (count * np.maximum(counts, 1))).astype(np.float32)

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


CLASS_WEIGHTS = {'none': lambda: None, 'balanced': _balanced, 'weights': _given}


# Predictions as TSV: one line per example, in the order of the table.


def measured(
  training: Run,
  state: TrainState,
  evaluation: TaskEvaluation,
  name: str,
  splits: Mapping[str, TaskSplit],
) -> tuple[dict[str, Any], dict[str, Outputs]]:
  """Writes the predictions on a task's splits, and returns the metrics.

  Splits that were trained on, 'train' and `UNLABELLED`, are not predicted.

  Returns:
    The names of the task's `metrics`, and for each split its number of
    `examples`, how many were `cut`, and its metrics; and the outputs by split.
  """
  each: dict[str, Outputs] = {}
  train = splits['train']
  figures: dict[str, Any] = {
    'train': {'examples': train.num_examples, 'cut': train.rows.cut},
    'metrics': [*train.task.metrics],
  }
  for file, split in splits.items():
    if file in ('train', UNLABELLED):
      continue
    outputs = evaluation.outputs(state.eval_params, name, split)
    assert outputs is not None  # never stopped
    each[file] = outputs
    figures[file] = {'examples': split.num_examples, 'cut': split.rows.cut}
    figures[file] |= outputs.metrics
    path = os.path.join(training.workdir, 'predictions', name, f'{file}.tsv')
    if training.active:
      write_predictions(path, split, outputs)
      log.info('wrote %s', path)
  return figures, each


def write_predictions(path: str, split: TaskSplit, found: Outputs) -> None:
  """Writes `index`, and the columns of `TaskKind.columns`."""
  columns: dict[str, list] = {'index': [*range(split.num_examples)]}
  columns |= split.kind.columns(split, found)
  text = ''
  for line in ([*columns], *zip(*columns.values(), strict=True)):
    # White space within a cell would break lines or columns.
    text += '\t'.join(' '.join(str(cell).split()) for cell in line) + '\n'
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, text)
