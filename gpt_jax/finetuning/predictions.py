# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task's predictions as TSV: a line an example, in the order of the table."""

import os
from typing import Any

from gpt_jax.data.tasks import Task
from gpt_jax.finetuning.tags import named
from gpt_jax.finetuning.task_data import Outputs, Split, probabilities
from gpt_jax.training.metrics import write_atomically

# What the metrics of all splits are written to at the end of a run.
RESULT = 'result.json'


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
  lines = zip(*columns.values(), strict=True)
  text = '\t'.join(columns) + '\n'
  text += ''.join('\t'.join(map(str, line)) + '\n' for line in lines)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, text)


def _texts(split: Split, predictions: Any) -> dict[str, list]:
  """Spans, and the first answer accepted; or the tags of all words."""
  if split.task.kind == 'tags':
    said = [' '.join(tags) for tags in predictions]
    known = [e.label for e in split.examples if split.known]
    labels = [' '.join(named(split.task, numbers)) for numbers in known]
  else:
    # White space of a text would part lines or columns.
    said = [' '.join(text.split()) for text in predictions]
    known = [e.label.texts[0] for e in split.examples if split.known]
    labels = [' '.join(text.split()) for text in known]
  return {'prediction': said, **({'label': labels} if split.known else {})}


def _names(task: Task, count: int) -> list[str]:
  return [*task.labels] or [str(i) for i in range(count)]
