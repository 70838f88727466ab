# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pieces of plain JAX against the papers' equations, in NumPy."""

import math

import jax
import numpy as np
import pytest
from scipy import special

from tests.support import reference

B, L, M, H, K, D, V = 2, 5, 7, 3, 4, 11, 13
draw = np.random.default_rng(0).normal
close = np.testing.assert_allclose


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
def test_norms(epsilon):
  """Ba et al. (2016), equation 4; Zhang and Sennrich (2019), equation 4."""
  x, scale, bias = 3 + draw(size=(B, L, D)), draw(size=D), draw(size=D)
  plain = reference.of(NORM_EPSILON=epsilon)
  centred = x - x.mean(-1, keepdims=True)
  normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
  params = {'scale': scale, 'bias': bias}
  close(reference.run(plain.layer_norm, x, params), normal * scale + bias)
  close(reference.run(plain.standardize, x, None), normal)
  expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale
  close(reference.run(plain.rms_norm, x, params), expected)


def test_attend():
  """Vaswani et al. (2017), equation 1, for each row, head and query."""
  q, k, v = draw(size=(B, L, H, K)), draw(size=(B, M, H, K)), draw(size=(B, M, H, K))
  bias, mask = draw(size=(H, L, M)), np.random.default_rng(1).random((B, 1, L, M)) < 0.6
  mask[..., 0] = True
  plain = reference.of(SCORE_SCALE=0.3, SCORE_BIAS=True)
  found = reference.run(plain.attend, q, k, v, bias, mask, None).reshape(B, L, H, K)
  for b, i, h in np.ndindex(B, L, H):
    keys = np.flatnonzero(mask[b, 0, i])
    scores = [0.3 * q[b, i, h] @ k[b, j, h] + bias[h, i, j] for j in keys]
    expected = sum(p * v[b, j, h] for p, j in zip(special.softmax(scores), keys, strict=True))
    close(found[b, i, h], expected)


@pytest.mark.parametrize('kv_heads', [1, 2, 6])
def test_heads_of_keys_serve_neighbouring_heads_of_queries(kv_heads):
  """Each head by itself, of its own columns (Ainslie et al., 2023, section 2.2)."""
  plain, alone = (reference.of(NUM_HEADS=n, NUM_KV_HEADS=g) for n, g in ((6, kv_heads), (1, 1)))
  sizes = {'query': 6, 'key': kv_heads, 'value': kv_heads}
  p = {n: {'kernel': draw(size=(D, g * K)), 'bias': draw(size=g * K)} for n, g in sizes.items()}
  p['out'] = {'kernel': draw(size=(6 * K, D)), 'bias': np.zeros(D)}
  x, expected = draw(size=(B, L, D)), 0
  for h in range(6):
    place = {n: h // (6 // g) * K for n, g in sizes.items()}
    own = {n: {k: y[..., i : i + K] for k, y in p[n].items()} for n, i in place.items()}
    own['out'] = p['out'] | {'kernel': p['out']['kernel'][h * K : (h + 1) * K]}
    expected += reference.run(alone.attention, x, own, 0.0, reference.seen(L), None, None)
  close(reference.run(plain.attention, x, p, 0.0, reference.seen(L), None, None), expected)


def test_waves():
  """Vaswani et al. (2017), section 3.5: sin(pos / 10000^(2 i / d)), and its cosine."""
  plain, width = reference.of(), 6
  angles = np.array([[n / 10_000 ** (2 * i / width) for i in range(3)] for n in range(L)])
  expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(L, width)
  close(reference.run(lambda n: plain.sinusoids(n, width), np.arange(L)), expected, atol=1e-12)
  halves = reference.run(lambda n: plain.sines_then_cosines(n, width), np.arange(L))
  close(halves, np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), atol=1e-12)


@pytest.mark.parametrize('layout', ['rotate_halves', 'rotate_pairs'])
def test_pairs_turn(layout):
  """Su et al. (2021), equation 12: pair i is a complex number that turns by m theta_i."""
  rotate = getattr(reference.of(HEAD_SIZE=K, ROPE_THETA=50.0), layout)
  x, places = draw(size=(B, L, H, K)), np.array([[0, 1, 2, 3, 4], [7, 90, 5, 5, 1]])
  pairs = [(0, 2), (1, 3)] if layout == 'rotate_halves' else [(0, 1), (2, 3)]
  found = reference.run(rotate, x, places)
  for n, (a, b) in enumerate(pairs):
    turns = np.exp(1j * places[..., None] * 50.0 ** (-2 * n / K))
    turned = (x[..., a] + 1j * x[..., b]) * turns
    close(found[..., a] + 1j * found[..., b], turned)


def test_alibi():
  """Press et al. (2022), section 3: for four heads 2^-2, 2^-4, 2^-6, 2^-8."""
  found = reference.run(lambda: reference.of(NUM_HEADS=4).alibi(L))
  for h, i, j in np.ndindex(found.shape):
    assert found[h, i, j] == -(2.0 ** -(2 * h + 2)) * abs(i - j)


def test_the_loss_and_its_gradient():
  """Of weights that are no whole numbers, with a penalty on log Z."""
  hidden, table, weights = draw(size=(B, L, D)), draw(size=(V, D)), draw(size=(B, L)) ** 2
  targets = np.random.default_rng(2).integers(V, size=(B, L))
  logits = hidden @ table.T
  log_z = special.logsumexp(logits, axis=-1)
  nll = [log_z[at] - logits[at][targets[at]] for at in np.ndindex(B, L)]
  alone = math.fsum(weights.ravel() * nll)
  penalty = 0.3 * math.fsum((weights * log_z**2).ravel())
  run = jax.value_and_grad(
    lambda h, t: reference.loss_of(h, t, targets, weights, 0.3), (0, 1), has_aux=True
  )
  (total, loss), (d_hidden, d_table) = reference.run(run, hidden, table)
  close((total, loss), (alone + penalty, alone))
  # d / d logits = w ((1 + 2 z log Z) softmax - onehot).
  d_logits = (1 + 0.6 * log_z[..., None]) * special.softmax(logits, axis=-1)
  d_logits = weights[..., None] * (d_logits - np.eye(V)[targets])
  close(d_hidden, d_logits @ table)
  close(d_table, np.einsum('BLV,BLD->VD', d_logits, hidden))
