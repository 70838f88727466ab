# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Smoothed labels against PyTorch's, float64, and their lowest loss."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from configs import base
from gpt_jax import sharding
from gpt_jax.objectives.cross_entropy import penalised_cross_entropy
from tests.support import tiny
from tests.support.golden_io import ROOT

CLOSE = dict(rtol=1e-5, atol=1e-6)


def golden(case):
  """Logits, labels, weights, the loss and its gradient."""
  with np.load(ROOT / 'losses/smoothing.npz') as arrays:
    found = {k: arrays[f'{case}/{k}'] for k in ('in/logits', 'in/labels')}
    outputs = [arrays[f'{case}/out/{k}_f64'] for k in ('loss', 'grad_logits')]
  labels = found['in/labels']
  weights = np.float32(labels != -100)
  return found['in/logits'], np.maximum(labels, 0), weights, *outputs


@pytest.mark.parametrize('chunk', [1 << 25, 11])
@pytest.mark.parametrize('case', ['ce', 'ce_smooth', 'ce_smooth_sum'])
def test_smoothing_is_pytorchs(case, chunk, monkeypatch):
  """Padding is in neither mean; in one chunk of positions, and in many."""
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module, 'CHUNK_LOGITS', chunk)
  logits, labels, weights, loss, gradient = golden(case)
  assert 0 < weights.sum() < weights.size
  smoothing = 0.1 if 'smooth' in case else 0.0
  divisor = 1.0 if case.endswith('sum') else weights.sum()

  def run(logits):
    sums = penalised_cross_entropy(
      *(logits, jnp.eye(logits.shape[-1]), labels, weights),
      *(0.0, 0.0, smoothing),
    )
    return sums.total / divisor, sums.penalty / divisor

  (found, penalty), found_gradient = jax.value_and_grad(run, has_aux=True)(
    jnp.asarray(logits)
  )
  np.testing.assert_allclose(found, loss, **CLOSE)
  np.testing.assert_allclose(found_gradient, gradient, **CLOSE)
  np.testing.assert_allclose(run(jnp.asarray(logits))[0], loss, **CLOSE)
  # What is left without the penalty is the plain cross-entropy.
  plain = golden('ce' if divisor > 1 else 'ce_sum')[3]
  np.testing.assert_allclose(found - penalty, plain, **CLOSE)


# Of 7 tokens, four devices hold two each: the last of them is filled up.
@pytest.mark.parametrize('sizes', [None, (1, 2, 4)])
@pytest.mark.parametrize('z_loss, softcap', [(0.0, 0.0), (0.3, 0.7)])
def test_smoothing_beside_the_others_against_float64(z_loss, softcap, sizes):
  rng = np.random.default_rng(0)
  hidden, table = rng.normal(size=(2, 3, 5)), rng.normal(size=(7, 5))
  hidden, table = np.float32(hidden), np.float32(table)
  targets = rng.integers(7, size=(2, 3), dtype=np.int32)
  weights = np.float32([[0.5, 0, 2], [1, 0.3, 0]])

  def run(hidden, table):
    return penalised_cross_entropy(
      *(hidden, table, targets, weights, z_loss, softcap, 0.2)
    )

  both = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))
  if sizes is None:
    found = jax.device_get(both(hidden, table))
  else:
    rules = sharding.parse_rules(base.get_config().mesh.rules)
    with sharding.use(tiny.make_mesh(*sizes), rules):
      found = jax.device_get(both(hidden, table))
  wide, wide_table = np.float64(hidden), np.float64(table)
  logits, slope = wide @ wide_table.T, 1.0
  if softcap:
    tanh = np.tanh(logits / softcap)
    logits, slope = softcap * tanh, 1 - tanh**2
  log_z = special.logsumexp(logits, axis=-1, keepdims=True)
  labels = 0.8 * np.eye(7)[targets] + 0.2 / 7
  each = (
    -np.sum(labels * (logits - log_z), axis=-1) + z_loss * log_z[..., 0] ** 2
  )
  delta = (1 + 2 * z_loss * log_z) * np.exp(logits - log_z) - labels
  delta *= weights[..., None] * slope
  wanted = delta @ wide_table, np.einsum('blv,bld->vd', delta, wide)
  (total, penalty), gradients = found
  np.testing.assert_allclose(total, np.sum(each * weights), rtol=1e-5)
  plain = (log_z - np.take_along_axis(logits, targets[..., None], -1))[..., 0]
  np.testing.assert_allclose(
    total - penalty, np.sum(plain * weights), rtol=1e-5
  )
  for ours, theirs in zip(gradients, wanted, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'vocab_size, floor', [(10, 0.5003), (8000, 1.2237), (37_000, 1.3769)]
)
def test_the_lowest_loss_of_smoothed_labels(vocab_size, floor):
  """That of the labels themselves, with a gradient of zero."""
  labels = np.full(vocab_size, 0.1 / vocab_size)
  labels[3] += 0.9
  run = functools.partial(
    penalised_cross_entropy,
    targets_BL=np.full((1, 1), 3),
    weights_BL=np.ones((1, 1), np.float32),
    z_loss=0.0,
    smoothing=0.1,
  )
  # One feature of 1, so that the table is the logits.
  (found, _), gradient = jax.jit(
    jax.value_and_grad(
      lambda table: run(jnp.ones((1, 1, 1)), table), has_aux=True
    )
  )(np.float32(np.log(labels))[:, None])
  assert round(float(found), 4) == pytest.approx(floor, abs=1e-4)
  assert np.max(np.abs(gradient)) < 1e-6
