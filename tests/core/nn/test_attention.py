# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention against that of plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.choices import BACKENDS, INITS, POSITIONS, SCALES
from gpt_jax.core.nn.kv_cache import cache_of
from gpt_jax.core.nn.masks import full, local
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.papers.transformer.encoder_decoder import CrossAttention
from tests.support import reference, tiny

B, L, M, K, D = 3, 5, 11, 7, 17
HERE = Context()
FIRST = np.int32(0)


def module(
  pattern,
  kind=Attention,
  *,
  bias=(True, True),
  dropout=0.0,
  heads=6,
  kv_heads=2,
  position='none',
  scale='rsqrt',
):
  return kind(
    pattern,
    position=POSITIONS[position](),
    num_heads=heads,
    num_kv_heads=kv_heads,
    head_size=K,
    scale=spec.build('model.attention_scale', scale, SCALES),
    backend=BACKENDS['reference'](),
    bias_in=bias[0],
    bias_out=bias[1],
    dropout=dropout,
    inits=INITS['normal'](0.5)(1),
    dtype=jnp.float32,
  )


def at(positions):
  return Context(positions_BL=positions)


def with_params(attention):
  x = np.float32(np.random.default_rng(2).normal(size=(B, L, D)))
  boxed = jax.eval_shape(
    functools.partial(attention.init, layer=FIRST), jax.random.key(0), x, HERE
  )['params']
  return boxed, tiny.random_like(nn.meta.unbox(boxed), seed=3), x


def run(attention, layer=FIRST):
  def apply(params, *args, rngs=None):
    return attention.apply({'params': params}, *args, layer=layer, rngs=rngs)

  return jax.jit(apply)


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
  plain = reference.of(NUM_HEADS=heads, NUM_KV_HEADS=kv_heads)
  seen = reference.seen(L, window)
  expected = reference.run(plain.attention, x, params, 0.0, seen, None, None)
  y, cache = run(attention)(params, x, HERE)
  assert cache is None
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('qkv', [True, False])
@pytest.mark.parametrize('out', [True, False])
def test_biases_are_where_they_are_asked_for(qkv, out):
  boxed, _, _ = with_params(module(full(), bias=(qkv, out)))
  found = {name for name, p in boxed.items() if 'bias' in p}
  assert found == ({'query', 'key', 'value'} if qkv else set()) | ({'out'} if out else set())


def test_cache_is_written_at_the_positions_of_each_row():
  attention = module(full())
  _, params, x = with_params(attention)
  rng = np.random.default_rng(4)
  before = [np.float32(rng.normal(size=(B, M, 2, K))) for _ in range(2)]
  positions = np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [6, 7, 8, 9, 10]])
  _, cache = run(attention)(params, x, at(positions), cache_of(*before))
  after = (np.einsum('bgkm->bmgk', cache.key_BGKM), np.einsum('bgmk->bmgk', cache.value_BGMK))
  for name, old, new in zip(('key', 'value'), before, after, strict=True):
    expected = old.copy()
    made = reference.run(reference.of().dense, x, params[name]).reshape(B, L, 2, K)
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
  whole, _ = run(attention)(params, x, HERE)
  cache = cache_of(noise, noise)
  # Filled up to position 6, then row b goes on from position 2 + 2 b; the
  # keys that stand behind it are stale.
  prompt = np.broadcast_to(np.arange(7), (B, 7))
  _, cache = run(attention)(params, x[:, :7], at(prompt), cache)
  places = 2 + 2 * np.arange(B)[:, None]
  now = np.take_along_axis(x, places[:, :, None], axis=1)
  y, _ = run(attention)(params, now, at(places), cache)
  expected = np.take_along_axis(np.asarray(whole), places[:, :, None], axis=1)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_dropout_needs_a_key_and_a_rate():
  without, attention = module(full()), module(full(), dropout=0.5)
  _, params, x = with_params(attention)
  apply = {a: run(a) for a in (without, attention)}

  def drop(attention, **rngs):
    return apply[attention](params, x, HERE, rngs=rngs)[0]

  plain = drop(without, dropout=jax.random.key(0))
  np.testing.assert_array_equal(drop(attention), plain)
  one, again, other = (drop(attention, dropout=jax.random.key(seed)) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, plain)
  assert not np.allclose(one, other)


# Scales ------------------------------------------------------------------


@pytest.mark.parametrize(
  'name, layer, expected',
  [
    ('rsqrt', 4, K**-0.5),
    ('rsqrt(size=3)', 4, 3**-0.5),
    ('rsqrt(softcap=0.5)', 4, K**-0.5),
    ('none', 4, 1.0),
    ('by_layer', 0, K**-0.5),
    ('by_layer', 4, K**-0.5 / 5),
  ],
)
@pytest.mark.parametrize('cross', [False, True])
def test_scale(name, layer, expected, cross):
  attention = module(full(), scale=name)
  _, params, x = with_params(attention)
  if cross:
    memory = np.float32(np.random.default_rng(7).normal(size=(B, M, D)))
    context, seen = Context(extra={'encoded': memory}), True
    attention = module(full(), CrossAttention, scale=name)
    y, _ = jax.jit(functools.partial(attention.apply, layer=layer))({'params': params}, x, context)
  else:
    y, _ = run(attention, np.int32(layer))(params, x, HERE)
    memory, seen = x, reference.seen(L)
  plain = reference.of(SCORE_BIAS=True)

  def by_hand(p, x, memory):
    p = reference.whole(p)
    q = plain.heads(plain.dense(x, p['query']), 6)
    k, v = (plain.heads(plain.dense(memory, p[name]), 6) for name in ('key', 'value'))
    scores = jnp.einsum('blhk,bmhk->bhlm', q, k) * expected
    if 'softcap' in name:
      scores = 0.5 * jnp.tanh(scores / 0.5)
    return plain.dense(plain.attend(0 * q, k, v, scores, seen, None), p['out'])

  wanted = reference.run(by_hand, params, x, memory)
  np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


# Who sees whom -----------------------------------------------------------


def test_padding_on_the_left_and_on_the_right():
  """What is padding has no influence, whatever stands there."""
  attention = module(full())
  _, params, x = with_params(attention)
  mask = np.ones((B, L), bool)
  mask[0, :2] = mask[1, 4:] = False
  context = Context(visibility=Visibility(key_mask_BM=mask))
  y, _ = run(attention)(params, x, context)
  seen = reference.seen(L) & mask[:, None, None]
  expected = reference.run(reference.of().attention, x, params, 0.0, seen, None, None)
  np.testing.assert_allclose(y[mask], expected[mask], rtol=1e-4, atol=1e-5)
  assert np.isfinite(y).all()
  noise = np.where(mask[:, :, None], x, 97.0)
  other, _ = run(attention)(params, noise, context)
  np.testing.assert_array_equal(other[mask], y[mask])


def test_cross_attention_reads_what_is_not_padding():
  _, params, x = with_params(module(local(2)))
  attention = module(local(2), CrossAttention)
  rng = np.random.default_rng(7)
  memory = np.float32(rng.normal(size=(B, M, D)))
  mask = np.ones((B, M), bool)
  mask[0, :4] = mask[1, 3:] = False
  apply = jax.jit(functools.partial(attention.apply, layer=FIRST))
  context = Context(extra={'encoded': memory, 'source_real': mask})
  y, _ = apply({'params': params}, x, context)
  # Neither the pattern nor the padding of x has a say here.
  hidden = Visibility(key_mask_BM=np.zeros((B, L), bool))
  same, _ = apply({'params': params}, x, context._replace(visibility=hidden))
  np.testing.assert_array_equal(y, same)
  expected = reference.run(
    reference.of().cross_attention, x, memory, reference.whole(params), mask[:, None, None], None
  )
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_a_cache_knows_no_padding_and_no_documents():
  """Refused rather than ignored: decoding takes prompts padded on the right."""
  attention = module(full())
  _, params, x = with_params(attention)
  cache = cache_of(*np.zeros((2, B, M, 2, K), np.float32))
  context = at(np.broadcast_to(np.arange(L), (B, L)))
  for given in (
    {'key_mask_BM': np.ones((B, L), bool)},
    {'segments_BL': np.zeros((B, L), np.int32)},
  ):
    with pytest.raises(AssertionError):
      run(attention)(params, x, context._replace(visibility=Visibility(**given)), cache)
