# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores, their softmax, and blocks of queries within rows, against plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.nn import attend as attend_lib
from gpt_jax.core.nn import kv_cache
from gpt_jax.core.nn.attend import HIDDEN, Request, attend_within, plus_shared, weighted
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.core.nn.row import Visibility
from tests.support import reference

B, L, K, H, G = 3, 29, 7, 6, 2
Q, M = 5, 11  # queries and keys that are given as arrays
EVERYTHING = Visibility()
# Whether a query sees a key so far before it.
KINDS = {
  'full': lambda distance: distance >= 0,
  'bidirectional': lambda distance: distance > -L,
  'local(window=4)': lambda distance: (distance >= 0) & (distance < 4),
  'local(window=11)': lambda distance: (distance >= 0) & (distance < 11),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Rows of 29 in blocks of five, or of the window, and a rest."""
  monkeypatch.setattr(attend_lib, 'QUERY_BLOCK', 5)


def qkv(length=L):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, length, H, K))
  k, v = rng.normal(size=(2, B, length, G, K))
  return np.float32(q), np.float32(k), np.float32(v)


def by_hand(q, k, v, seen, *, scale=0.3, bias=0.0):
  """That of plain JAX: [B, L, H * K] to [B, L, H, K]."""
  plain = reference.of(SCORE_SCALE=scale, SCORE_BIAS=True)
  k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
  return reference.run(plain.attend, q, k, v, bias, seen, None).reshape(q.shape)


def run(text, *args, visibility=EVERYTHING, bias=None, scale=0.3):
  pattern = spec.build('model.attention', text, PATTERNS)

  def apply(q, k, v, visibility, bias):
    return attend_within(Request(q, k, v, pattern, visibility, scale, bias))

  return jax.jit(apply)(*args, visibility, bias)


def padding(length=L):
  """Left, right, on both sides and within: rows of different lengths."""
  mask = np.ones((B, length), bool)
  mask[0, :3] = mask[1, 23:] = mask[2, :7] = mask[2, 26:] = False
  mask[2, 13] = False
  return mask


def documents(length=L):
  """Documents that begin within blocks, and one that is a whole row."""
  ids = np.zeros((B, length), np.int32)
  ids[0, 4:] = 1
  ids[0, 17:] = 2
  ids[2, 13:] = 5
  return ids


@pytest.mark.parametrize(
  'text, seen',
  [(text, seen) for text in KINDS for seen in ('all', 'both')]
  + [('full', 'padding'), ('full', 'documents')]
  + [('local(window=11)', 'prefix'), ('bidirectional', 'whole mask')],
)
def test_blocks_of_queries(text, seen):
  """With a bias of each row; unseen rows excepted."""
  q, k, v = qkv()
  bias = np.random.default_rng(2).normal(size=(B, H, L, L))
  mask = padding() if seen in ('padding', 'both') else None
  ids = documents() if seen in ('documents', 'both') else None
  prefix = np.array([0, 8, L]) if seen == 'prefix' else None
  whole = None
  places = np.arange(L)
  shown = np.tile(KINDS[text](places[:, None] - places), (B, 1, 1))
  if seen == 'whole mask':
    whole = np.random.default_rng(3).random((B, L, L)) < 0.7
    whole |= np.eye(L, dtype=bool)
    shown &= whole
  if prefix is not None:
    shown |= (places[:, None] < places) & (places < prefix[:, None, None])
  if mask is not None:
    shown &= mask[:, None]
  if ids is not None:
    shown &= ids[:, :, None] == ids[:, None]
  expected = by_hand(q, k, v, shown[:, None], bias=bias)
  found = np.asarray(
    run(text, q, k, v, visibility=Visibility(mask, ids, prefix, whole), bias=np.float32(bias))
  )
  assert np.isfinite(found).all()
  any_key = shown.any(-1)
  blind = mask is not None and text != 'bidirectional'
  assert any_key.all() != blind
  np.testing.assert_allclose(found[any_key], expected[any_key], rtol=1e-4, atol=1e-5)


def test_blocks_are_as_large_as_said(monkeypatch):
  """Which keys each block of queries is given: no more than it may see."""
  seen = []

  def attend(q, k, v, **kwargs):
    seen.append((q.shape[1], k.shape[1]))
    return original(q, k, v, **kwargs)

  original = attend_lib.attend
  monkeypatch.setattr(attend_lib, 'attend', attend)

  def blocks(text, length):
    seen.clear()
    jax.eval_shape(functools.partial(run, text), *qkv(length))
    return [*seen]

  assert blocks('full', 13) == [(5, 5), (5, 10), (3, 13)]
  assert blocks('bidirectional', 13) == [(13, 13)]
  # Not as small as the window, where that is smaller than a block.
  assert blocks('local(window=4)', 13) == [(5, 5), (5, 8), (3, 6)]
  assert blocks('local(window=7)', 13) == [(5, 5), (5, 10), (3, 9)]
  # In long rows an eighth at a time: 41 in blocks of 6.
  assert blocks('full', 41) == [(6, 6 * i) for i in range(1, 7)] + [(5, 41)]
  # A window bounds the keys, and in long rows the block too.
  assert blocks('local(window=2)', 41)[1:-1] == [(5, 6)] * 7


def test_a_bias_for_all_rows():
  q, k, v = qkv()
  bias = np.random.default_rng(2).normal(size=(1, H, L, L))
  expected = by_hand(q, k, v, reference.seen(L), bias=bias)
  found = run('full', q, k, v, bias=np.float32(bias))
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_query_that_sees_nothing_gives_no_nan():
  """In the gradient neither: 0 * nan would spread."""
  q, k, v = qkv()
  mask = padding()

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1, 2))
  def gradients(q, k, v):
    out = run('full', q, k, v, visibility=Visibility(mask, documents()))
    return (out**2)[mask].sum()

  for gradient in gradients(q, k, v):
    assert np.isfinite(gradient).all()
    assert not np.any(gradient[~mask])


def test_bfloat16_scores_are_not_rounded():
  """Large scores, which bfloat16 would round by up to an eighth."""
  q, k, v = (np.asarray(jnp.asarray(x, 'bfloat16')) for x in qkv())
  wide = [np.float64(np.float32(x)) for x in (q, k, v)]
  # No power of two: queries must not be rounded when they are scaled either.
  scale = 5.3
  expected = by_hand(*wide, reference.seen(L), scale=scale)
  assert np.abs(np.einsum('blhk,bmk->bhlm', wide[0], wide[1][:, :, 0])).max() > 9
  found = np.float64(np.float32(run('full', q, k, v, scale=scale)))
  # What is left: probabilities and outputs are rounded to eight bits.
  bound = 2.0**-7 * np.abs(wide[2]).max()
  assert np.abs(found - expected).max() < bound


def test_bfloat16_gradients():
  """Those of scores are rounded once, to what their inputs are."""
  q, k, v = (np.asarray(jnp.asarray(x, 'bfloat16')) for x in qkv())

  def loss(q, k, v):
    out = run('local(window=11)', q, k, v)
    return (jnp.asarray(out, jnp.float32) ** 2).sum()

  gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
  exact = gradients(*(np.float32(x) for x in (q, k, v)))
  for found, expected in zip(gradients(q, k, v), exact, strict=True):
    assert found.dtype == jnp.bfloat16
    error = np.abs(np.float32(found) - expected)
    assert error.max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
  'text',
  [pytest.param(text, marks=[pytest.mark.slow] * (text != 'local(window=4)')) for text in KINDS],
)
def test_documents_have_no_gradient_to_each_other(text):
  q, k, v = qkv()
  ids = documents()
  second = ids == 1

  def loss(q, k, v):
    out = run(text, q, k, v, visibility=Visibility(None, ids))
    return (out**2)[second].sum()

  for gradient in jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v):
    assert not np.any(gradient[~second])
    assert np.any(gradient[second])


def given(seed: int):
  """Scores, values, and a gradient of the output."""
  rng = np.random.default_rng(seed)
  shapes = (B, G, Q, M), (B, G, M, K), (B, G, Q, K)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def visible(seed: int) -> np.ndarray:
  """Which keys each query sees; the second query of the first row sees none."""
  mask = np.random.default_rng(seed).random((B, 1, Q, M)) < 0.6
  mask[..., 0] = True
  mask[0, 0, 1] = False
  return mask


def in_parts(scores, v, mask, kept=None, keep=1.0):
  """The same in parts that JAX differentiates."""
  probs = jax.nn.softmax(jnp.where(mask, scores, HIDDEN), axis=-1)
  if kept is not None:
    probs = jnp.where(kept, probs / keep, 0)
  return jnp.einsum('BGQM,BGMK->BGQK', probs, v)


def test_equals_numpy():
  scores, v, _ = given(0)
  mask = visible(1)
  exp = np.exp(scores.astype(np.float64)) * mask
  probs = exp / exp.sum(-1, keepdims=True).clip(1e-300)
  probs[0, :, 1] = 1 / M  # of a query that sees nothing
  out = jax.jit(weighted)(scores, v, mask)
  np.testing.assert_allclose(out, probs @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('drop', [0.0, 0.3])
def test_gradients_equal_those_of_its_parts(drop):
  scores, v, grad = given(2)
  mask, kept = visible(3), None
  if drop:
    kept = np.random.default_rng(4).random(scores.shape) >= drop

  def gradients(function):
    def both(scores, v, grad):
      out, back = jax.vjp(lambda s, v: function(s, v, mask, kept, 1 - drop), scores, v)
      return out, *back(grad)

    return jax.jit(both)(scores, v, grad)

  found = gradients(weighted)
  for one, two in zip(found, gradients(in_parts), strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
  of_scores = np.asarray(found[1])
  assert not of_scores[np.broadcast_to(~mask, of_scores.shape)].any()


def test_keeps_one_array_of_the_scores_size():
  scores, v, _ = given(5)
  mask = visible(6)

  def kept(function):
    back = jax.eval_shape(lambda *x: jax.vjp(function, *x)[1], scores, v, mask)
    return sum(leaf.shape == scores.shape for leaf in jax.tree.leaves(back))

  assert kept(weighted) == 1
  assert kept(in_parts) > 1


def test_gradients_of_bfloat16_are_rounded_as_it_is():
  scores, v, grad = given(7)
  mask = visible(8)

  def gradients(dtype):
    values, given = jnp.asarray(v, dtype), jnp.asarray(grad, dtype)
    out, back = jax.vjp(lambda s, v: weighted(s, v, mask), scores, values)
    of_scores, of_values = back(given)
    assert (out.dtype, of_values.dtype) == (dtype, dtype)
    assert of_scores.dtype == jnp.float32
    return [np.asarray(x, np.float32) for x in (out, of_scores, of_values)]

  both = gradients(jnp.bfloat16), gradients(jnp.float32)
  for one, two in zip(*both, strict=True):
    # Eight bits, sums of eleven products.
    np.testing.assert_allclose(one, two, atol=0.06)


def test_sum_over_rows_of_a_shared_bias():
  scores, _, _ = given(9)
  shared = np.random.default_rng(10).normal(size=(G, Q, M)).astype(np.float32)
  weights = np.random.default_rng(11).normal(size=scores.shape)
  weights = weights.astype(np.float32)

  def total(x, bias):
    return jnp.sum(plus_shared(x, bias) * weights)

  value, (of_x, of_bias) = jax.value_and_grad(total, (0, 1))(scores, shared)
  np.testing.assert_allclose(value, np.sum((scores + shared) * weights), rtol=1e-5)
  np.testing.assert_array_equal(of_x, weights)
  np.testing.assert_allclose(of_bias, weights.sum(0), rtol=1e-5, atol=1e-6)


scaled = functools.partial(attend_lib.attend, scale=K**-0.5)


def across(heads, kv_heads):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, Q, heads, K))
  k, v = rng.normal(size=(2, B, M, kv_heads, K))
  return np.float32(q), np.float32(k), np.float32(v)


def random_mask(*shape):
  mask = np.random.default_rng(1).random(shape) < 0.4
  mask[..., 0] |= ~mask.any(-1)  # each query sees something
  return mask


@pytest.mark.parametrize('heads, kv_heads', [(5, 5), (6, 2), (6, 3), (5, 1)])
def test_attend(heads, kv_heads):
  q, k, v = across(heads, kv_heads)
  mask = random_mask(Q, M)
  expected = by_hand(q, k, v, mask, scale=K**-0.5)
  found = jax.jit(scaled)(q, k, v, mask=mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_attend_with_a_mask_for_each_row():
  q, k, v = across(6, 2)
  mask = random_mask(B, Q, M)
  assert not np.array_equal(mask[0], mask[1])
  expected = by_hand(q, k, v, mask[:, None], scale=K**-0.5)
  found = jax.jit(scaled)(q, k, v, mask=mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scores_are_bounded_with_their_bias():
  q, k, v = across(6, 2)
  bias = np.float32(np.random.default_rng(4).normal(size=(1, 6, Q, M)))
  bounded = functools.partial(scaled, mask=np.ones((Q, M), bool), bias=bias)
  scores = np.einsum('BLGJK,BMGK->BGJLM', np.float64(q).reshape(B, Q, 2, 3, K), k) * K**-0.5
  scores = 0.7 * np.tanh((scores.reshape(B, 6, Q, M) + bias) / 0.7)
  expected = by_hand(0 * q, k, v, True, bias=scores)
  found = jax.jit(functools.partial(bounded, softcap=0.7))(q, k, v)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert not np.allclose(found, jax.jit(bounded)(q, k, v), atol=1e-2)


@pytest.mark.parametrize('groups', [1, 3, 6])
@pytest.mark.parametrize('rows_of', ['mask', 'bias', 'both', 'neither'])
def test_a_cache_a_few_heads_at_a_time(monkeypatch, groups, rows_of):
  """In parts of a group each, as `attend` does all at once."""
  monkeypatch.setattr(kv_cache, '_SCORES', 2 * L * M * H // groups)
  rng = np.random.default_rng(groups)
  q = rng.normal(size=(B, L, H, K))
  k, v = rng.normal(size=(2, B, M, groups, K))
  mask = rng.random((B if rows_of in ('mask', 'both') else 1, L, M)) < 0.7
  bias = rng.normal(size=(B if rows_of in ('bias', 'both') else 1, H, L, M))
  how = {'scale': 0.3, 'softcap': 5.0}
  args = [np.float32(x) for x in (q, k, v, bias)]

  def attend(q, k, v, bias):
    return attend_lib.attend(q, k, v, bias=bias, mask=mask, **how)

  def to_cache(q, k, v, bias):
    cache = kv_cache.cache_of(k, v)
    return kv_cache.attend_to_cache(
      q, cache.key_BGKM, cache.value_BGMK, bias=bias, mask=mask, **how
    )

  assert 'scan' in str(jax.make_jaxpr(to_cache)(*args))
  np.testing.assert_allclose(jax.jit(to_cache)(*args), jax.jit(attend)(*args), atol=1e-6)


def test_what_is_masked_has_no_gradient():
  q, k, v = across(2, 2)
  mask = random_mask(Q, M)
  unseen = np.flatnonzero(~mask.any(0))
  mask[:, 7], mask[:, 3] = False, True

  @jax.jit
  def gradients(k, v):
    square = lambda k, v: jnp.sum(scaled(q, k, v, mask=mask) ** 2)  # noqa: E731
    return jax.grad(square, (0, 1))(k, v)

  d_k, d_v = jax.device_get(gradients(k, v))
  for j in {7, *unseen.tolist()}:
    assert not np.any(d_k[:, j]) and not np.any(d_v[:, j])
  assert np.all(np.any(d_v[:, 3], axis=(1, 2)))


def test_large_scores_do_not_overflow():
  q, k, v = across(2, 2)
  found = jax.jit(scaled)(1e4 * q, 1e4 * k, v, mask=np.ones((Q, M), bool))
  # So large, the softmax is a maximum.
  best = np.argmax(np.einsum('BLHK,BMHK->BLHM', q, k), axis=-1)
  for b, i, h in np.ndindex(B, Q, 2):
    np.testing.assert_allclose(found[b, i, h], v[b, best[b, i, h], h])


def test_dropout_acts_on_probabilities():
  """With one visible key its probability, 1, is dropped or doubled."""
  heads = 101
  q, k, v = across(heads, heads)
  mask = np.zeros((Q, M), bool)
  mask[:, 3] = True
  rows_B = jnp.arange(B, dtype=jnp.uint32)
  dropout = AttentionDropout(0.5, jnp.uint32(0), rows_B)
  out = jax.jit(lambda: scaled(q, k, v, mask=mask, dropout=dropout))()
  scale = out / np.broadcast_to(v[:, 3][:, None], out.shape)
  dropped = np.isclose(scale, 0)
  assert np.all(dropped | np.isclose(scale, 2))
  # A head is dropped as a whole, at half of the 3 * 5 * 101 places.
  assert np.all(dropped.all(-1) == dropped.any(-1))
  assert 0.45 < np.mean(dropped) < 0.55
