# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL's attention against its four terms, one after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn import attend as attend_lib
from gpt_jax.nn.attend import SCALES, Context, Visibility, cache_of
from gpt_jax.nn.attention import Attention
from gpt_jax.nn.backends import BACKENDS
from gpt_jax.nn.build import POSITIONS
from gpt_jax.nn.layers import INITS
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.spec import UsageError
from tests.support import reference, tiny

B, L, K, H, G = 3, 11, 7, 6, 2
D = 22  # pairs of sine and cosine
LAYER = np.int32(2)


def make(text, *, scale='rsqrt', bias=False):
  attention = Attention(
    spec.build('model.attention', text, PATTERNS),
    position=POSITIONS['transformer_xl'](),
    num_heads=H,
    num_kv_heads=G,
    head_size=K,
    scale=SCALES[scale](),
    backend=BACKENDS['reference'](),
    bias_in=bias,
    bias_out=bias,
    dropout=0.0,
    inits=INITS['normal']()(1),
    dtype=jnp.float32,
  )
  x = np.float32(np.random.default_rng(0).normal(size=(B, L, D)))
  init = functools.partial(attention.init, layer=LAYER)
  boxed = jax.eval_shape(init, jax.random.key(0), x, Context())['params']
  params = tiny.random_like(nn.meta.unbox(boxed), seed=1)
  return attention, boxed, params, x


def run(attention):
  return jax.jit(functools.partial(attention.apply, layer=LAYER))


def by_hand(p, x, pattern, *, scale=K**-0.5, ids=None):
  """Dai et al. (2019), section 3.3, with E = x.

  A_ij = E_i W_q W_kE E_j  (a)  +  E_i W_q W_kR R_(i-j)  (b)
       +  u W_kE E_j       (c)  +  v W_kR R_(i-j)        (d)
  """
  q = reference.dense(p['query'], x).reshape(B, L, H, K)
  k = reference.dense(p['key'], x).reshape(B, L, G, K)
  v = reference.dense(p['value'], x).reshape(B, L, G, K)
  u, w = p['content_bias'], p['position_bias']
  out = np.zeros((B, L, H, K))
  for b, h, i in np.ndindex(B, H, L):
    g = h // (H // G)
    keys = [
      j
      for j in range(L)
      if reference.sees(pattern, i, j)
      and (ids is None or ids[b, i] == ids[b, j])
    ]
    scores = []
    for j in keys:
      wave = reference.sinusoid(i - j, D, layout='halves')
      r = (wave @ p['relative']['kernel']).reshape(H, K)[h]
      terms = (
        q[b, i, h] @ k[b, j, g],
        q[b, i, h] @ r,
        u[h] @ k[b, j, g],
        w[h] @ r,
      )
      scores.append(sum(terms) * scale)
    for share, j in zip(reference.softmax(np.array(scores)), keys, strict=True):
      out[b, i, h] += share * v[b, j, g]
  return reference.dense(p['out'], out.reshape(B, L, H * K))


def test_parameters():
  _, boxed, params, _ = make('full')
  assert {*params} == {
    *('query', 'key', 'value', 'out', 'relative'),
    *('content_bias', 'position_bias'),
  }
  assert params['content_bias'].shape == params['position_bias'].shape == (H, K)
  assert boxed['content_bias'].names == ('heads', 'head')
  # The projection of the waves has no bias, whatever the others have.
  assert {*make('full', bias=True)[1]['relative']} == {'kernel'}
  assert boxed['relative']['kernel'].names == ('embed', 'heads')
  assert params['relative']['kernel'].shape == (D, H * K)


@pytest.mark.parametrize(
  'text, pattern, options',
  [
    ('full', ('full',), {}),
    ('local(window=3)', ('local', 3), {'bias': True}),
    ('strided(stride=3)', ('strided', 3), {'scale': 'none'}),
    ('fixed(stride=3)', ('fixed', 3, 1), {'scale': 'by_layer'}),
  ],
)
def test_the_four_terms(text, pattern, options, monkeypatch):
  """Also where the queries are taken in blocks."""
  attention, _, params, x = make(text, **options)
  scale = {'none': 1.0, 'by_layer': K**-0.5 / 3}.get(
    options.get('scale'), K**-0.5
  )
  expected = by_hand(
    reference.to_float64(params), np.float64(x), pattern, scale=scale
  )
  for block in (128, 4):
    monkeypatch.setattr(attend_lib, 'QUERY_BLOCK', block)
    y, _ = run(attention)({'params': params}, x, Context())
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_packed_documents():
  """Distances within a document do not depend on where it starts."""
  attention, _, params, x = make('full')
  ids = np.zeros((B, L), np.int32)
  ids[0, 4:] = ids[1, 7:] = 3
  context = Context(visibility=Visibility(segments_BL=ids))
  y, _ = run(attention)({'params': params}, x, context)
  expected = by_hand(
    reference.to_float64(params), np.float64(x), ('full',), ids=ids
  )
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  alone, _ = run(attention)({'params': params}, x[:1, 4:], Context())
  np.testing.assert_allclose(y[:1, 4:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('text', ['full', 'local(window=3)'])
def test_decoding_equals_the_full_pass(text):
  """A prompt of four, then token by token, in a longer cache full of noise."""
  attention, _, params, x = make(text)
  whole, _ = run(attention)({'params': params}, x, Context())
  noise = np.random.default_rng(5).normal(size=(B, L + 2, G, K))
  cache = cache_of(np.float32(noise), np.float32(noise))
  step = run(attention)
  for start, stop in ((0, 4), *((i, i + 1) for i in range(4, L))):
    places = np.broadcast_to(np.arange(start, stop), (B, stop - start))
    y, cache = step(
      {'params': params}, x[:, start:stop], Context(places), cache
    )
    np.testing.assert_allclose(y, whole[:, start:stop], rtol=1e-4, atol=1e-5)


def test_rows_may_stand_at_different_positions():
  attention, _, params, x = make('full')
  whole, _ = run(attention)({'params': params}, x, Context())
  zeros = jnp.zeros((B, L, G, K))
  places = np.broadcast_to(np.arange(L), (B, L))
  _, cache = run(attention)(
    {'params': params}, x, Context(places), cache_of(zeros, zeros)
  )
  at = np.array([[3], [10], [0]])
  now = np.take_along_axis(x, at[:, :, None], axis=1)
  y, _ = run(attention)({'params': params}, now, Context(at), cache)
  expected = np.take_along_axis(np.asarray(whole), at[:, :, None], axis=1)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_later_keys_have_no_distance():
  with pytest.raises(UsageError, match='needs causal attention'):
    make('bidirectional')
