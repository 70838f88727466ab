# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of every kind of task, by the table of kinds."""

import numpy as np
import pytest

from gpt_jax.core.objectives import choices
from gpt_jax.tasks.metrics import METRICS
from gpt_jax.tasks.registry import FORMS
from gpt_jax.tasks.task import Task
from gpt_jax.tuning import recipe
from gpt_jax.tuning.kinds import KINDS, TaskSplit
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
