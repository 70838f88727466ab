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
  plain, penalised = Causal().bind(model), Causal(z_loss=0.1).bind(model)

  def mean(objective):
    run = functools.partial(mean_gradients, objective=objective, num_micro=num_micro)
    return jax.jit(run)(params, batch, key)

  by_hand = reference.of(PADDED=True, Z_LOSS=0.1).causal_loss_with_z
  (total, loss), slopes = reference.run(
    jax.value_and_grad(by_hand, has_aux=True), weights.to_plain(params), batch
  )
  weight = batch['weights'].sum()
  (unpenalised, _, _), (same, _, grads) = mean(plain), mean(penalised)
  np.testing.assert_allclose([same, unpenalised], loss / weight, rtol=1e-5)
  # What is minimised has the penalty.
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b / weight, rtol=1e-4, atol=1e-5),
    weights.to_plain(grads),
    slopes,
  )
  found, evaluated, other = jax.jit(
    # Evaluation has no key.
    lambda p: (
      penalised.loss(p, batch, key),
      penalised.loss(p, batch, None),
      plain.loss(p, batch, None),
    )
  )(params)
  np.testing.assert_allclose(found.penalty, total - loss, rtol=1e-5)
  assert evaluated.sum == other.sum
  assert evaluated.penalty == 0
