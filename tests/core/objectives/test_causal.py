# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: what predicts what."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.core.objectives.causal import Causal, make_batch
from gpt_jax.core.rows.rows import cut
from gpt_jax.core.training.step import mean_gradients
from gpt_jax.ejecting import weights
from tests.support import reference, tiny
from tests.support.cases import slow


def test_each_token_predicts_the_next():
  batch = make_batch(cut(np.array([[5, 3, 8, 1], [0, 9, 9, 2]], np.int32)))
  assert {*batch} == {'inputs', 'targets', 'weights'}
  np.testing.assert_array_equal(batch['inputs'], [[5, 3, 8], [0, 9, 9]])
  np.testing.assert_array_equal(batch['targets'], [[3, 8, 1], [9, 9, 2]])
  np.testing.assert_array_equal(batch['weights'], np.ones((2, 3)))
  assert batch['weights'].dtype == np.float32


def test_loss_needs_no_key_and_drops_with_one():
  model = tiny.model(num_layers=1, dropout='rates(residual=0.5)')
  objective = Causal().bind(model)
  params, batch = tiny.params(model), tiny.batch(tiny.B, tiny.L, tiny.V)
  loss = jax.jit(objective.loss)
  plain = loss(params, batch, None)
  one, same, other = (loss(params, batch, jax.random.key(seed)) for seed in (1, 1, 2))
  assert plain.sum != one.sum
  assert one.sum == same.sum
  assert one.sum != other.sum
  assert one.weight == plain.weight == batch['weights'].sum()


@pytest.mark.parametrize('num_micro', [slow(1), 3])
def test_z_loss_trains_but_is_not_reported(num_micro):
  model = tiny.model(num_layers=1)
  params, batch = tiny.params(model), tiny.batch(tiny.B, tiny.L, tiny.V)
  key = jax.random.key(0)
  penalised = Causal(z_loss=0.1).bind(model)
  by_hand = reference.of(PADDED=True, Z_LOSS=0.1).causal_loss_with_z
  (total, loss), slopes = reference.run(
    jax.value_and_grad(by_hand, has_aux=True), weights.to_plain(params), batch
  )

  @jax.jit
  def run(params):
    # Evaluation has no key.
    evaluated, trained = (penalised.loss(params, batch, k) for k in (None, key))
    mean = mean_gradients(params, batch, key, objective=penalised, num_micro=num_micro)
    return mean, trained, evaluated

  (mean, _, grads), trained, evaluated = run(params)
  weight = batch['weights'].sum()
  np.testing.assert_allclose(mean, loss / weight, rtol=1e-5)
  # What is minimised has the penalty.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  jax.tree.map(lambda a, b: close(a, b / weight), weights.to_plain(grads), slopes)
  np.testing.assert_allclose(trained.penalty, total - loss, rtol=1e-5)
  np.testing.assert_allclose(evaluated.sum, loss, rtol=1e-5)
  assert evaluated.penalty == 0
