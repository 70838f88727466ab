# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task's predictions as TSV: a line an example, in the order of the table."""

import os
from typing import Any

from gpt_jax.finetuning.tags import named
from gpt_jax.finetuning.task_data import (
  Outputs,
  Split,
  TaskEvaluation,
  probabilities,
)
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.tasks.task import Task
from gpt_jax.training.metrics import write_atomically
from gpt_jax.training.training_run import TrainingRun

# What the metrics of all splits are written to at the end of a run.
RESULT = 'result.json'


def measured(
  training: TrainingRun,
  state: TrainState,
  evaluation: TaskEvaluation,
  train: Split,
  splits: dict[str, Split],
  folder: str = '',
) -> dict[str, Any]:
  """Writes the predictions for the splits of a task; gives what it measured.

  Args:
    training: the run, in whose `predictions/FOLDER` they are written.
    state: predicts.
    evaluation: of the task.
    train: what was trained on.
    splits: of the same task, by the names of their files.
    folder: see `training`.

  Returns:
    The names of the task's `metrics`, and for each split its number of
    `examples`, how many were `cut`, and what was measured.
  """
  found: dict[str, Any] = {
    'train': {'examples': train.num_examples, 'cut': train.rows.cut},
    'metrics': [*train.task.metrics],
  }
  for name, split in splits.items():
    outputs = evaluation.outputs(state.eval_params, split)
    assert outputs is not None  # nothing stopped it
    found[name] = {'examples': split.num_examples, 'cut': split.rows.cut}
    found[name] |= outputs.metrics
    path = os.path.join(training.workdir, 'predictions', folder, f'{name}.tsv')
    if training.active:
      write(path, split, outputs)
      log.info('wrote %s', path)
  return found


def write(path: str, split: Split, found: Outputs) -> None:
  """Writes `index`, `prediction`, the label where it is known, and figures.

  Classes are written by their names, with the probability of each; scores as
  they are, spans as their text, tags one after the other. Of targets: whether
  the most likely tokens are all right, and the loss of a token.
  """
  task, rows = split.task, split.rows
  columns: dict[str, list] = {'index': [*range(split.num_examples)]}
  if task.kind == 'target':
    columns['exact_match'] = found.predictions.tolist()
    per_token = found.raw[:, 0] / found.raw[:, 1]
    columns['loss'] = [f'{x:.6g}' for x in per_token]
  elif task.kind in ('spans', 'tags'):
    columns |= _texts(split, found.predictions)
  elif task.kind == 'regression':
    columns['prediction'] = [f'{x:.6g}' for x in found.predictions]
    if split.known:
      columns['label'] = [f'{x:.6g}' for x in rows.labels]
  else:
    names = _names(task, found.raw.shape[1])
    columns['prediction'] = [names[i] for i in found.predictions]
    if split.known:
      columns['label'] = [names[i] for i in rows.labels]
    for name, column in zip(names, probabilities(found.raw).T, strict=True):
      columns[f'p({name})'] = [f'{x:.6g}' for x in column]
  lines = [[*columns], *zip(*columns.values(), strict=True)]
  text = ''.join('\t'.join(map(_cell, line)) + '\n' for line in lines)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, text)


def _cell(value: Any) -> str:
  """White space of a text or a name would part lines or columns."""
  return ' '.join(str(value).split())


def _texts(split: Split, predictions: Any) -> dict[str, list]:
  """Spans, and the first answer accepted; or the tags of all words."""
  if split.task.kind == 'tags':
    said = [' '.join(tags) for tags in predictions]
    known = [e.label for e in split.examples if split.known]
    labels = [' '.join(named(split.task, numbers)) for numbers in known]
  else:
    said = [*predictions]
    labels = [e.label.texts[0] for e in split.examples if split.known]
  return {'prediction': said, **({'label': labels} if split.known else {})}


def _names(task: Task, count: int) -> list[str]:
  return [*task.labels] or [str(i) for i in range(count)]
