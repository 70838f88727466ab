# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several tasks with one model: each as it would be alone."""

import jax
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.objectives.choices import OBJECTIVES
from gpt_jax.objectives.task import of_task
from gpt_jax.training import parts as state_lib
from tests.support import tiny

MODEL = tiny.model(attention='bidirectional', num_layers=1, loop='unroll')
CALLS = {
  'stsb': 'regression(length=5, auxiliary=0.0, read="first")',
  'race': 'choice(answers=2, length=5, auxiliary=0.0, read="first")',
}


def build(name):
  return spec.build('objective.name', name, OBJECTIVES).bind(MODEL)


@pytest.fixture(scope='module')
def several():
  each = ', '.join(f'{name}:{call!r}' for name, call in CALLS.items())
  objective = build(f'tasks({each})')
  shapes = jax.eval_shape(
    lambda key: state_lib.init_params(objective, key), jax.random.key(0)
  )
  return objective, tiny.random_like(shapes, seed=1)


def batch(name):
  """Six sequences, so that both tasks have the same arrays within."""
  rng = np.random.default_rng(0)
  rows, C = (6, 1) if name == 'stsb' else (3, 2)
  labels = rng.normal(size=6) if name == 'stsb' else rng.integers(2, size=3)
  return {
    'inputs': tiny.tokens(rows, C, 5),
    'lengths': rng.integers(3, 6, size=(rows, C)).astype(np.int32),
    'second': np.full((rows, C), 2, np.int32),
    'labels': labels.astype(np.float32 if name == 'stsb' else np.int32),
    'weights': np.float32([1] * (rows - 1) + [0]),
  }


def test_the_pooler_is_shared_and_each_task_has_a_head(several):
  objective, params = several
  assert {*params['heads']} == {'pooler'}
  assert {n: {*x} for n, x in params['parts'].items()} == {
    name: {'classifier'} for name in CALLS
  }
  assert objective.of('stsb').frozen == ('race',)
  assert objective.of('race').frozen == ('stsb',)
  assert objective.of('') is objective
  with pytest.raises(AssertionError, match='a batch is of one task'):
    objective.loss(params, {}, None)


def test_a_loss_is_that_of_the_task_alone_by_the_papers_equations(several):
  objective, params = several
  for name, call in CALLS.items():
    one, alone = objective.of(name), build(call)
    of_alone = of_task(params, name)
    rows = batch(name)
    outputs = np.asarray(one.outputs(params, rows), np.float64)
    expected = alone.outputs(of_alone, rows)
    np.testing.assert_array_equal(outputs, np.float64(expected))
    loss = one.loss(params, rows, None)
    assert loss.weight == len(outputs) - 1  # the last row fills up
    if name == 'stsb':  # equation 7
      losses = (rows['labels'] - outputs[:, 0]) ** 2
    else:  # equation 8: of candidates, not of classes
      assert outputs.shape == (3, 2)
      scores = np.exp(outputs)
      right = scores[np.arange(3), rows['labels']]
      losses = -np.log(right / scores.sum(axis=1))
    np.testing.assert_allclose(loss.sum, losses[:-1].sum(), rtol=1e-5)


def test_heads_of_one_shape_start_apart():
  """The first as if it were alone."""

  def init(key):
    drawn = jax.random.normal(key, (2,))
    return {'embed': drawn, 'heads': {'pooler': drawn, 'classifier': drawn}}

  of_each = build(CALLS['stsb']).replaced(init=init)
  key = jax.random.key(0)
  both = build(f'tasks(a:{CALLS["stsb"]!r})')
  found = both.replaced(alone={'a': of_each, 'b': of_each}).init(key)
  a, b = (found['parts'][name]['classifier'] for name in 'ab')
  np.testing.assert_array_equal(a, init(key)['embed'])
  np.testing.assert_array_equal(found['heads']['pooler'], found['embed'])
  assert not np.any(a == b)
