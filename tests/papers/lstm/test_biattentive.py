# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The biattentive network equals its equations, and reads no padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.papers.lstm import biattentive
from gpt_jax.papers.lstm.biattentive import Biattentive
from gpt_jax.papers.lstm.lstm import Clips, Direction, Recurrence
from tests.support import tiny

B, L, M, D, K = 3, 7, 5, 11, 2
INITS = ModelChoices.of(tiny.model(init_weights='uniform')).init_weights


@pytest.fixture(scope='module')
def made():
  rng = np.random.default_rng(3)
  x_BLD, y_BMD = (rng.normal(size=(B, n, D)).astype('f') for n in (L, M))
  lengths = np.array([7, 4, 1]), np.array([2, 5, 3])
  real = [np.arange(n) < x[:, None] for n, x in zip((L, M), lengths, strict=True)]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(biattentive, 'SIZE', 6)
    network = Biattentive(K, INITS, 0.0)
    args = x_BLD, y_BMD, *real
    shapes = jax.eval_shape(network.init, jax.random.key(0), *args)['params']
    params = tiny.random_like(nn.meta.unbox(shapes), seed=5)
    apply = jax.jit(network.apply)
    out = apply({'params': params}, *args)
    x_BLD[~real[0]], y_BMD[~real[1]] = 97, -97
    again = apply({'params': params}, x_BLD, y_BMD, *real)
  return params, args, np.asarray(out), np.asarray(again)


def test_padding_changes_nothing(made):
  _, _, out, again = made
  np.testing.assert_allclose(again, out, atol=1e-5)


def test_equals_the_equations(made):
  """Row by row, of its real tokens alone."""
  params, (x_BLD, y_BMD, real_x, real_y), out, _ = made

  def dense(name, x):
    return x @ params[name]['kernel'] + params[name]['bias']

  def both(name, x_LD):
    settings, found = Recurrence(3, 0, 1, Clips(), 0.0), []
    for to, reverse in (('forward', False), ('backward', True)):
      direction = Direction(settings, reverse, INITS, jnp.float32)
      own, context = params[f'{name}_{to}'], Context(visibility=Visibility())
      found.append(direction.apply({'params': own}, x_LD[None], context, None)[0])
    return np.concatenate([np.asarray(x[0]) for x in found], axis=-1)

  def softmax(x, axis):
    exp = np.exp(x - x.max(axis=axis, keepdims=True))
    return exp / exp.sum(axis=axis, keepdims=True)

  def pooled(name, one, other, scores):
    seen = softmax(scores, 1) @ other
    states = both(f'integrate_{name}', np.concatenate([one, one - seen, one * seen], -1))
    share = softmax(dense(f'pool_{name}', states), 0)
    return [states.max(0), states.mean(0), states.min(0), (share * states).sum(0)]

  for b in range(B):
    x, y = (
      both('encoder', np.maximum(dense('narrow', of[b][real[b]]), 0))
      for of, real in ((x_BLD, real_x), (y_BMD, real_y))
    )
    both_D = np.concatenate([*pooled('first', x, y, x @ y.T), *pooled('second', y, x, y @ x.T)])
    hidden = dense('maxout', both_D).reshape(6, 4).max(-1)
    np.testing.assert_allclose(out[b], dense('classifier', hidden), atol=1e-4)
