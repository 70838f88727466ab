# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Students: of a teacher at hand, of its outputs on disk, of its layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.objectives import choices
from gpt_jax.core.objectives.choices import build
from gpt_jax.core.objectives.cross_entropy import Scores
from gpt_jax.core.optim.rounding import ema
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.parts import make_init
from gpt_jax.core.training.step import mean_gradients, train_step
from gpt_jax.papers.distilbert import distilled, soft_targets
from tests.support import tiny
from tests.support.cases import slow

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
  shapes = tiny.shapes(objective)
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
  mask = {'real_BL': batch['mask']} if text == 'masked' else {}

  def states(of_model, params, **more):
    variables = {'params': params}
    row = Row(batch['inputs'], **mask, **more)
    h = of_model.apply(variables, row).hidden_BLD
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
  ('text', 'places'), [('masked', 'chosen'), slow('masked', 'real'), slow('causal', 'real')]
)
def test_loss_and_gradients_are_the_equations(text, places):
  """Of a batch taken whole, and in parts of other numbers of tokens."""
  objective, _, _, params = of(text, places)
  batch = batch_of(text)

  def wanted(params):
    return equation(params, batch, text, places)

  (loss, parts), expected = jax.jit(jax.value_and_grad(wanted, has_aux=True))(params)
  del expected['parts']
  for num_micro in (1, 4):
    found, metrics, grads = jax.jit(
      functools.partial(mean_gradients, objective=objective, num_micro=num_micro)
    )(params, batch, jax.random.key(0))
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for name, part in zip(('hard', 'soft', 'cosine'), parts, strict=True):
      np.testing.assert_allclose(metrics[f'objective/{name}_loss'], part, rtol=2e-5)
    assert {*grads} == {*expected}  # none of the teacher
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), grads, expected
    )


def test_a_step_leaves_the_teacher_as_it_is():
  """And keeps nothing for it: no moments, no average."""
  objective, _, _, params = of('causal')
  optimizer = optax.adamw(1e-2, weight_decay=0.5)
  average = ema(0.9)
  init = make_init(objective.replaced(init=lambda _: params), optimizer, average=average)
  state = init(jax.random.key(0))
  own = {n: x for n, x in params.items() if n != 'parts'}
  assert {*state.ema} == {*own}
  assert jax.tree.structure(state.opt_state[0].mu) == jax.tree.structure(own)
  new, metrics = jax.jit(
    functools.partial(
      train_step,
      objective=objective,
      optimizer=optimizer,
      schedule=optax.constant_schedule(1e-2),  # the optimizer has it already
      seed=0,
      clip_norm=1.0,
      num_micro=2,
      average=average,
    )
  )(state, batch_of('causal'))
  assert 'teacher' not in metrics['grad_norms']
  jax.tree.map(np.testing.assert_array_equal, new.params['parts'], params['parts'])
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), {n: new.params[n] for n in own}, own)
  assert all(jax.tree.leaves(moved))
  # What evaluates has the teacher, too.
  assert {*new.eval_params['parts']} == {'teacher'}
  assert new.eval_params['embed'] is new.ema['embed']


def test_dropout_is_the_students_alone():
  """A teacher with dropout says the same each time."""
  rates = 'rates(residual=0.5)'
  model, teacher = (tiny.model(num_layers=1), tiny.model(num_layers=1, dropout=rates))
  name = f"distilled({WEIGHTS}, text='causal')"
  objective = choices.build(name, model, None, {'teacher': teacher})
  shapes = tiny.shapes(objective)
  params = tiny.random_like(shapes, seed=1)
  batch = batch_of('causal')
  loss = jax.jit(lambda key: objective.loss(params, batch, key).totals(objective.weights(batch))[0])
  assert loss(jax.random.key(0)) == loss(jax.random.key(1))


WITH_TYPES = 'tokens(token_types=2, norm=True)'


def random_params(model, seed=3):
  return tiny.random_like(parameter_shapes(model), seed=seed)


@pytest.mark.parametrize(('period', 'of_teacher'), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_layers_and_all_outside_are_the_teachers(period, of_teacher):
  """Whatever the number of layers in a period of either."""
  ffns = {1: 'gelu', 2: 'gelu, gelu_tanh'}
  teacher = tiny.model(num_layers=6, ffn=ffns[of_teacher], input=WITH_TYPES)
  model = tiny.model(num_layers=4, ffn=ffns[period], input='tokens(norm=True)')
  layers = (0, 3, 4, 5)
  theirs = random_params(teacher)
  distilled.check_layers(model, teacher, layers)
  own = {**random_params(model, seed=5), 'heads': {'a': np.ones(2)}}
  found = distilled.copied(own, theirs, model, teacher, layers)
  assert found.pop('heads') is own['heads']
  assert jax.tree.map(np.shape, found) == jax.tree.map(lambda x: x.shape, parameter_shapes(model))
  assert 'segments' in theirs and 'segments' not in found
  for name in {*found} - {'decoder'}:
    jax.tree.map(np.testing.assert_array_equal, found[name], theirs[name])

  def layer(params, size, n):
    block = params['decoder']['periods'][f'block_{n % size}']
    return jax.tree.map(lambda x: np.asarray(x[n // size]), block)

  for n, m in enumerate(layers):
    jax.tree.map(
      np.testing.assert_array_equal, layer(found, period, n), layer(theirs, of_teacher, m)
    )


@pytest.mark.parametrize(
  ('layers', 'changes', 'message'),
  [
    ((0, 6), {}, r'layers=\(0, 6\): the teacher has no layer 6; give'),
    ((-1, 3), {}, 'the teacher has no layer -1'),
    ((0, 2, 4), {}, r'are 3, but model\.num_layers=2; name one'),
    ((0, 3), {'d_ff': 31}, r'in/bias is \(2, 31\) in the model and \(2, 29'),
    ((0, 3), {'output': 'untied'}, 'the teacher has no head; make model like'),
    ((0, 3), {'share': 'all'}, r"model\.share='all': layers that"),
  ],
)
def test_what_does_not_fit_is_one_line(layers, changes, message):
  teacher = tiny.model(num_layers=6)
  model = tiny.model(num_layers=2, **changes)
  with pytest.raises(UsageError, match=message):
    distilled.check_layers(model, teacher, layers)


def test_a_run_starts_with_them():
  teacher, model = tiny.model(num_layers=5), tiny.model(num_layers=2)
  name = "distilled(text='causal', layers=(1, 4))"
  objective = build(name, model, None, {'teacher': teacher})
  shapes = tiny.shapes(objective)
  params = tiny.random_like(shapes, seed=1)
  started = objective.first_params(params)
  theirs = params['parts']['teacher']
  kernel = started['decoder']['periods']['block_0']['ffn']['in']['kernel']
  expected = theirs['decoder']['periods']['block_0']['ffn']['in']['kernel']
  np.testing.assert_array_equal(kernel, expected[np.array([1, 4])])
  np.testing.assert_array_equal(started['embed']['embedding'], theirs['embed']['embedding'])
  assert started['parts'] is params['parts']


B, LENGTH, SIZE, T = 2, 7, 5, 3.0


def made(seed):
  """Scores of random states."""
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=(B, LENGTH, SIZE)).astype(np.float32)
  table = rng.normal(size=(V, SIZE)).astype(np.float32)
  return Scores(jnp.asarray(hidden), jnp.asarray(table), 0.0)


def probabilities(scored):
  z = np.einsum('BLD,VD->BLV', *map(np.float64, scored[:2])) / T
  p = np.exp(z)
  return p / p.sum(-1, keepdims=True)


COUNTED = np.array([[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], np.float32)


@pytest.mark.parametrize('k', [4, V])
def test_the_divergence_is_the_equations(k):
  teacher, student = made(0), made(1)
  ids, log_probs = soft_targets.most_probable(teacher, k, T)
  p, q = probabilities(teacher), probabilities(student)
  top = np.argsort(-p, axis=-1)[..., :k]
  np.testing.assert_array_equal(ids, top)
  sides = []
  for x in (p, q):
    kept = np.take_along_axis(x, top, -1)
    sides.append(np.concatenate([kept, 1 - kept.sum(-1, keepdims=True)], -1))
  if k == V:  # nothing is left, but for rounding
    sides = [x[..., :k] for x in sides]
    assert np.all(np.isneginf(log_probs[..., -1]))
  np.testing.assert_allclose(np.exp(log_probs[..., : sides[0].shape[-1]]), sides[0], rtol=1e-5)
  expected = np.sum(COUNTED * np.sum(sides[0] * np.log(sides[0] / sides[1]), axis=-1))

  def divergence(hidden, log_probs):
    moved = student._replace(hidden_BLD=hidden)
    given = ids, log_probs, jnp.asarray(COUNTED), T
    return soft_targets.top_divergence(moved, *given)

  hidden = student.hidden_BLD
  found, gradient = jax.value_and_grad(divergence)(hidden, log_probs)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # d/dz_s of what each token has: of a token in S (q_v - p_v) / T, of another
  # q_v (1 - p_R / q_R) / T.
  delta = q - p
  if k < V:
    ratio = sides[0][..., -1:] / sides[1][..., -1:]
    delta = q * (1 - ratio)
    at_top = np.take_along_axis(q - p, top, -1)
    np.put_along_axis(delta, top, at_top, -1)
  delta *= COUNTED[..., None] / T
  wanted = np.einsum('BLV,VD->BLD', delta, np.float64(student.table_VD))
  np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-6)
  # As it is kept on disk.
  kept = divergence(hidden, log_probs.astype(np.float16))
  np.testing.assert_allclose(kept, expected, rtol=2e-3)


@pytest.mark.parametrize('places', [slow('real'), 'chosen'])
def test_all_tokens_are_the_teacher_at_hand(places):
  """The loss of a batch with k = V."""
  fields = dict(attention='bidirectional', num_layers=1)
  model = tiny.model(**fields)
  about = f"soft=5.0, hard=2.0, cosine=0.0, places='{places}'"
  text = "text='masked(static=1)'"
  online = choices.build(
    f'distilled(temperature=3.0, {about}, {text})', model, None, {'teacher': model}
  )
  stored = choices.build(f'distilled(temperature=3.0, {about}, {text}, top_k={V})', model)
  shapes = tiny.shapes(online)
  params = tiny.random_like(shapes, seed=1)
  own = {name: x for name, x in params.items() if name != 'parts'}
  rng = np.random.default_rng(0)
  real = np.arange(LENGTH) < np.array([[LENGTH], [5], [3]])
  at = np.tile(np.array([0, 2, 6], np.int32), (3, 1))
  batch = {
    'inputs': rng.integers(0, V, size=(3, LENGTH)).astype(np.int32),
    'mask': real,
    'masked_positions': at,
    'masked_targets': rng.integers(0, V, size=(3, 3)).astype(np.int32),
    'masked_weights': np.take_along_axis(real, at, 1).astype(np.float32),
  }
  teacher = params['parts']['teacher']
  hidden = model.apply({'params': teacher}, Row(batch['inputs'], real_BL=real)).hidden_BLD
  if places == 'chosen':
    hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)
  z = model.apply({'params': teacher}, hidden, method='logits') / 3.0
  log_probs = jax.nn.log_softmax(z)
  order = np.argsort(-log_probs, axis=-1)
  sorted_BLV = np.take_along_axis(np.asarray(log_probs), order, axis=-1)
  rest = np.full((*sorted_BLV.shape[:2], 1), -np.inf, np.float32)
  said = {
    'teacher_ids': order.astype(np.int32),
    'teacher_log_probs': np.concatenate([sorted_BLV, rest], axis=-1),
  }
  key = jax.random.key(0)

  def of_online(own):
    whole = {**own, 'parts': params['parts']}
    return online.loss(whole, batch, key).totals(online.weights(batch))

  def of_stored(own):
    return stored.loss(own, {**batch, **said}, key).totals(stored.weights(batch))

  results = jax.jit(lambda own: (of_online(own), of_stored(own)))(own)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *results)
  # Held-out text has no outputs, and the loss of the text alone.
  held = stored.loss(own, batch, None)
  (hard,) = held.metrics['objective/hard_loss']
  np.testing.assert_allclose(held.sum, 2.0 * hard.sum, rtol=1e-6)
  assert 'objective/soft_loss' not in held.metrics
