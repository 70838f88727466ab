# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ring attention by splash, in interpret mode, against the reference."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from gpt_jax.core import sharding, spec
from gpt_jax.core.nn import backends, fast_backends, layout, ring_kernel
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.nn.zigzag import zigzag
from tests.support import tiny
from tests.support.cases import slow

H, G, K = 4, 2, 64
RULES = sharding.parse_rules(base.get_config().mesh.rules)


def request(length, pattern='full', rows=2, **seen):
  rng = np.random.default_rng(length)
  q = rng.normal(size=(rows, length, H, K)).astype(np.float32)
  k, v = rng.normal(size=(2, rows, length, G, K)).astype(np.float32)
  seen = {name: jnp.asarray(x) for name, x in seen.items()}
  built = spec.build('model.attention', pattern, PATTERNS)
  return Request(q, k, v, built, Visibility(**seen), K**-0.5)


def documents(length, rows=2):
  """One that begins within a block, one as long as a chunk, and a whole row."""
  ids = np.zeros((rows, length), np.int32)
  ids[0, 37:] = 1
  ids[0, length // 2 :] = 2
  return ids


def results(text, asked, weight=1.0):
  """The output, and the gradients of a function of it, in the row's order."""
  backend = spec.build('model.attention_backend', text, BACKENDS)

  def loss(q, k, v):
    found = backends.attend_rows(asked._replace(q_BLHK=q, k_BLGK=k, v_BLGK=v), backend=backend)
    found *= weight
    return jnp.sum(found**2), found

  run = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
  (_, found), gradients = jax.jit(run)(*asked[:3])
  return [found, *gradients]


@pytest.fixture
def calls(monkeypatch):
  """Of the kernels: queries, keys, and whether they are a device's own."""
  calls, original = set(), ring_kernel._attend

  def attend(kernel, queries, keys, *, own=False):
    calls.add((queries.q_BLGRK.shape[1], keys.k_BMGK.shape[1], own))
    return original(kernel, queries, keys, own=own)

  monkeypatch.setattr(ring_kernel, '_attend', attend)
  return calls


@pytest.mark.parametrize(
  'context, length, pattern, permuted, packed, softcap, expected',
  [
    slow(2, 512, 'full', True, True, 0.0, {(128, 128)}),
    slow(4, 1024, 'full', True, True, 0.5, {(128, 128)}),
    slow(4, 1024, 'full', True, False, 0.0, {(256, 128), (128, 256)}),
    slow(2, 256, 'full', False, True, 0.0, {(128, 128)}),
    (4, 512, 'bidirectional', False, False, 0.0, {(128, 128)}),
  ],
)
def test_the_reference(context, length, pattern, permuted, packed, softcap, expected, calls):
  seen = {'segments_BL': documents(length)} if packed else {}
  asked = request(length, pattern, **seen)._replace(softcap=softcap)
  wanted = results('reference', asked)
  order = zigzag(length, context) if permuted else np.arange(length)
  seen = {name: jnp.asarray(x[:, order]) for name, x in seen.items()}
  if permuted:
    seen['places_1L'] = jnp.asarray(order[None])
  there = [x[:, order] for x in asked[:3]]
  asked = Request(*there, *asked[3:])._replace(visibility=Visibility(**seen))
  with sharding.use(tiny.make_mesh(1, 1, 2, context=context), RULES):
    found = results('ring(interpret=True)', asked)
  for ours, theirs in zip(found, wanted, strict=True):
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs[:, order], rtol=1e-4, atol=1e-5)
  here = length // context
  assert calls == {(here, here, True)} | {(*x, False) for x in expected}


@pytest.mark.slow
def test_chunks_without_a_common_document_are_not_visited():
  """Keys that are no numbers would show, masked or not."""
  length = 512
  chunk = np.arange(length)[None] // 128  # each a document
  asked = request(length, rows=1, segments_BL=chunk)
  expected = results('reference', asked)
  order = zigzag(length, 2)  # chunks 0 and 3, 1 and 2
  odd = np.where(chunk == 0, np.nan, 0)[..., None, None].astype(np.float32)
  q, k, v = (x[:, order] for x in (asked[0], asked[1] + odd, asked[2] + odd))
  seen = Visibility(segments_BL=jnp.asarray(chunk[:, order]), places_1L=jnp.asarray(order[None]))
  asked = asked._replace(q_BLHK=q, k_BLGK=k, v_BLGK=v, visibility=seen)
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    found = results('ring(interpret=True)', asked)
  for ours, theirs in zip(found, expected, strict=True):
    assert np.isnan(ours[:, :128]).any()
    np.testing.assert_allclose(ours[:, 256:], theirs[:, 128:384], rtol=1e-4, atol=1e-5)


def test_padding_is_not_seen():
  real = np.arange(256)[None] < np.array([[256], [200]])
  asked = request(256, 'bidirectional', key_mask_BM=real)
  weight = real[..., None, None]
  wanted = results('reference', asked, weight)
  with sharding.use(tiny.make_mesh(1, 2, 1, context=2), RULES):
    found = results('ring(interpret=True)', asked, weight)
  for ours, theirs in zip(found, wanted, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
  assert not np.any(found[2][1, 200:])  # the keys' gradients


@pytest.mark.parametrize(
  'pattern, length, name',
  [
    ('full', 1024, 'ring'),
    ('local(window=100)', 1024, 'all_gather'),
    ('full', 512, 'all_gather'),  # chunks of 64
    ('bidirectional', 1024, 'all_gather'),
  ],
)
def test_auto_takes_it_where_heads_do_not_suffice(pattern, length, name, monkeypatch):
  monkeypatch.setattr(layout, 'platform', lambda: 'tpu')
  asked = request(length, pattern)
  if pattern == 'bidirectional':
    bias = jnp.zeros((1, H, length, length))
    asked = asked._replace(bias=bias)
  else:
    places = jnp.asarray(zigzag(length, 4)[None])
    asked = asked._replace(visibility=Visibility(places_1L=places))
  with sharding.use(tiny.make_mesh(1, 1, 2, context=4), RULES):
    assert fast_backends.pick(asked).name == name


@pytest.mark.parametrize(
  'length, why',
  [
    (2048, None),
    (1000, 'of each chunk of a row, the length 125 is not a multiple of 128'),
    # Blocks of 128 are the only ones: 521 of a chunk are too many, and 514 of
    # what a device has.
    (128 * 521 * 8, 'of each chunk of a row, .* does not divide into 512'),
    (128 * 257 * 8, '65792 tokens on a device are more than 512 blocks of 128'),
  ],
)
def test_too_long(length, why):
  shape = jax.ShapeDtypeStruct((1, length, H, K), np.float32)
  places = jax.ShapeDtypeStruct((1, length), np.int32)
  asked = request(128)._replace(q_BLHK=shape, visibility=Visibility(places_1L=places))
  with sharding.use(tiny.make_mesh(1, 1, 1, context=4), RULES):
    found = ring_kernel.obstacle(asked, 512)
  assert found is None if why is None else re.search(why, found)
