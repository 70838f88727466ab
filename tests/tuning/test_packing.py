# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packed rows: who shares one, and that none sees another."""

import itertools

import jax
import numpy as np
import pytest

from gpt_jax.core.nn.row import Row
from gpt_jax.core.objectives import choices
from gpt_jax.tuning.dialogues import LearnedTokens
from gpt_jax.tuning.packing import TokenRows, best_fit
from tests.support import tiny

SIZES = (7, 3, 5, 5, 2, 11, 1, 3)
ROOM = 11


def sequences():
  rng = np.random.default_rng(0)
  return [
    LearnedTokens(tiny.tokens(size + 1, seed=i), np.array([False, *(rng.random(size) < 0.6)]))
    for i, size in enumerate(SIZES)
  ]


def test_best_fit_by_hand():
  """11 | 7, then 5 and 5, a 3 beside the 7, a 3, and so on."""
  assert best_fit(SIZES, ROOM) == [[5], [0, 1, 6], [2, 3], [7, 4]]


def test_best_fit_against_a_search_of_all_rows():
  rng = np.random.default_rng(1)
  sizes = rng.integers(1, 30, 97).tolist()
  rooms = []
  for size in sorted(sizes, reverse=True):
    fits = [room for room in rooms if room >= size]
    if fits:
      rooms.remove(min(fits))
    rooms.append((min(fits) if fits else 29) - size)
  found = best_fit(sizes, 29)
  assert sorted(itertools.chain(*found)) == [*range(97)]
  assert sorted(29 - sum(sizes[i] for i in one) for one in found) == sorted(rooms)


@pytest.mark.parametrize('attention', ['full', 'local(window=4)'])
def test_loss_of_packed_rows_is_that_of_separate_ones(attention):
  """Also the accuracy and the entropy, and with learned positions."""
  model = tiny.model(attention=attention)
  params = tiny.params(model)

  def loss(*, packed):
    rows = TokenRows(sequences(), ROOM, 0, packed=packed)
    call = f'dialogue(length={ROOM}, packed={packed})'
    objective = choices.build(call, model)
    batch = rows.batch(range(len(rows)))
    assert batch['inputs'].shape == (len(rows), ROOM)
    return jax.jit(objective.loss)(params, batch, None)

  one, other = loss(packed=True), loss(packed=False)
  assert one.weight == other.weight == sum(x.learned.sum() for x in sequences())
  np.testing.assert_allclose(one.sum, other.sum, rtol=1e-5)
  assert one.metrics is not None and other.metrics is not None
  for name, mean in one.metrics.items():
    np.testing.assert_allclose(mean.sum, other.metrics[name].sum, rtol=1e-4)


def test_accuracy_and_entropy_by_numpy():
  model = tiny.model()
  params = tiny.params(model)
  batch = TokenRows(sequences(), ROOM, 0, packed=True).batch([0, 2, 3])
  objective = choices.build(f'dialogue(length={ROOM}, packed=True)', model)
  out = jax.jit(model.apply)(
    {'params': params},
    Row(batch['inputs'], positions_BL=batch['positions'], segments_BL=batch['segments']),
  )
  logits = np.asarray(model.apply({'params': params}, out.hidden_BLD, method='logits'), np.float64)
  logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  weights, targets = batch['weights'], batch['targets']
  nll = -np.take_along_axis(logs, targets[..., None], -1)[..., 0]
  found = jax.jit(objective.loss)(params, batch, None)
  metrics = {n: x.sum / x.weight for n, x in (found.metrics or {}).items()}
  mean = lambda x: (x * weights).sum() / weights.sum()  # noqa: E731
  np.testing.assert_allclose(found.sum / found.weight, mean(nll), rtol=1e-5)
  np.testing.assert_allclose(metrics['entropy'], mean(-(np.exp(logs) * logs).sum(-1)), rtol=1e-5)
  right = logits.argmax(-1) == targets
  np.testing.assert_allclose(metrics['mean_token_accuracy'], mean(right), rtol=1e-6)
