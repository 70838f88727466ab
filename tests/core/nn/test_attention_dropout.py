# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention probabilities against its definition, in integers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.core import spec
from gpt_jax.core.nn import attend as attend_lib
from gpt_jax.core.nn import layers
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.layers import Rows
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.papers.transformer.encoder_decoder import attend_to_encoded
from tests.support import reference, tiny

B, H, G, L, M, K = 3, 6, 2, 29, 11, 7
RATE, SEED = 0.3, 3_000_000_019
ROWS = np.array([5, 0, 2**32 - 1], np.uint32)
DROPOUT = AttentionDropout(RATE, jnp.uint32(SEED), ROWS)


def draw(dropout, num_heads, num_queries, num_keys):
  query_L1 = jnp.arange(num_queries)[None, :, None]
  key_1M = jnp.arange(num_keys)[None, None]
  return dropout.kept(num_heads, query_L1, key_1M)


def weight(b, h, i, j):
  """Of a probability: 1 / (1 - rate), or 0; by a hash in integers mod 2^32.

  Appleby (2011), the last step of MurmurHash3, of one number after the other.
  """
  hashed = 0
  for n in (SEED, int(ROWS[b]), h, j, i):
    hashed = ((hashed ^ n) + 0x9E3779B9) % 2**32
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B % 2**32
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 % 2**32
    hashed ^= hashed >> 16
  return (hashed // 2**8 >= round(RATE * 2**24)) / (1 - RATE)


def by_hand(q, k, v, seen):
  """Plain JAX's probabilities, which it gives for values of ones, times their weights."""
  plain = reference.of(SCORE_SCALE=0.3)
  k, v = (np.repeat(x, H // G, axis=2) for x in (k, v))
  ones = np.broadcast_to(np.eye(k.shape[1])[None, :, None], (*k.shape[:3], k.shape[1]))
  probs = reference.run(plain.attend, q, k, ones, 0.0, seen, None).reshape(*q.shape[:3], -1)
  weights = [
    [[weight(b, h, i, j) for j in range(k.shape[1])] for h in range(H)] for b, i in np.ndindex(B, L)
  ]
  return np.einsum('BLHM,BMHK->BLHK', probs * np.reshape(weights, probs.shape), v)


def qkv(num_keys=L):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, L, H, K))
  k, v = rng.normal(size=(2, B, num_keys, G, K))
  return np.float32(q), np.float32(k), np.float32(v)


def test_equals_the_definition():
  found = np.asarray(draw(DROPOUT, 5, 7, M))
  for b, h, i, j in np.ndindex(*found.shape):
    assert found[b, h, i, j] == (weight(b, h, i, j) > 0)
  assert np.asarray(draw(DROPOUT._replace(rate=0.0), 5, 7, M)).all()


@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_rate_and_independence(rate):
  """Neighbours of each kind agree as often as two independent draws do."""
  rows = np.arange(7, dtype=np.uint32)
  whole, other = (
    np.asarray(draw(AttentionDropout(rate, jnp.uint32(s), rows), 5, 67, 67)) for s in (0, 1)
  )
  assert abs(np.mean(~whole) - rate) < 5 * np.sqrt(rate / whole.size)
  agree = rate**2 + (1 - rate) ** 2
  pairs = [(whole, other)]
  for axis, step in itertools.product(range(4), (1, 2, 4)):
    moved = np.moveaxis(whole, axis, 0)
    pairs.append((moved[step:], moved[:-step]))
  for one, two in pairs:
    error = abs(np.mean(one == two) - agree)
    assert error < 5 * np.sqrt(agree * (1 - agree) / one.size)


@pytest.mark.parametrize('block', [5, 128])
def test_reference_drops_by_places_in_the_row(block, monkeypatch):
  """Whatever its blocks of queries are, each with the keys that it may see."""
  monkeypatch.setattr(attend_lib, 'QUERY_BLOCK', block)
  q, k, v = qkv()
  pattern = spec.build('model.attention', 'local(window=11)', PATTERNS)
  expected = by_hand(q, k, v, reference.seen(L, 11))
  request = Request(q, k, v, pattern, Visibility(), 0.3, dropout=DROPOUT)
  found = jax.jit(lambda: attend_lib.attend_within(request))()
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_cross_attention():
  q, k, v = qkv(M)
  found, _ = attend_to_encoded(q, (k, v), Context(), None, scale=0.3, dropout=DROPOUT)
  expected = by_hand(q, k, v, True)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'text', ['bigbird(block=2, random=1)', 'bigbird(block=2, extra=3, random=0)']
)
def test_blocks_drop_what_all_scores_do(text):
  """A random block that a list holds is dropped by its keys' places."""
  q, k, v = qkv()
  pattern = spec.build('model.attention', text, PATTERNS)
  assert pattern.blocks.between(L) is not None

  def run(name):
    def loss(q, k, v):
      request = Request(q, k, v, pattern, Visibility(), 0.3, dropout=DROPOUT)
      out = BACKENDS[name]().run(request._replace(layer=jnp.int32(1)))
      return jnp.sum(out**3), out

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)

  (found, out), (expected, dense) = run('blocks'), run('reference')
  np.testing.assert_allclose(out, dense, rtol=1e-4, atol=1e-5)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_rows_draw_alike_in_any_micro_batch_and_mesh():
  """Bits are equal, also of rows that became several of the model's."""
  dropout, rows = DROPOUT._replace(rate=0.5), np.arange(16)
  whole = np.asarray(draw(dropout._replace(rows_B=np.uint32(rows)), 8, 5, M))

  def of(numbers_B, count):
    with layers.use_rows(Rows(numbers_B, 16, filled=False)):
      return draw(dropout._replace(rows_B=layers.row_numbers(count)), 8, 5, M)

  for part in (rows[3::4], rows[8:]):
    np.testing.assert_array_equal(of(part, len(part)), whole[part])
  pair = of(np.array([2, 5]), 4)
  np.testing.assert_array_equal(pair, whole[[4, 5, 10, 11]])

  mesh = tiny.make_mesh(2, 2, 2)
  placed = NamedSharding(mesh, PartitionSpec(('data', 'fsdp'), 'tensor'))
  run = jax.jit(lambda x: of(x, 16), out_shardings=placed)
  over = NamedSharding(mesh, PartitionSpec(('data', 'fsdp')))
  np.testing.assert_array_equal(run(jax.device_put(rows, over)), whole)
