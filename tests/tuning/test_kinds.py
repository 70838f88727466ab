# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of every kind of task; the mean of several classifiers."""

import csv

import numpy as np
import pytest

from gpt_jax.core.objectives import choices
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks.metrics import METRICS
from gpt_jax.tasks.registry import FORMS
from gpt_jax.tasks.task import Task
from gpt_jax.tuning import ensemble, recipe
from gpt_jax.tuning.data import write_predictions
from gpt_jax.tuning.kinds import KINDS, TaskSplit, judged
from gpt_jax.tuning.objectives.task import OF_TASKS
from gpt_jax.tuning.rows import TaskRows
from tests.support import tiny

LENGTH = 11


def task_of(name):
  form = 'classification' if name == 'regression' else name
  return Task(form, {}, ('a', 'b'), labels=('x', 'y', 'z'), regression=name == 'regression')


def test_every_form_has_a_kind():
  made = {FORMS[name]('a', 'b').kind for name in FORMS}
  made.add(FORMS['classification']('a', 'b', regression=True).kind)
  assert made == {*KINDS} == {*METRICS} - {'texts'}
  assert {*OF_TASKS} < {*KINDS}
  heads = {kind.head for kind in KINDS.values()} - {None, ''}
  assert heads < {*recipe.HEADS}


@pytest.mark.parametrize('name', KINDS)
def test_the_objective_takes_the_batches(name):
  """Its example has the arrays of a batch, of the same types."""
  kind, task, rows = KINDS[name], task_of(name), 5
  assert task.kind == name
  tuned = {'length': LENGTH, 'sequences': 2, 'views': 'none'}
  head = {'auxiliary': 0.0, 'dropout': 0.0, 'features': ''}
  objective = kind.objective(task, tuned, head)
  text = recipe.written(objective)
  assert choices.unbound(text) == objective
  example = objective.bind(tiny.model(context_length=LENGTH)).example
  assert example is not None
  ids = {'target': (1, LENGTH + 1)}.get(name, example['inputs'].shape[1:])
  bounds = {'target': 2}.get(name, ids[0])
  labels = example.get('labels', np.zeros(1, np.int32))
  split = TaskSplit(
    task,
    TaskRows(
      np.zeros((rows, *ids), np.int32),
      np.ones((rows, bounds), np.int32),
      np.zeros((rows, *labels.shape[1:]), labels.dtype),
      0,
    ),
  )
  batch = split.batch(np.array([3, 1]))
  assert batch.keys() == example.keys()
  for array, wanted in example.items():
    assert batch[array].shape == (2, *wanted.shape[1:]), array
    assert batch[array].dtype == wanted.dtype, array


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
