# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A teacher's targets, against what PyTorch computes of the same numbers."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.objectives.cross_entropy import Scores, penalised_cross_entropy
from gpt_jax.papers.distilbert import soft_targets
from tests.support.golden_io import ROOT

CLOSE = dict(rtol=1e-5, atol=1e-5)


def golden(case):
  """Inputs and outputs of a case."""
  with np.load(ROOT / 'losses/distillation.npz') as arrays:
    parts = {'in': {}, 'out': {}}
    for key in arrays.files:
      name, kind, array = key.split('/')
      if name == case:
        parts[kind][array] = jnp.asarray(arrays[key])
  return parts['in'], parts['out']


def scores(logits):
  """What has these logits."""
  return Scores(logits, jnp.eye(logits.shape[-1]), 0.0)


def kl(student, teacher, mask, temperature):
  """T^2 times the mean."""
  weights = mask.astype(jnp.float32)
  total = soft_targets.divergence(scores(student), scores(teacher), weights, temperature)
  return temperature**2 * total / weights.sum()


def cosine(student, teacher, mask):
  weights = mask.astype(jnp.float32)
  total = soft_targets.cosine_distance(student, teacher, weights)
  return total / weights.sum()


@pytest.mark.parametrize('temperature', [1, 2])
@pytest.mark.parametrize('chunk', [1 << 25, 11])
def test_divergence(temperature, chunk, monkeypatch):
  """In one chunk of positions, and in one chunk for each of a row."""
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module, 'CHUNK_LOGITS', chunk)
  given, expected = golden(f'kl_t{temperature}')
  loss, gradient = jax.value_and_grad(kl)(
    given['student'], given['teacher'], given['mask'], float(temperature)
  )
  np.testing.assert_allclose(loss, expected['loss'], **CLOSE)
  np.testing.assert_allclose(gradient, expected['grad_student'], **CLOSE)


def test_cosine():
  given, expected = golden('cosine')
  loss, gradient = jax.value_and_grad(cosine)(
    given['student_hidden'], given['teacher_hidden'], given['mask']
  )
  np.testing.assert_allclose(loss, expected['loss'], **CLOSE)
  np.testing.assert_allclose(gradient, expected['grad_student_hidden'], **CLOSE)
  # A state of zeros has a direction to none.
  zeros = jnp.zeros((1, 1, 3))
  found = jax.grad(cosine)(zeros, zeros + 1, jnp.ones((1, 1)))
  assert np.isfinite(found).all()


def test_all_three_together():
  given, expected = golden('distilbert')
  counted = (given['labels'] >= 0).astype(jnp.float32)

  def loss(student, hidden):
    table = jnp.eye(student.shape[-1])
    targets = jnp.maximum(given['labels'], 0).astype(jnp.int32)
    hard = penalised_cross_entropy(student, table, targets, counted, 0.0)
    return (
      5.0 * kl(student, given['teacher'], given['mask'], 2.0)
      + 2.0 * hard.total / counted.sum()
      + cosine(hidden, given['teacher_hidden'], given['mask'])
    )

  found, gradients = jax.value_and_grad(loss, argnums=(0, 1))(
    given['student'], given['student_hidden']
  )
  np.testing.assert_allclose(found, expected['loss'], **CLOSE)
  names = 'student', 'student_hidden'
  for name, gradient in zip(names, gradients, strict=True):
    np.testing.assert_allclose(gradient, expected[f'grad_{name}'], **CLOSE)


def test_a_softcap_bounds_the_logits_of_its_own_model():
  rng = np.random.default_rng(0)
  s, t = (jnp.asarray(3 * rng.normal(size=(1, 5, 7)), 'float32') for _ in 'st')
  weights = jnp.ones((1, 5))
  table = jnp.eye(7)
  found = soft_targets.divergence(Scores(s, table, 2.0), Scores(t, table, 0.0), weights, 1.5)
  expected = soft_targets.divergence(scores(2 * jnp.tanh(s / 2)), scores(t), weights, 1.5)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
