# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention against loops over rows, queries, heads and keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tiny
from flax import linen as nn

from gpt_jax.nn.attention import Attention, KVCache, attend
from gpt_jax.nn.init import INITS
from gpt_jax.nn.masks import full, local

B, L, M, K, D = 3, 5, 11, 7, 17


def qkv(heads, kv_heads):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, L, heads, K))
  k, v = rng.normal(size=(2, B, M, kv_heads, K))
  return np.float32(q), np.float32(k), np.float32(v)


def random_mask(*shape):
  mask = np.random.default_rng(1).random(shape) < 0.4
  mask[..., 0] |= ~mask.any(-1)  # each query sees something
  return mask


@pytest.mark.parametrize('heads, kv_heads', [(5, 5), (6, 2), (6, 3), (5, 1)])
def test_attend(heads, kv_heads):
  q, k, v = qkv(heads, kv_heads)
  mask = random_mask(L, M)
  expected = reference.attend(q, k, v, lambda b, i, j: mask[i, j])
  found = jax.jit(attend)(q, k, v, mask=mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_attend_with_a_mask_for_each_row():
  q, k, v = qkv(6, 2)
  mask = random_mask(B, L, M)
  assert not np.array_equal(mask[0], mask[1])
  expected = reference.attend(q, k, v, lambda b, i, j: mask[b, i, j])
  found = jax.jit(attend)(q, k, v, mask=mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_is_masked_has_no_gradient():
  q, k, v = qkv(2, 2)
  mask = random_mask(L, M)
  unseen = np.flatnonzero(~mask.any(0))
  mask[:, 7], mask[:, 3] = False, True

  @jax.jit
  def gradients(k, v):
    square = lambda k, v: jnp.sum(attend(q, k, v, mask=mask) ** 2)  # noqa: E731
    return jax.grad(square, (0, 1))(k, v)

  d_k, d_v = jax.device_get(gradients(k, v))
  for j in {7, *unseen.tolist()}:
    assert not np.any(d_k[:, j]) and not np.any(d_v[:, j])
  assert np.all(np.any(d_v[:, 3], axis=(1, 2)))


def test_large_scores_do_not_overflow():
  q, k, v = qkv(2, 2)
  found = jax.jit(attend)(1e4 * q, 1e4 * k, v, mask=np.ones((L, M), bool))
  # So large, the softmax is a maximum.
  best = np.argmax(np.einsum('BLHK,BMHK->BLHM', q, k), axis=-1)
  for b, i, h in np.ndindex(B, L, 2):
    np.testing.assert_allclose(found[b, i, h], v[b, best[b, i, h], h])


def test_dropout_acts_on_probabilities():
  """With one visible key its probability, 1, is dropped or doubled."""
  heads = 101
  q, k, v = qkv(heads, heads)
  mask = np.zeros((L, M), bool)
  mask[:, 3] = True
  dropout = nn.Dropout(0.5, deterministic=False)
  out = jax.jit(
    lambda key: dropout.apply(
      {},
      rngs={'dropout': key},
      method=lambda drop: attend(q, k, v, mask=mask, dropout=drop),
    )
  )(jax.random.key(0))
  scale = out / np.broadcast_to(v[:, 3][:, None], out.shape)
  dropped = np.isclose(scale, 0)
  assert np.all(dropped | np.isclose(scale, 2))
  # A head is dropped as a whole, at half of the 3 * 5 * 101 places.
  assert np.all(dropped.all(-1) == dropped.any(-1))
  assert 0.45 < np.mean(dropped) < 0.55


def module(pattern, *, bias=True, dropout=0.0, heads=6, kv_heads=2):
  return Attention(
    pattern,
    num_heads=heads,
    num_kv_heads=kv_heads,
    head_size=K,
    bias=bias,
    dropout=dropout,
    inits=INITS['normal'](0.5)(1),
    dtype=jnp.float32,
  )


def with_params(attention):
  x = np.float32(np.random.default_rng(2).normal(size=(B, L, D)))
  boxed = jax.eval_shape(attention.init, jax.random.key(0), x, None, None)
  boxed = boxed['params']
  return boxed, tiny.random_like(nn.meta.unbox(boxed), seed=3), x


@pytest.mark.parametrize('window', [None, 3])
@pytest.mark.parametrize('heads, kv_heads', [(5, 5), (6, 2)])
def test_module(window, heads, kv_heads):
  pattern = full() if window is None else local(window)
  attention = module(pattern, heads=heads, kv_heads=kv_heads)
  boxed, params, x = with_params(attention)
  assert {n: p['kernel'].names for n, p in boxed.items()} == {
    'query': ('embed', 'heads'),
    'key': ('embed', 'kv_heads'),
    'value': ('embed', 'kv_heads'),
    'out': ('heads', 'embed'),
  }
  assert params['query']['kernel'].shape == (D, heads * K)
  assert params['value']['kernel'].shape == (D, kv_heads * K)
  expected = reference.self_attention(
    reference.to_float64(params),
    np.float64(x),
    heads=heads,
    kv_heads=kv_heads,
    window=window,
  )
  y, cache = jax.jit(attention.apply)({'params': params}, x, None, None)
  assert cache is None
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_bias_none_has_kernels_only():
  boxed, _, _ = with_params(module(full(), bias=False))
  assert all({*p} == {'kernel'} for p in boxed.values())


def test_cache_is_written_at_the_positions_of_each_row():
  attention = module(full())
  _, params, x = with_params(attention)
  rng = np.random.default_rng(4)
  before = [np.float32(rng.normal(size=(B, M, 2, K))) for _ in range(2)]
  positions = np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [6, 7, 8, 9, 10]])
  _, cache = jax.jit(attention.apply)(
    {'params': params}, x, positions, KVCache(*before)
  )
  for name, old, new in zip(('key', 'value'), before, cache, strict=True):
    expected = old.copy()
    made = reference.dense(params[name], x).reshape(B, L, 2, K)
    for b, i in np.ndindex(B, L):
      expected[b, positions[b, i]] = made[b, i]
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('window', [None, 3])
def test_decoding_sees_the_cache_up_to_its_own_position(window):
  """Rows at different positions; what lies later in the cache is noise."""
  attention = module(full() if window is None else local(window))
  _, params, _ = with_params(attention)
  rng = np.random.default_rng(5)
  x = np.float32(rng.normal(size=(B, M, D)))
  noise = np.float32(rng.normal(size=(B, M, 2, K)))
  whole, _ = jax.jit(attention.apply)({'params': params}, x, None, None)
  cache = KVCache(noise, noise)
  # Filled up to position 6, then row b goes on from position 2 + 2 b; the
  # keys that stand behind it are stale.
  prompt = np.broadcast_to(np.arange(7), (B, 7))
  _, cache = jax.jit(attention.apply)(
    {'params': params}, x[:, :7], prompt, cache
  )
  at = 2 + 2 * np.arange(B)[:, None]
  now = np.take_along_axis(x, at[:, :, None], axis=1)
  y, _ = jax.jit(attention.apply)({'params': params}, now, at, cache)
  expected = np.take_along_axis(np.asarray(whole), at[:, :, None], axis=1)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_dropout_needs_a_key_and_a_rate():
  apply = functools.cache(lambda attention: jax.jit(attention.apply))
  attention = module(full(), dropout=0.5)
  _, params, x = with_params(attention)

  def run(attention, **rngs):
    return apply(attention)({'params': params}, x, None, None, rngs=rngs)[0]

  plain = run(module(full()), dropout=jax.random.key(0))
  np.testing.assert_array_equal(run(attention), plain)
  one, again, other = (
    run(attention, dropout=jax.random.key(seed)) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, plain)
  assert not np.allclose(one, other)
