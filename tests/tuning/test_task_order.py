# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of several tasks: MT-DNN's algorithm 1."""

import collections
from itertools import chain

import numpy as np
import pytest

from gpt_jax.plain.order import shuffled
from gpt_jax.tuning.task_order import Alternating, Capped, TaskOrder

SIZES = {'rte': 13, 'mrpc': 22}


def taken(order, start, stop):
  steps = [order.step(i) for i in range(start, stop)]
  return [(step.task, order.examples(step)) for step in steps]


def test_an_epoch_of_glue_has_the_batches_of_each_task_once():
  """Examples of the five tasks of the local files, 32 a batch, by hand."""
  glue = {'cola': 8551, 'sst2': 67_349, 'stsb': 5749, 'rte': 2490, 'mrpc': 3668}
  order = TaskOrder(glue, batch_size=32, seed=3)
  assert order.steps_per_epoch == 268 + 2105 + 180 + 78 + 115 == 2746
  counts = collections.Counter(order.step(2746 + i) for i in range(order.steps_per_epoch))
  assert {*counts.values()} == {1}
  of_task = collections.Counter(step.task for step in counts)
  assert of_task == {'cola': 268, 'sst2': 2105, 'stsb': 180, 'rte': 78,
                     'mrpc': 115}  # fmt: skip


def test_each_example_is_seen_once_in_each_epoch_in_batches_of_one_task():
  order = TaskOrder(SIZES, batch_size=5, seed=3)
  assert order.steps_per_epoch == 3 + 5
  seen = []
  for epoch in range(2):
    steps = taken(order, 8 * epoch, 8 * epoch + 8)
    for task, size in SIZES.items():
      batches = [found for name, found in steps if name == task]
      assert sorted(chain(*batches)) == [*range(size)]
      # As without other tasks.
      start = epoch * size
      assert batches[0] == [shuffled(start + i, size, '3') for i in range(5)]
      # All are full but the last.
      assert [len(b) for b in batches[:-1]] == [5] * (len(batches) - 1)
    seen.append([task for task, _ in steps])
  assert seen[0] != seen[1]
  # A step is known without those before it, and only the seed decides.
  again, other = (TaskOrder(SIZES, batch_size=5, seed=s) for s in (3, 4))
  assert [again.step(i) for i in (12, 3)] == [order.step(i) for i in (12, 3)]
  assert [other.step(i) for i in range(8)] != [order.step(i) for i in range(8)]
  assert order.epochs(16) == {**{f'epochs/{task}': 2.0 for task in SIZES}, 'epochs': 2.0}
  done = seen[0][:4]
  assert order.epochs(4)['epochs/mrpc'] == done.count('mrpc') / 5


def test_a_cap_spreads_a_large_task_over_epochs():
  order = TaskOrder(SIZES, batch_size=5, seed=3, mixing=Capped(10))
  assert order.steps_per_epoch == 2 + 2
  # Three epochs are six batches of mrpc: a pass of its five, and one more.
  steps = [order.step(i) for i in range(12)]
  found = [order.examples(step) for step in steps if step.task == 'mrpc']
  assert [len(x) for x in found] == [5, 5, 5, 5, 2, 5]
  assert sorted(chain(*found[:5])) == [*range(22)]


def test_tasks_take_turns():
  order = TaskOrder(SIZES, batch_size=5, seed=3, mixing=Alternating())
  assert order.steps_per_epoch == 3 + 3  # a pass over rte
  steps = [order.step(i) for i in range(20)]
  assert [step.task for step in steps] == ['rte', 'mrpc'] * 10
  # Each in passes of its own.
  for task, size, batches in (('rte', 13, 3), ('mrpc', 22, 5)):
    found = [order.examples(step) for step in steps if step.task == task]
    for done in range(10 // batches):
      taken = chain(*found[done * batches : (done + 1) * batches])
      assert sorted(taken) == [*range(size)]


def test_large_and_small_tasks_are_mixed():
  """Of 4,000 steps the places of the smaller task's are as chance has them."""
  order = TaskOrder({'a': 3600, 'b': 400}, batch_size=1, seed=0)
  places = [i for i in range(4000) if order.step(i).task == 'b']
  mean, deviation = 4000 / 2, 4000 / np.sqrt(12 * 400)
  assert abs(np.mean(places) - mean) < 4 * deviation
  assert np.mean(np.diff(places) == 1) == pytest.approx(0.1, abs=0.06)
