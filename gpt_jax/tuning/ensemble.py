# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The mean of several classifiers' predictions, as ULMFiT's of two directions.

The other classifiers have finished: their probabilities are those of their
predictions/SPLIT.tsv.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning import kinds
from gpt_jax.tuning.data import write_predictions
from gpt_jax.tuning.kinds import ClassificationKind, Outputs, TaskSplit

# The name of its metrics in result.json, and of its folder in predictions/.
NAME = 'average'


def check(folders: Sequence[str], splits: Mapping[str, TaskSplit]) -> None:
  """Refuses runs whose predictions are missing or of other examples."""
  for folder in folders:
    for name, split in splits.items():
      if name != 'train':
        _probabilities(folder, name, split)


def average(
  workdir: str,
  folders: Sequence[str],
  splits: Mapping[str, TaskSplit],
  outputs: Mapping[str, Outputs],
  *,
  active: bool,
) -> dict[str, Any]:
  """Averages the probabilities of a run and of others, and judges the mean.

  Returns:
    `of`, the folders, and the metrics of each split, whose predictions it
    writes to predictions/average/SPLIT.tsv of `workdir`.
  """
  result: dict[str, Any] = {'of': [workdir, *folders]}
  for name, of_run in outputs.items():
    split = splits[name]
    each = [_probabilities(folder, name, split) for folder in folders]
    mean = np.mean([kinds.probabilities(of_run.raw), *each], axis=0)
    judged = kinds.judged(split, np.log(mean))
    result[name] = judged.metrics
    if active:
      path = os.path.join(workdir, 'predictions', NAME, f'{name}.tsv')
      write_predictions(path, split, judged)
      log.info('wrote %s', path)
  return result


def _probabilities(folder: str, name: str, split: TaskSplit) -> np.ndarray:
  """The probabilities that a finished run predicted for a split, [N, K]."""
  path = os.path.join(folder, 'predictions', f'{name}.tsv')
  if not isinstance(split.kind, ClassificationKind):
    raise UsageError(
      f'--average={folder}: averages the probabilities of classes, and '
      f'{split.task.form} predicts none; leave it out'
    )
  try:
    with open(path, encoding='utf-8', newline='') as file:
      lines = [*csv.reader(file, delimiter='\t', quoting=csv.QUOTE_NONE)]
  except OSError as e:
    raise UsageError(
      f'--average={folder}: has no predictions/{name}.tsv; finish that run '
      'first, with the same --predict'
    ) from e
  head, *rows = lines or [[]]
  labels = [*split.task.labels]
  columns = [head.index(f'p({x})') for x in labels if f'p({x})' in head]
  our_labels = [labels[i] for i in split.rows.labels] if split.known else None
  others = [r[head.index('label')] for r in rows] if 'label' in head else None
  if (
    len(columns) != len(labels)
    or len(rows) != split.num_examples
    or (our_labels and others and our_labels != others)
  ):
    raise UsageError(
      f'--average={folder}: its predictions/{name}.tsv is of other examples or '
      'classes; give a run on the same task'
    )
  p = np.array([[float(row[i]) for i in columns] for row in rows])
  return np.maximum(p, 1e-300) / p.sum(axis=1, keepdims=True)
