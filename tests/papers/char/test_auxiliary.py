# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T64's auxiliary losses against NumPy, and when they end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.training.parts import init_params
from gpt_jax.papers.char.auxiliary import Auxiliary, is_active
from tests.support import tiny

B, L, V, N = 3, 7, tiny.V, 3
MODEL = tiny.model(num_layers=N, block='post', output='untied', position='learned_by_layer')


def test_layers_end_at_their_share_of_the_run():
  """Layer l of n contributes until l / (2n) of the run (section 3.2)."""
  ends = {0.0: [1, 1, 1, 1], 0.124: [1, 1, 1, 1], 0.125: [0, 1, 1, 1]}
  ends |= {0.26: [0, 0, 1, 1], 0.375: [0, 0, 0, 1], 1.0: [0, 0, 0, 1]}
  for done, expected in ends.items():
    np.testing.assert_array_equal(is_active(jnp.float32(done), 4), expected)


def nll(states, table, targets):
  log_probs = special.log_softmax(states @ table.T, axis=-1)
  return -np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]


@pytest.fixture(scope='module')
def parts():
  objective = Auxiliary(targets=2, weight=0.25).bind(MODEL)
  params = tiny.shapes(objective)
  params = tiny.random_like(params, seed=1)
  batch = tiny.batch(B, L, V)

  @jax.jit
  def run(params, done):
    def total(params):
      given = batch | {'run': {'done': done}}
      loss = objective.loss(params, given, jax.random.key(0))
      return loss.sum, loss

    return jax.grad(total, has_aux=True)(params)

  return objective, params, batch, run


@pytest.mark.slow
def test_losses_of_layers_and_of_the_token_after_the_next(parts):
  objective, params, batch, run = parts

  @jax.jit
  def evaluate(params):
    out, sown = MODEL.apply({'params': params}, batch['inputs'], mutable=['intermediates'])
    found = objective.loss(params, batch, None)
    plain = Causal().bind(MODEL).loss(params, batch, None)
    return out, sown, found.sum, plain.sum

  out, sown, evaluated, plain = evaluate(params)
  states = np.float64(np.stack(layer_outputs(sown['intermediates'])))
  np.testing.assert_allclose(states[-1], out.hidden_BLD, rtol=1e-5, atol=1e-5)
  heads = jax.tree.map(np.float64, params['heads'])
  next_, later = (heads[f'target_{k}']['kernel'] for k in (1, 2))
  assert next_.shape == (N - 1, V, tiny.D) and later.shape == (N, V, tiny.D)
  targets, weights = batch['targets'], np.float64(batch['weights'])
  head = np.float64(params['head']['embedding'])
  # The token after the next is in the row, and both count.
  both = weights[:, :-1] * weights[:, 1:]
  own = np.sum(weights * nll(states[-1], head, targets))
  of_next = [np.sum(weights * nll(states[i], next_[i], targets)) for i in range(N - 1)]
  of_later = [np.sum(both * nll(states[i][:, :-1], later[i], targets[:, 1:])) for i in range(N)]
  # Of 3 layers the first ends at 1/6 and the second at 1/3 of the run.
  for done, first in ((0.0, 0), (0.2, 1), (0.34, 2)):
    gradient, loss = run(params, done)
    added = sum(of_next[first:]) + 0.25 * sum(of_later[first:])
    np.testing.assert_allclose(loss.penalty, added, rtol=1e-4)
    np.testing.assert_allclose(loss.sum, own + added, rtol=1e-4)
    assert loss.weight == weights.sum()
    for i in range(N):
      grads = [gradient['heads']['target_2']['kernel'][i]]
      if i < N - 1:
        grads.append(gradient['heads']['target_1']['kernel'][i])
      assert all(np.any(g) == (i >= first) for g in grads)
    shown = loss.metrics['objective/target_1_loss']
    expected = of_next[-1] if first < N - 1 else 0
    np.testing.assert_allclose(shown.sum, expected, rtol=1e-4)
    assert (shown.weight == 0) == (first == N - 1)
  # It is evaluated by its last layer alone.
  np.testing.assert_allclose(evaluated, own, rtol=1e-4)
  assert evaluated == plain


@pytest.mark.long
@pytest.mark.slow
def test_the_last_position_alone():
  objective = Auxiliary(positions='last', layers='last', targets=1).bind(MODEL)
  params = init_params(objective, jax.random.key(1))
  assert 'heads' not in params
  batch = tiny.batch(B, L, V)
  given = batch | {'run': {'done': jnp.float32(0)}}
  found = objective.loss(params, given, jax.random.key(0))
  last = np.zeros((B, L), np.float32)
  last[:, -1] = batch['weights'][:, -1]
  expected = Causal().bind(MODEL).loss(params, {**batch, 'weights': last}, None)
  np.testing.assert_allclose(found.sum, expected.sum, rtol=1e-5)
  assert found.weight == last.sum() and found.penalty == 0
