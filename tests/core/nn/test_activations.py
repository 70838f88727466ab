# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The largest attention logit of each row, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.nn import activations
from gpt_jax.core.nn.attend import ByDistance, Request
from gpt_jax.core.nn.masks import Tokens, bidirectional, full, local
from gpt_jax.core.nn.row import Visibility

B, L, M, H, G, K = 3, 11, 17, 6, 2, 7
SCALE = 0.3


def arrays(keys=L):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, L, H, K))
  k, v = rng.normal(size=(2, B, keys, G, K))
  return jnp.float32(q), jnp.float32(k), jnp.float32(v)


def products(q, k):
  """Of every head with its group's keys, float64 [B, H, L, M]."""
  k = np.repeat(np.asarray(k), H // G, axis=2)
  return SCALE * np.einsum('blhk,bmhk->bhlm', np.float64(q), np.float64(k))


def biases():
  return np.float32(np.random.default_rng(1).normal(size=(1, H, L, L)))


def strip():
  return np.float32(np.random.default_rng(2).normal(size=(H, 2 * L - 1)))


REAL = np.arange(L) < np.array([[5], [11], [8]])
SEGMENTS = np.int32([[0] * 4 + [1] * 7, [0] * 11, [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3]])
PREFIX = np.int32([3, 0, 7])
SEEN = np.random.default_rng(3).random((B, L, L)) < 0.4
AT = np.arange(L)
CAUSAL = AT[None] <= AT[:, None]
# Name: pattern, visibility, bias, and the pairs of a query and a key that count.
CASES = {
  'causal': (full(), Visibility(), None, CAUSAL),
  'window': (local(4), Visibility(), None, CAUSAL & (AT[:, None] - AT[None] < 4)),
  'both ways': (bidirectional(), Visibility(), None, np.ones((L, L), bool)),
  # Scores of padding, as queries too, do not count.
  'padding': (bidirectional(), Visibility(REAL), None, REAL[:, :, None] & REAL[:, None]),
  'packed': (
    full(),
    Visibility(segments_BL=SEGMENTS),
    None,
    CAUSAL & (SEGMENTS[:, :, None] == SEGMENTS[:, None]),
  ),
  'prefix': (full(), Visibility(prefix_B=PREFIX), None, CAUSAL | (PREFIX[:, None] > AT)[:, None]),
  'mask': (bidirectional(), Visibility(visible_BLM=SEEN), None, SEEN),
  'bias': (full(), Visibility(), biases(), CAUSAL),
  'by distance': (full(), Visibility(), ByDistance(strip()), CAUSAL),
}


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('queries', [3, 128])
def test_the_largest_logit_is_that_of_all_visible_pairs(name, queries, monkeypatch):
  """However many queries are computed at once."""
  monkeypatch.setattr(activations, '_QUERIES', queries)
  pattern, visibility, bias, counted = CASES[name]
  q, k, v = arrays()
  request = Request(q, k, v, pattern, visibility, SCALE, bias, softcap=2.0)
  scores = products(q, k)
  if isinstance(bias, ByDistance):
    scores += strip()[:, AT[None] - AT[:, None] + L - 1]
  elif bias is not None:
    scores += bias
  scores = np.where(np.broadcast_to(counted, (B, L, L))[:, None], scores, -np.inf)
  found = jax.jit(lambda: activations.largest_logits(request))()
  np.testing.assert_allclose(found, scores.max(axis=(1, 2, 3)), rtol=1e-5)


def test_keys_of_another_text_and_of_a_memory_count():
  q, k, v = arrays(M)
  real = np.arange(M) < np.array([[17], [5], [13]])
  across = Request(
    q, k, v, bidirectional(), Visibility(), SCALE, keys=Tokens(np.arange(M)[None], real=real)
  )
  hidden = np.where(real[:, None, None], products(q, k), -np.inf)
  np.testing.assert_allclose(
    activations.largest_logits(across), hidden.max(axis=(1, 2, 3)), rtol=1e-5
  )
  memory = Request(q, k, v, full(), Visibility(), SCALE)
  seen = np.arange(M)[None] <= np.arange(M - L, M)[:, None]
  hidden = np.where(seen, products(q, k), -np.inf)
  np.testing.assert_allclose(
    activations.largest_logits(memory), hidden.max(axis=(1, 2, 3)), rtol=1e-5
  )
