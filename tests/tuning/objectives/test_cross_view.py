# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cross-view training: who learns what from whom, and what a view sees."""

import jax
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.nn.params import flatten
from gpt_jax.core.objectives.choices import OBJECTIVES
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning.objectives import cross_view
from tests.support import tiny

B, L, V, K = 3, 11, 23, 5
LENGTHS = [11, 7, 2]
LSTM = {
  'num_layers': 2,
  'd_model': 34,
  'attention': "lstm(13, 5, directions='both', dropout=0.5), "
  "lstm(17, directions='both', dropout=0.5)",
  'block': 'plain',
  'position': 'none',
  'dropout': 'rates(embedding=0.5)',
}


def build(more='', **changes):
  call = f'cross_view(num_labels={K}, length={L}{more})'
  objective = spec.build('objective.name', call, OBJECTIVES)
  return objective.bind(tiny.model(**{**LSTM, **changes}))


@pytest.fixture(scope='module')
def params():
  objective = build()
  return tiny.random_like(tiny.shapes(objective), seed=1)


@pytest.fixture(scope='module')
def batch():
  """Rows of 11, 7 and 2 words, of which one in three is not scored."""
  rng = np.random.default_rng(0)
  lengths = np.array(LENGTHS, np.int32)[:, None]
  labels = rng.integers(K, size=(B, L), dtype=np.int32)
  unscored = (np.arange(L) >= lengths) | (np.arange(L) % 3 == 1)
  return {
    'inputs': tiny.tokens(B, 1, L),
    'lengths': lengths,
    'second': lengths,
    'labels': np.where(unscored, -100, labels).astype(np.int32),
    'weights': np.array([1, 1, 0], np.float32),  # the last row fills up
  }


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_labels_are_smoothed(params, batch):
  objective = build(', smoothing=0.3')
  outputs = objective.outputs(params, batch).reshape(B, L, K)
  targets = 0.7 * np.eye(K)[np.maximum(batch['labels'], 0)] + 0.3 / K
  each = -(targets * log_softmax(outputs)).sum(-1)
  counts = (batch['labels'] >= 0) * batch['weights'][:, None]
  loss = objective.of('labelled').loss(params, batch, None)
  np.testing.assert_allclose(loss.sum, (each * counts).sum(), rtol=1e-5)
  assert loss.weight == counts.sum()


def test_views_learn_from_the_full_one_without_dropout(params, batch):
  """With no dropout in the views the loss is that of states without any."""
  objective, key = build(', dropout=0.0'), jax.random.key(3)
  target = log_softmax(objective.outputs(params, batch).reshape(B, L, K))
  views = objective.views(params, batch, None)
  assert {*views} == {*cross_view.VIEWS}
  counts = (batch['labels'] >= 0) * batch['weights'][:, None]
  found = objective.of('unlabelled').loss(params, batch, key)
  total = 0
  for name, logits in views.items():
    kl = (np.exp(target) * (target - log_softmax(logits))).sum(-1)
    total += (kl * counts).sum()
    mean = found.metrics[f'objective/{name}_kl']
    np.testing.assert_allclose(mean.sum, (kl * counts).sum(), rtol=1e-4)
  np.testing.assert_allclose(found.sum, total, rtol=1e-4)
  assert found.weight == counts.sum()
  dropped = build().of('unlabelled').loss(params, batch, key)
  assert abs(dropped.sum - found.sum) > 1e-3


@pytest.mark.slow
def test_each_batch_trains_its_own_modules(params, batch):
  objective, key = build(), jax.random.key(3)

  def moved(turn):
    gradient = jax.jit(jax.grad(lambda p: objective.of(turn).loss(p, batch, key).sum))
    return {name for name, x in flatten(gradient(params)).items() if np.any(x != 0)}

  def of(prefix):
    return {name for name in flatten(params) if name.startswith(prefix)}

  below = of('embed') | of('decoder/periods/block_0')
  above = of('decoder/periods/block_1')
  assert below and above
  assert moved('labelled') == below | above | of('parts/full')
  # No gradient into the teacher: neither its module nor its second layer.
  assert moved('unlabelled') == below | of('parts/views')
  assert objective.of('labelled').frozen == ('views',)
  assert objective.of('unlabelled').frozen == ('full',)
  alone = build(', unlabelled=False')
  assert not alone.tasks
  assert {*alone.shapes['parts']} == {'full'}


# Which tokens see token `t`.
SEES = {
  'full': lambda place, t: place >= 0,
  'forward': lambda place, t: place >= t,
  'backward': lambda place, t: place <= t,
  'future': lambda place, t: place > t,
  'past': lambda place, t: place < t,
}


@pytest.mark.parametrize('t', [0, 4, L - 1])
def test_a_view_sees_what_it_may(params, batch, t):
  """No other token changes by a bit; the row of 7 has no last token."""
  objective = build()

  @jax.jit
  def logits(inputs):
    rows = {**batch, 'inputs': inputs}
    full = objective.outputs(params, rows).reshape(B, L, K)
    return {'full': full, **objective.views(params, rows, None)}

  inputs = batch['inputs'].copy()
  inputs[:, :, t] = (inputs[:, :, t] + 1) % V
  before, after = logits(batch['inputs']), logits(inputs)
  for name, sees in SEES.items():
    changed = np.any(before[name] != after[name], axis=-1)
    for row, length in enumerate(LENGTHS[:2]):
      place = np.arange(length)
      expected = sees(place, t) if t < length else np.zeros(length, bool)
      np.testing.assert_array_equal(changed[row, :length], expected, name)


@pytest.mark.parametrize(
  'changes',
  [
    {'attention': "lstm(7, directions='both')"},
    {'attention': "lstm(7, directions='both'), lstm(14)"},
    {'num_layers': 4},
    {'attention': 'bidirectional', 'block': 'pre', 'dropout': 'none'},
  ],
)
def test_other_models_are_refused(changes):
  with pytest.raises(UsageError, match=r'take two .*num_layers=2'):
    build(**changes)
