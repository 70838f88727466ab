# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Examples as batches, their order, and what is judged."""

import csv
import math

import numpy as np
import pytest

from gpt_jax.finetuning.data import TaskData, write_predictions
from gpt_jax.finetuning.kinds import Outputs, Scale, Split, judged
from gpt_jax.finetuning.rows import Rows
from gpt_jax.rows.batch_rows import BatchRows, even
from gpt_jax.tasks.task import Task


def test_scores_are_learned_in_units_of_their_deviation():
  labels = np.array([1.0, 3.0, 5.0, 1.0], np.float32)
  scale = Scale.of(labels)
  assert scale.mean == 2.5
  of = Task('classification', {}, ('',), regression=True)
  of = of._replace(metrics=('pearson',))
  rows = Rows(labels, labels, labels, 0)
  split = Split(of, rows, scale=scale)
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
  rows = Rows(tokens, bounds, np.zeros(2, np.int32), 0)
  batch = Split(Task('target', {}, ('', '')), rows).batch(np.array([1, 0]))
  np.testing.assert_array_equal(batch['inputs'][1], [0, 1, 2, 3, 4])
  np.testing.assert_array_equal(batch['targets'][1], [1, 2, 3, 4, 5])
  np.testing.assert_array_equal(batch['weights'], [[1] * 5, [0, 1, 1, 1, 0]])


def test_names_with_white_space_keep_the_lines_of_predictions(tmp_path):
  names = ('a\tb', 'c\r\nd', 'e, f')
  task = Task('classification', {}, ('',), labels=names)
  labels = np.array([2, 0, 1], np.int32)
  split = Split(task, Rows(np.zeros((3, 1, 2), np.int32), labels, labels, 0))
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
  rows = Rows(zeros, zeros, zeros, 0)
  return TaskData(Split(Task('classification', {}, ('',)), rows), seed=seed)


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
