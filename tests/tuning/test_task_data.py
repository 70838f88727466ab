# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Examples as batches, their order, what tells them, and what is judged."""

import csv
import math
from typing import Any

import numpy as np
import pytest

from configs.finetune import base
from gpt_jax.core.rows.batch_rows import BatchRows, even
from gpt_jax.tasks.task import Task
from gpt_jax.tuning import recipe
from gpt_jax.tuning.data import CLASS_WEIGHTS, ShuffledRows, write_predictions
from gpt_jax.tuning.kinds import Outputs, ScoreScale, TaskSplit, judged
from gpt_jax.tuning.rows import TaskRows


def test_scores_are_learned_in_units_of_their_deviation():
  labels = np.array([1.0, 3.0, 5.0, 1.0], np.float32)
  scale = ScoreScale.of(labels)
  assert scale.mean == 2.5
  of = Task('classification', {}, ('',), regression=True)
  of = of._replace(metrics=('pearson',))
  rows = TaskRows(labels, labels, labels, 0)
  split = TaskSplit(of, rows, scale=scale)
  learned = split.batch(np.arange(4))['labels']
  np.testing.assert_allclose(learned.mean(), 0, atol=1e-6)
  np.testing.assert_allclose(learned.std(), 1, rtol=1e-6)
  found = judged(split, learned[:, None])
  np.testing.assert_allclose(found.predictions, labels, rtol=1e-6)
  assert found.metrics['pearson'] == pytest.approx(1)
  assert found.metrics['loss'] == pytest.approx(0, abs=1e-9)
  # A constant explains nothing, and is no error.
  assert judged(split, np.zeros((4, 1))).metrics['pearson'] == 0


def test_batches_of_pairs_count_the_target_alone():
  tokens = np.arange(12).reshape(2, 1, 6).astype(np.int32)
  bounds = np.array([[2, 5], [1, 6]], np.int32)
  rows = TaskRows(tokens, bounds, np.zeros(2, np.int32), 0)
  batch = TaskSplit(Task('target', {}, ('', '')), rows).batch(np.array([1, 0]))
  np.testing.assert_array_equal(batch['inputs'][1], [0, 1, 2, 3, 4])
  np.testing.assert_array_equal(batch['targets'][1], [1, 2, 3, 4, 5])
  np.testing.assert_array_equal(batch['weights'], [[1] * 5, [0, 1, 1, 1, 0]])


def test_names_with_white_space_keep_the_lines_of_predictions(tmp_path):
  names = ('a\tb', 'c\r\nd', 'e, f')
  task = Task('classification', {}, ('',), labels=names)
  labels = np.array([2, 0, 1], np.int32)
  split = TaskSplit(task, TaskRows(np.zeros((3, 1, 2), np.int32), labels, labels, 0))
  raw = np.eye(3, dtype=np.float32)[labels]
  write_predictions(str(tmp_path / 'p.tsv'), split, Outputs(raw, labels, {}))
  with open(tmp_path / 'p.tsv', newline='') as f:
    head, *rows = csv.reader(f, delimiter='\t')
  assert head[:3] == ['index', 'prediction', 'label']
  assert head[3:] == ['p(a b)', 'p(c d)', 'p(e, f)']
  assert [row[1] for row in rows] == ['e, f', 'a b', 'c d']
  assert [row[2] for row in rows] == [row[1] for row in rows]


def task_data(count, seed):
  zeros = np.zeros((count, 1, 2), np.int32)
  rows = TaskRows(zeros, zeros, zeros, 0)
  return ShuffledRows(TaskSplit(Task('classification', {}, ('',)), rows), seed)


def test_the_order_is_a_function_of_the_seed():
  data, other = (task_data(7, seed) for seed in (3, 4))
  order = data.row_numbers(even(21, 5)(0))
  epochs = [order[i : i + 7] for i in (0, 7, 14)]
  assert all(sorted(epoch) == [*range(7)] for epoch in epochs)
  assert len({*map(tuple, epochs)}) == 3
  assert data.row_numbers(BatchRows(5, 4, 5, 5)) == order[5:9]
  assert other.row_numbers(even(21, 5)(0)) != order
  assert data.epochs(even(21, 5)(1)) == {'epochs': 3.0}


def test_the_order_is_well_mixed():
  """Neighbours in the order are as far apart as chance has them.

  Grain's own shuffle leaves a correlation of about 0.09, 23 standard
  deviations of what 65,536 independent rows have.
  """
  order = np.array(task_data(65_536, seed=0).row_numbers(even(65_536, 5)(0)))
  found = np.corrcoef(order[:-1], order[1:])[0, 1]
  assert abs(found) < 5 / math.sqrt(65_536)


def test_balanced_weights_count_the_classes_alike():
  labels = np.array([0, 0, 0, 1], np.int32)
  build = CLASS_WEIGHTS['balanced']()
  np.testing.assert_allclose(build(labels, 2), [4 / 6, 2])
  np.testing.assert_allclose(build(labels, 2)[labels].mean(), 1)


def config(folder, more, labels='abc'):
  path = folder / 't.tsv'
  if not path.exists():
    rows = ''.join(f'text {label}\t{label}\n' for label in labels)
    path.write_text(f'text\tlabel\n{rows}')
  found: Any = base.get_config().unlock()
  found.finetune.task = f"classification('{path}', '{path}', {more})"
  return found


def test_two_classes_have_an_f1(tmp_path):
  task, _ = recipe.read_task(config(tmp_path, "metrics='f1'", 'ab'))
  assert task.metrics == ('f1',)


def test_the_data_are_told_by_texts_and_labels(tmp_path):
  found = []
  for name, old, new in (
    ('same', '', ''),
    ('again', '', ''),
    ('score', '\t2', '\t50'),
    ('text', 'text 1', 'text 3'),
    ('shorter', 'text 2\t2\n', ''),
    ('order', 'text 1\t1\ntext 2\t2\n', 'text 2\t2\ntext 1\t1\n'),
  ):
    (tmp_path / name).mkdir()
    made = config(tmp_path / name, 'regression=True', '12')
    path = tmp_path / name / 't.tsv'
    path.write_text(path.read_text().replace(old, new))
    found.append(recipe.digest(recipe.read_task(made)[1]))
  # Where the table lies says nothing.
  assert found[0] == found[1]
  assert len({*found}) == len(found) - 1
  assert found[0].startswith('2 train, 2 dev, sha256 ')
