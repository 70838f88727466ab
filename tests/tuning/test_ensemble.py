# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The mean of several classifiers' probabilities."""

import csv

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.tasks.task import Task
from gpt_jax.tuning import ensemble
from gpt_jax.tuning.data import write_predictions
from gpt_jax.tuning.kinds import TaskSplit, judged
from gpt_jax.tuning.rows import TaskRows

N, NAMES = 23, ('bad', 'fair', 'very good')


def split_of(labels, names=NAMES):
  task = Task('classification', {}, ('a',), labels=names, metrics=('accuracy',))
  inputs, lengths = np.zeros((len(labels), 1, 8)), np.ones((len(labels), 1))
  return TaskSplit(task, TaskRows(inputs, lengths, labels, 0))


def softmax(raw):
  return np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)


def test_probabilities_are_averaged(tmp_path):
  rng = np.random.default_rng(3)
  split = split_of(rng.integers(3, size=N))
  each = rng.normal(size=(3, N, 3)) * 2
  folders = [str(tmp_path / name) for name in 'abc']
  for folder, raw in zip(folders, each, strict=True):
    path = f'{folder}/predictions/dev.tsv'
    write_predictions(path, split, judged(split, raw))
  splits = {'train': split, 'dev': split}
  ensemble.check(folders[1:], splits)
  found = ensemble.average(
    folders[0], folders[1:], splits, {'dev': judged(split, each[0])}, active=True
  )
  expected = np.mean([softmax(raw) for raw in each], axis=0)
  right = np.argmax(expected, axis=1) == split.rows.labels
  assert found['of'] == folders
  assert found['dev']['accuracy'] == np.mean(right)
  nll = -np.log(expected[np.arange(N), split.rows.labels])
  np.testing.assert_allclose(found['dev']['loss'], nll.mean(), rtol=1e-5)
  with open(f'{folders[0]}/predictions/average/dev.tsv', newline='') as file:
    rows = [*csv.DictReader(file, delimiter='\t')]
  written = [[float(row[f'p({name})']) for name in NAMES] for row in rows]
  np.testing.assert_allclose(written, expected, atol=1e-5)

  # Other runs: of another task, or not yet finished.
  for other in (
    split_of(split.rows.labels[1:]),
    split_of(2 - split.rows.labels),
    split_of(split.rows.labels, ('bad', 'fair', 'good')),
  ):
    with pytest.raises(UsageError, match='is of other examples or classes'):
      ensemble.check(folders, {'dev': other})
  with pytest.raises(UsageError, match=r'predictions/test\.tsv; finish'):
    ensemble.check(folders, {'test': split})
