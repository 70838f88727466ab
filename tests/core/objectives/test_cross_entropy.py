# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy, its penalties and smoothed labels, against plain JAX in float64."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from configs import base
from gpt_jax.core import sharding
from gpt_jax.core.objectives.cross_entropy import Scores, penalised_cross_entropy, sampled
from tests.support import reference, tiny
from tests.support.golden_io import ROOT

# Odd sizes: one token, fewer and more tokens than columns, a long row.
SIZES = [(1, 1, 1, 2), (2, 3, 5, 7), (3, 12, 13, 101), (2, 521, 5, 1009)]


def inputs(B, L, D, V, *, seed=0, size=1.0):
  rng = np.random.default_rng(seed)
  hidden = np.float32(size * rng.normal(size=(B, L, D)))
  table = np.float32(rng.normal(size=(V, D)))
  targets = rng.integers(V, size=(B, L), dtype=np.int32)
  # Some zero, the others not all one.
  weights = np.float32(rng.random((B, L)) * (rng.random((B, L)) < 0.7))
  weights[0, 0] = 0.5
  return hidden, table, targets, weights


def cross_entropy(*arrays):
  return penalised_cross_entropy(*arrays, 0.0).total


@functools.partial(jax.jit, static_argnames='factor')
def value_and_gradients(hidden, table, targets, weights, factor=1.0):
  return jax.value_and_grad(lambda h, t: factor * cross_entropy(h, t, targets, weights), (0, 1))(
    hidden, table
  )


def expected(hidden, table, targets, weights, z_loss=0.0, softcap=0.0, smoothing=0.0):
  """The loss of plain JAX and the penalty in it, and the gradients."""

  def total(hidden, table):
    if softcap:
      # As if the bounded logits were hidden states, and the table all ones.
      hidden, table = softcap * jnp.tanh(hidden @ table.T / softcap), jnp.eye(len(table))
    loss, alone = reference.loss_of(hidden, table, targets, weights, z_loss)
    if smoothing:
      logits = hidden @ table.T
      at = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
      loss += smoothing * jnp.sum(weights * (at - logits.mean(-1)))
    return loss, loss - alone

  return reference.run(jax.value_and_grad(total, (0, 1), has_aux=True), hidden, table)


def assert_close(found, wanted, *, rtol, atol):
  np.testing.assert_allclose(
    np.float64(found), wanted, rtol=rtol, atol=atol * np.max(np.abs(wanted))
  )


@pytest.mark.parametrize('sizes', SIZES)
def test_value_and_gradients(sizes):
  arrays = inputs(*sizes)
  value, gradients = value_and_gradients(*arrays)
  (wanted, _), wanted_gradients = expected(*arrays)
  assert value.shape == () and value.dtype == jnp.float32
  np.testing.assert_allclose(value, wanted, rtol=1e-5)
  for x, found, wanted in zip(arrays, gradients, wanted_gradients, strict=False):
    assert found.shape == x.shape and found.dtype == x.dtype
    assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('limit', [1, 3 * 101, 3 * 4 * 101, 3 * 12 * 101])
def test_logits_in_chunks(monkeypatch, limit):
  """Rows of 12 positions in parts of 1, 1, 4 and 12."""
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module, 'CHUNK_LOGITS', limit)
  arrays = inputs(3, 12, 13, 101)

  # A new function each time, or jax would remember the chunks of before.
  def total(hidden, table):
    return cross_entropy(hidden, table, *arrays[2:])

  plain = jax.jit(lambda h, t: total(h, t))(*arrays[:2])
  value, gradients = jax.jit(
    lambda h, t: jax.value_and_grad(lambda h, t: total(h, t), (0, 1))(h, t)
  )(*arrays[:2])
  (wanted, _), wanted_gradients = expected(*arrays)
  np.testing.assert_allclose(plain, wanted, rtol=1e-5)
  np.testing.assert_allclose(value, wanted, rtol=1e-5)
  for found, wanted in zip(gradients, wanted_gradients, strict=True):
    assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_on_a_gpu_rows_of_logits_are_filled_up(monkeypatch):
  """101 logits to 128, in chunks of four times the size."""
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module.layout, 'platform', lambda: 'gpu')
  monkeypatch.setattr(module, 'CHUNK_LOGITS', 3 * 101)
  arrays = inputs(3, 11, 13, 101)
  assert len(module.whole_table(arrays[1])) == 128
  assert module.chunked(101, arrays[0])[0].shape == (3, 1, 12, 13)
  value, gradients = value_and_gradients(*arrays)
  (wanted, _), wanted_gradients = expected(*arrays)
  np.testing.assert_allclose(value, wanted, rtol=1e-5)
  for found, wanted in zip(gradients, wanted_gradients, strict=True):
    assert found.shape == wanted.shape
    assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_bfloat16_inputs():
  """Products of bfloat16, sums in float32; gradients rounded to 8 bits."""
  hidden, table, targets, weights = inputs(3, 37, 29, 211, size=0.5)
  hidden, table = hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16)
  value, gradients = value_and_gradients(hidden, table, targets, weights)
  (wanted, _), wanted_gradients = expected(hidden, table, targets, weights)
  assert value.dtype == jnp.float32
  np.testing.assert_allclose(value, wanted, rtol=1e-3)
  for found, wanted in zip(gradients, wanted_gradients, strict=True):
    assert found.dtype == jnp.bfloat16
    assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    # Roundings are not to one side.
    bias = np.mean(np.float64(found) - wanted)
    assert abs(bias) < 1e-3 * np.max(np.abs(wanted))


def test_tokens_of_weight_zero_count_for_nothing():
  hidden, table, targets, weights = inputs(3, 11, 13, 101)
  value, (d_hidden, d_table) = value_and_gradients(hidden, table, targets, weights)
  unused = weights == 0
  assert 0 < unused.sum() < weights.size
  assert not np.any(np.asarray(d_hidden)[unused])
  hidden = np.where(unused[..., None], 7.0, hidden).astype(np.float32)
  targets = np.where(unused, 0, targets)
  again, (_, d_again) = value_and_gradients(hidden, table, targets, weights)
  np.testing.assert_allclose(value, again, rtol=1e-6)
  np.testing.assert_allclose(d_table, d_again, rtol=1e-5, atol=1e-6)
  nothing, gradients = value_and_gradients(hidden, table, targets, np.zeros_like(weights))
  assert nothing == 0
  assert not any(np.any(g) for g in gradients)


def test_gradients_scale_with_what_follows():
  arrays = inputs(2, 3, 5, 7)
  value, gradients = value_and_gradients(*arrays)
  tripled, gradients_tripled = value_and_gradients(*arrays, factor=-3.0)
  np.testing.assert_allclose(tripled, -3 * value, rtol=1e-6)
  for one, three in zip(gradients, gradients_tripled, strict=True):
    np.testing.assert_allclose(three, -3 * one, rtol=1e-5, atol=1e-6)


def test_gradient_of_a_table_that_also_embeds():
  """Tied: the hidden states are rows of the table."""
  _, table, targets, weights = inputs(2, 3, 5, 7)
  tokens = np.array([[0, 6, 3], [3, 3, 1]])

  @jax.jit
  @jax.grad
  def gradient(table):
    return cross_entropy(table[tokens], table, targets, weights)

  def total(table):
    return reference.loss_of(table[tokens], table, targets, weights)[0]

  expected = reference.run(jax.grad(total), table)
  np.testing.assert_allclose(gradient(table), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('size', [1e2, 1e4])
def test_large_logits_neither_overflow_nor_lose_the_loss(size):
  arrays = inputs(2, 5, 3, 11, size=size)
  value, gradients = value_and_gradients(*arrays)
  (wanted, _), wanted_gradients = expected(*arrays)
  np.testing.assert_allclose(value, wanted, rtol=1e-5)
  for found, wanted in zip(gradients, wanted_gradients, strict=True):
    assert_close(found, wanted, rtol=1e-2, atol=1e-3)


def test_equal_logits_give_the_logarithm_of_the_vocabulary():
  hidden, table, targets, weights = inputs(3, 11, 13, 101)
  value = jax.jit(cross_entropy)(0 * hidden, table, targets, weights)
  np.testing.assert_allclose(value, np.log(101) * weights.sum(), rtol=1e-5)


@functools.partial(jax.jit, static_argnames='z_loss')
def penalised_gradients(hidden, table, targets, weights, z_loss):
  return jax.value_and_grad(
    lambda h, t: penalised_cross_entropy(h, t, targets, weights, z_loss), (0, 1), has_aux=True
  )(hidden, table)


# PaLM's, and one so large that its gradient outweighs the cross-entropy's.
@pytest.mark.parametrize('z_loss', [1e-4, 0.3])
@pytest.mark.parametrize('sizes', SIZES)
def test_z_loss_against_float64(sizes, z_loss):
  arrays = inputs(*sizes)
  found, gradients = penalised_gradients(*arrays, z_loss=z_loss)
  wanted, wanted_gradients = expected(*arrays, z_loss)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  alone = jax.jit(penalised_cross_entropy, static_argnums=4)(*arrays, z_loss)
  np.testing.assert_allclose(alone, wanted, rtol=1e-5)
  for ours, theirs in zip(gradients, wanted_gradients, strict=True):
    assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


# Of 7 tokens, four devices hold two each: the last of them is filled up.
@pytest.mark.parametrize('sizes', [None, (1, 2, 4)])
@pytest.mark.parametrize('z_loss', [0.0, 0.3])
def test_bounded_logits(z_loss, sizes):
  arrays = inputs(2, 3, 5, 7)
  hidden, table, *rest = arrays

  def total(hidden, table):
    return penalised_cross_entropy(hidden, table, *rest, z_loss, 0.7)

  def run():
    found = jax.jit(lambda h, t: total(h, t))(hidden, table)
    gradients = jax.jit(jax.value_and_grad(lambda h, t: total(h, t), (0, 1), has_aux=True))(
      hidden, table
    )
    return jax.device_get((found, *gradients))

  if sizes is None:
    found = run()
  else:
    rules = sharding.parse_rules(base.get_config().mesh.rules)
    with sharding.use(tiny.make_mesh(*sizes), rules):
      found = run()
  wanted, wanted_gradients = expected(*arrays, z_loss, 0.7)
  np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
  np.testing.assert_allclose(found[1], wanted, rtol=1e-5)
  for ours, theirs in zip(found[2], wanted_gradients, strict=True):
    assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_z_loss_in_chunks(monkeypatch):
  arrays = inputs(3, 12, 13, 101)
  whole = penalised_gradients(*arrays, z_loss=0.3)
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module, 'CHUNK_LOGITS', 3 * 5 * 101)

  def total(hidden, table):
    return penalised_cross_entropy(hidden, table, *arrays[2:], 0.3)

  parts = jax.value_and_grad(total, (0, 1), has_aux=True)(*arrays[:2])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), parts, whole)


@functools.partial(jax.jit, static_argnames='temperature')
def draw(hidden, table, key, temperature):
  keys = jax.random.split(key, len(hidden))
  return sampled(Scores(hidden, table), keys, temperature)


@pytest.mark.parametrize('temperature', [1.0, 0.7])
def test_tokens_are_drawn_by_their_probabilities(temperature):
  """4096 times; four deviations are passed once in 16,000 draws."""
  hidden, table, _, _ = inputs(1, 1, 5, 7)
  many = np.broadcast_to(hidden, (8, 512, 5))
  ids = draw(many, table, jax.random.key(3), temperature)
  found = np.bincount(np.ravel(ids), minlength=7) / 4096
  logits = np.float64(hidden[0, 0]) @ np.float64(table).T / temperature
  p = special.softmax(logits)
  assert np.all(np.abs(found - p) < 4 * np.sqrt(p * (1 - p) / 4096))
  most = draw(many, table, jax.random.key(3), 0.0)
  np.testing.assert_array_equal(most, np.full((8, 512), logits.argmax()))


def test_what_is_drawn_does_not_depend_on_chunks(monkeypatch):
  module = sys.modules['gpt_jax.core.objectives.cross_entropy']
  hidden, table, _, _ = inputs(3, 12, 13, 101)
  found = []
  for limit in (1 << 25, 3 * 5 * 101):
    monkeypatch.setattr(module, 'CHUNK_LOGITS', limit)
    traced = jax.jit(lambda h, t, keys: sampled(Scores(h, t), keys, 1.0))
    keys = jax.random.split(jax.random.key(0), len(hidden))
    found.append(traced(hidden, table, keys))
  np.testing.assert_array_equal(*found)
  assert len(np.unique(found[0])) > 20


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
@pytest.mark.parametrize('softcap', [0.0, 0.7])
@pytest.mark.parametrize('training', [False, True])
def test_accuracy_and_entropy_of_the_predictions(chunk, softcap, training, monkeypatch):
  """In the pass of the loss, which they do not change."""
  module = sys.modules[penalised_cross_entropy.__module__]
  monkeypatch.setattr(module, 'CHUNK_LOGITS', chunk)
  hidden, table, targets, weights = inputs(3, 12, 5, 7, seed=3)
  logits = np.float64(hidden) @ np.float64(table).T
  if softcap:
    logits = softcap * np.tanh(logits / softcap)
  probs = special.softmax(logits, axis=-1)
  right = np.sum(weights * (np.argmax(logits, axis=-1) == targets))
  entropy = np.sum(weights * special.entr(probs).sum(axis=-1))
  assert 0 < right < weights.sum()

  def run(hidden, measured):
    arrays = hidden, table, targets, weights
    sums = penalised_cross_entropy(*arrays, 0.0, softcap, measured=measured)
    return sums.total, sums

  if training:
    gradient = jax.grad(run, has_aux=True)
    plain, measured = (gradient(hidden, flag) for flag in (False, True))
    np.testing.assert_allclose(measured[0], plain[0], rtol=1e-6, atol=1e-6)
    sums, plain = measured[1], plain[1]
  else:
    sums, plain = run(hidden, True)[1], run(hidden, False)[1]
  np.testing.assert_allclose(sums.total, plain.total, rtol=1e-6)
  np.testing.assert_allclose(sums.right, right, rtol=1e-6)
  np.testing.assert_allclose(sums.entropy, entropy, rtol=1e-5)


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
      logits, jnp.eye(logits.shape[-1]), labels, weights, 0.0, 0.0, smoothing
    )
    return sums.total / divisor, sums.penalty / divisor

  (found, penalty), found_gradient = jax.value_and_grad(run, has_aux=True)(jnp.asarray(logits))
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
    return penalised_cross_entropy(hidden, table, targets, weights, z_loss, softcap, 0.2)

  both = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))
  if sizes is None:
    found = jax.device_get(both(hidden, table))
  else:
    rules = sharding.parse_rules(base.get_config().mesh.rules)
    with sharding.use(tiny.make_mesh(*sizes), rules):
      found = jax.device_get(both(hidden, table))
  wanted, wanted_gradients = expected(hidden, table, targets, weights, z_loss, softcap, 0.2)
  np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
  for ours, theirs in zip(found[1], wanted_gradients, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('vocab_size, floor', [(10, 0.5003), (8000, 1.2237), (37_000, 1.3769)])
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
    jax.value_and_grad(lambda table: run(jnp.ones((1, 1, 1)), table), has_aux=True)
  )(np.float32(np.log(labels))[:, None])
  assert round(float(found), 4) == pytest.approx(floor, abs=1e-4)
  assert np.max(np.abs(gradient)) < 1e-6
