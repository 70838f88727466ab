# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student and its teacher, against the equation on whole logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from gpt_jax.objectives import choices
from gpt_jax.optim.rounding import ema
from gpt_jax.training.parts import make_init
from gpt_jax.training.step import mean_gradients, train_step
from tests.support import tiny

L, V, D = 11, tiny.V, tiny.D
WEIGHTS = 'temperature=3.0, soft=5.0, hard=2.0, cosine=7.0'
# Of its own model, which the student is not like.
TEACHER = dict(num_layers=3, ffn='relu', d_ff=31, norm='rmsnorm')
MASKED = dict(attention='bidirectional', num_layers=1)


@functools.cache
def of(text, places='real'):
  """An objective, its models and random parameters of both."""
  fields = MASKED if text == 'masked' else dict(num_layers=1)
  types = 'tokens(token_types=2)' if text == 'masked' else 'tokens'
  model = tiny.model(**fields)
  teacher = tiny.model(**{**fields, **TEACHER, 'input': types})
  name = f'distilled({WEIGHTS}, text={text!r}, places={places!r})'
  objective = choices.build(name, model, None, {'teacher': teacher})
  shapes = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
  return objective, model, teacher, tiny.random_like(shapes, seed=1)


def batch_of(text):
  """Eight rows, of which some are short."""
  rng = np.random.default_rng(0)
  ids = rng.integers(0, V, size=(8, L)).astype(np.int32)
  lengths = np.array([L, 7, L, 5, 3, L, 9, 4])[:, None]
  real = np.arange(L) < lengths
  if text == 'causal':
    targets = rng.integers(0, V, size=(8, L)).astype(np.int32)
    weights = real.astype(np.float32)
    return {'inputs': ids, 'targets': targets, 'weights': weights}
  positions = np.tile(np.array([0, 2, 6], np.int32), (8, 1))
  chosen = np.take_along_axis(real, positions, axis=1).astype(np.float32)
  return {
    'inputs': ids,
    'mask': real,
    'token_types': (np.arange(L) > 4).astype(np.int32) * np.ones_like(ids),
    'masked_positions': positions,
    'masked_targets': rng.integers(0, V, size=(8, 3)).astype(np.int32),
    'masked_weights': chosen,
  }


def equation(params, batch, text, places):
  """The loss at the top of `distilled`, of all logits at once."""
  _, model, teacher, _ = of(text, places)
  mask = {'mask_BL': batch['mask']} if text == 'masked' else {}

  def states(of_model, params, **more):
    variables = {'params': params}
    h = of_model.apply(variables, batch['inputs'], **mask, **more).hidden_BLD
    return h, of_model.apply(variables, h, method='logits')

  own = {name: x for name, x in params.items() if name != 'parts'}
  types = {}
  if text == 'masked':
    types = {'token_types_BL': batch['token_types']}
  h_s, z_s = states(model, own)
  h_t, z_t = states(teacher, params['parts']['teacher'], **types)
  log_probs = jax.nn.log_softmax(z_s)
  if text == 'masked':
    real, counted = batch['mask'].astype(jnp.float32), batch['masked_weights']
    at = batch['masked_positions'][..., None]
    log_probs = jnp.take_along_axis(log_probs, at, axis=1)
    targets = batch['masked_targets']
    if places == 'chosen':
      z_s, z_t = (jnp.take_along_axis(z, at, axis=1) for z in (z_s, z_t))
  else:
    real = counted = batch['weights']
    targets = batch['targets']
  nll = -jnp.take_along_axis(log_probs, targets[..., None], axis=2)[..., 0]
  p, q = jax.nn.softmax(z_t / 3.0), jax.nn.softmax(z_s / 3.0)
  kl = jnp.sum(p * (jnp.log(p) - jnp.log(q)), axis=-1)
  soft = counted if places == 'chosen' else real
  norms = [jnp.linalg.norm(h, axis=-1) for h in (h_s, h_t)]
  cosine = 1 - jnp.sum(h_s * h_t, axis=-1) / (norms[0] * norms[1])
  parts = (
    jnp.sum(nll * counted) / counted.sum(),
    9.0 * jnp.sum(kl * soft) / soft.sum(),
    jnp.sum(cosine * real) / real.sum(),
  )
  return 2.0 * parts[0] + 5.0 * parts[1] + 7.0 * parts[2], parts


@pytest.mark.parametrize(
  ('text', 'places'),
  [
    ('masked', 'chosen'),
    pytest.param('masked', 'real', marks=pytest.mark.slow),
    pytest.param('causal', 'real', marks=pytest.mark.slow),
  ],
)
def test_loss_and_gradients_are_the_equations(text, places):
  """Of a batch taken whole, and in parts of other numbers of tokens."""
  objective, _, _, params = of(text, places)
  batch = batch_of(text)

  def wanted(params):
    return equation(params, batch, text, places)

  (loss, parts), expected = jax.jit(jax.value_and_grad(wanted, has_aux=True))(
    params
  )
  del expected['parts']
  for num_micro in (1, 4):
    found, metrics, grads = jax.jit(
      functools.partial(
        mean_gradients, objective=objective, num_micro=num_micro
      )
    )(params, batch, jax.random.key(0))
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, part in zip(('hard', 'soft', 'cosine'), parts, strict=True):
      np.testing.assert_allclose(
        metrics[f'objective/{name}_loss'], part, rtol=2e-5
      )
    assert {*grads} == {*expected}  # none of the teacher
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
      grads,
      expected,
    )


def test_a_step_leaves_the_teacher_as_it_is():
  """And keeps nothing for it: no moments, no average."""
  objective, _, _, params = of('causal')
  optimizer = optax.adamw(1e-2, weight_decay=0.5)
  average = ema(0.9)
  init = make_init(
    objective.replaced(init=lambda _: params), optimizer, average=average
  )
  state = init(jax.random.key(0))
  own = {n: x for n, x in params.items() if n != 'parts'}
  assert {*state.ema} == {*own}
  assert jax.tree.structure(state.opt_state[0].mu) == jax.tree.structure(own)
  new, metrics = jax.jit(
    functools.partial(
      train_step,
      objective=objective,
      optimizer=optimizer,
      seed=0,
      clip_norm=1.0,
      num_micro=2,
      average=average,
    )
  )(state, batch_of('causal'))
  assert 'teacher' not in metrics['grad_norms']
  jax.tree.map(
    np.testing.assert_array_equal, new.params['parts'], params['parts']
  )
  moved = jax.tree.map(
    lambda a, b: bool((a != b).any()),
    {n: new.params[n] for n in own},
    own,
  )
  assert all(jax.tree.leaves(moved))
  # What evaluates has the teacher, too.
  assert {*new.eval_params['parts']} == {'teacher'}
  assert new.eval_params['embed'] is new.ema['embed']


def test_dropout_is_the_students_alone():
  """A teacher with dropout says the same each time."""
  rates = 'rates(residual=0.5)'
  model, teacher = (
    tiny.model(num_layers=1),
    tiny.model(num_layers=1, dropout=rates),
  )
  name = f"distilled({WEIGHTS}, text='causal')"
  objective = choices.build(name, model, None, {'teacher': teacher})
  shapes = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
  params = tiny.random_like(shapes, seed=1)
  batch = objective.balance(batch_of('causal'))
  loss = jax.jit(objective.loss)
  sums = {float(loss(params, batch, jax.random.key(i)).sum) for i in (0, 1)}
  assert len(sums) == 1
