# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student of outputs on disk, against NumPy and against a teacher at hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.objectives import choices, soft_targets
from gpt_jax.objectives.forward import Scores
from tests.support import tiny

B, L, V, D, T = 2, 7, 23, 5, 3.0


def made(seed):
  """Scores of random states."""
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=(B, L, D)).astype(np.float32)
  table = rng.normal(size=(V, D)).astype(np.float32)
  return Scores(jnp.asarray(hidden), jnp.asarray(table), 0.0)


def probabilities(scored):
  z = np.einsum('BLD,VD->BLV', *map(np.float64, scored[:2])) / T
  p = np.exp(z)
  return p / p.sum(-1, keepdims=True)


WEIGHTS = np.array([[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], np.float32)


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
  np.testing.assert_allclose(
    np.exp(log_probs[..., : sides[0].shape[-1]]), sides[0], rtol=1e-5
  )
  expected = np.sum(
    WEIGHTS * np.sum(sides[0] * np.log(sides[0] / sides[1]), axis=-1)
  )

  def divergence(hidden, log_probs):
    moved = student._replace(hidden_BLD=hidden)
    given = ids, log_probs, jnp.asarray(WEIGHTS), T
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
  delta *= WEIGHTS[..., None] / T
  wanted = np.einsum('BLV,VD->BLD', delta, np.float64(student.table_VD))
  np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-6)
  # As it is kept on disk.
  kept = divergence(hidden, log_probs.astype(np.float16))
  np.testing.assert_allclose(kept, expected, rtol=2e-3)


@pytest.mark.parametrize(
  'places', [pytest.param('real', marks=pytest.mark.slow), 'chosen']
)
def test_all_tokens_are_the_teacher_at_hand(places):
  """The loss of a batch with k = V."""
  fields = dict(attention='bidirectional', num_layers=1)
  model = tiny.model(**fields)
  about = f"soft=5.0, hard=2.0, cosine=0.0, places='{places}'"
  text = "text='masked(static=1)'"
  online = choices.build(
    f'distilled(temperature=3.0, {about}, {text})',
    *(model, None, {'teacher': model}),
  )
  stored = choices.build(
    f'distilled(temperature=3.0, {about}, {text}, top_k={V})', model
  )
  shapes = nn.meta.unbox(jax.eval_shape(online.init, jax.random.key(0)))
  params = tiny.random_like(shapes, seed=1)
  own = {name: x for name, x in params.items() if name != 'parts'}
  rng = np.random.default_rng(0)
  real = np.arange(L) < np.array([[L], [5], [3]])
  at = np.tile(np.array([0, 2, 6], np.int32), (3, 1))
  batch = {
    'inputs': rng.integers(0, V, size=(3, L)).astype(np.int32),
    'mask': real,
    'masked_positions': at,
    'masked_targets': rng.integers(0, V, size=(3, 3)).astype(np.int32),
    'masked_weights': np.take_along_axis(real, at, 1).astype(np.float32),
  }
  teacher = params['parts']['teacher']
  hidden = model.apply(
    {'params': teacher}, batch['inputs'], mask_BL=real
  ).hidden_BLD
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
    found = online.loss(whole, online.balance(batch), key)
    return found.sum, found.metrics['objective/soft_loss']

  def of_stored(own):
    found = stored.loss(own, stored.balance({**batch, **said}), key)
    return found.sum, found.metrics['objective/soft_loss']

  results = jax.jit(lambda own: (of_online(own), of_stored(own)))(own)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *results
  )
  # Held-out text has no outputs, and the loss of the text alone.
  held = stored.loss(own, batch, None)
  (hard,) = held.metrics['objective/hard_loss']
  np.testing.assert_allclose(held.sum, 2.0 * hard.sum, rtol=1e-6)
  assert 'objective/soft_loss' not in held.metrics
