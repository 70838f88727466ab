# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention within rows, taken in blocks of queries, against loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn import attend as attend_lib
from gpt_jax.nn.attend import Request, Visibility, attend_within
from gpt_jax.nn.masks import PATTERNS
from tests.support import reference

B, L, K, H, G = 3, 29, 7, 6, 2
EVERYTHING = Visibility()
# The call-string, and the reference's name.
KINDS = {
  'full': ('full',),
  'bidirectional': ('bidirectional',),
  'local(window=4)': ('local', 4),
  'local(window=11)': ('local', 11),
  'strided(stride=3)': ('strided', 3),
  'fixed(stride=5, summary=2)': ('fixed', 5, 2),
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
  """With a bias of each row; unseen rows excepted, they equal the loop."""
  q, k, v = qkv()
  bias = np.random.default_rng(2).normal(size=(B, H, L, L))
  mask = padding() if seen in ('padding', 'both') else None
  ids = documents() if seen in ('documents', 'both') else None
  # Each document has blocks of its own.
  start = np.zeros((B, L), int)
  if ids is not None:
    start = np.array([[list(row).index(x) for x in row] for row in ids])

  prefix = np.array([0, 8, L]) if seen == 'prefix' else None
  whole = None
  if seen == 'whole mask':
    whole = np.random.default_rng(3).random((B, L, L)) < 0.7
    whole |= np.eye(L, dtype=bool)

  def sees(b, i, j):
    within = reference.sees(KINDS[text], i - start[b, i], j - start[b, i])
    if prefix is not None:
      within |= i < j < prefix[b]
    return (
      within
      and (whole is None or whole[b, i, j])
      and (mask is None or mask[b, j])
      and (ids is None or ids[b, i] == ids[b, j])
    )

  expected = reference.attend(
    *(np.float64(x) for x in (q, k, v)),
    sees,
    scale=0.3,
    bias=lambda *index: bias[index],
  )
  found = np.asarray(
    run(
      text,
      *(q, k, v),
      visibility=Visibility(mask, ids, prefix, whole),
      bias=np.float32(bias),
    )
  )
  assert np.isfinite(found).all()
  any_key = np.array(
    [[any(sees(b, i, j) for j in range(L)) for i in range(L)] for b in range(B)]
  )
  blind = mask is not None and text != 'bidirectional'
  assert any_key.all() != blind
  np.testing.assert_allclose(
    found[any_key], expected[any_key], rtol=1e-4, atol=1e-5
  )


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
  assert blocks('strided(stride=3)', 13) == blocks('full', 13)
  assert blocks('fixed(stride=3)', 13) == blocks('full', 13)
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
  expected = reference.attend(
    *(np.float64(x) for x in (q, k, v)),
    lambda b, i, j: j <= i,
    scale=0.3,
    bias=lambda b, h, i, j: bias[0, h, i, j],
  )
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
  expected = reference.attend(*wide, lambda b, i, j: j <= i, scale=scale)
  assert (
    np.abs(np.einsum('blhk,bmk->bhlm', wide[0], wide[1][:, :, 0])).max() > 9
  )
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
  [
    pytest.param(text, marks=[pytest.mark.slow] * (text != 'local(window=4)'))
    for text in KINDS
  ],
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
