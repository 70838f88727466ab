# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention within rows that are split over devices."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from gpt_jax.core import ring_order, sharding, spec
from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.backends import attend_rows
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.nn.zigzag import zigzag, zigzag_places
from gpt_jax.core.spec import UsageError
from tests.support import tiny
from tests.support.cases import slow

B, L, H, G, K = 2, 24, 4, 2, 3
RULES = sharding.parse_rules(base.get_config().mesh.rules)
rng = np.random.default_rng(0)
Q, DY = rng.normal(size=(2, B, L, H, K)).astype(np.float32)
KEYS, VALUES = rng.normal(size=(2, B, L, G, K)).astype(np.float32)
BIAS = rng.normal(size=(1, H, L, L)).astype(np.float32)
DOCUMENTS = np.sort(rng.integers(0, 3, (B, L)), axis=1).astype(np.int32)
REAL = np.arange(L)[None] < np.array([[L], [17]])
PREFIX = np.array([5, 18], np.int32)
SEES = rng.random((B, L, L)) < 0.5


def attend(backend, pattern, visibility, bias, softcap, order=None, dropout=None):
  """What the layer computes, and the gradients of sum(y DY).

  `order`: of the tokens; what is returned is in the order of the row.
  """
  inputs = {'q': Q, 'k': KEYS, 'v': VALUES}
  if bias is not None:
    inputs['bias'] = bias
  if order is not None:
    back = np.argsort(order)
    given = {n: x for n, x in visibility._asdict().items() if x is not None}
    given = {n: x if n == 'prefix_B' else x[:, order] for n, x in given.items()}
    if 'visible_BLM' in given:
      given['visible_BLM'] = given['visible_BLM'][:, :, order]
    visibility = Visibility(**given, places_1L=order[None])

  def total(inputs):
    q, k, v = (inputs[name] for name in 'qkv')
    bias = inputs.get('bias')
    if order is not None:
      q, k, v = (x[:, order] for x in (q, k, v))
      bias = None if bias is None else bias[:, :, order][..., order]
    request = Request(
      q,
      k,
      v,
      spec.build('model.attention', pattern, PATTERNS),
      jax.tree.map(jnp.asarray, visibility),
      0.3,
      bias,
      dropout,
      softcap=softcap,
    )
    built = spec.build('model.attention_backend', backend, BACKENDS)
    y = attend_rows(request, backend=built)
    y = y if order is None else y[:, back]
    seen = visibility.key_mask_BM
    # Nobody reads what padding asks for.
    y *= 1 if seen is None or order is not None else seen[..., None, None]
    return jnp.sum(y * DY), y

  return jax.jit(jax.grad(total, has_aux=True))(inputs)


def check(backend, sizes, pattern, visibility, bias, softcap, permuted):
  expected = attend('reference', pattern, visibility, bias, softcap)
  order = zigzag(L, sizes['context']) if permuted else None
  tensor = sizes.get('tensor', 1)
  with sharding.use(tiny.make_mesh(1, 2, tensor, context=sizes['context']), RULES):
    found = attend(backend, pattern, visibility, bias, softcap, order)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


@pytest.mark.parametrize(
  'backend, sizes, permuted',
  [
    ('ring', {'context': 2}, True),
    ('all_gather', {'context': 2, 'tensor': 2}, True),
    slow('ulysses', {'context': 2}, False),
    slow('ring(block=2)', {'context': 4}, False),
  ],
)
def test_documents_with_a_bias_and_a_softcap(backend, sizes, permuted):
  seen = Visibility(segments_BL=DOCUMENTS)
  check(backend, sizes, 'full', seen, BIAS, 2.0, permuted)


DROPOUT = AttentionDropout(0.3, jnp.uint32(3_000_000_019), np.array([5, 1_000_003], np.uint32))


@pytest.mark.parametrize(
  'backend, sizes',
  [
    ('ring(block=4)', {'context': 4}),
    ('all_gather', {'context': 2, 'tensor': 2}),
    ('ulysses', {'context': 2, 'tensor': 2}),
  ],
)
def test_dropout_is_that_of_one_device(backend, sizes):
  given = 'full', Visibility(segments_BL=DOCUMENTS), BIAS, 0.0
  expected = attend('reference', *given, dropout=DROPOUT)
  tensor, context = sizes.get('tensor', 1), sizes['context']
  with sharding.use(tiny.make_mesh(1, 2, tensor, context=context), RULES):
    found = attend(backend, *given, dropout=DROPOUT)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


def test_another_order_of_devices(monkeypatch):
  """As on a TPU, whose neighbours are others than those of the axis."""
  asked = []

  def order(axes):
    asked.append(axes)
    return (0, 2, 3, 1)

  monkeypatch.setattr(ring_order, 'order', order)
  seen = Visibility(segments_BL=DOCUMENTS)
  check('ring', {'context': 4}, 'full', seen, BIAS, 0.0, True)
  assert set(asked) == {('context',)}


@pytest.mark.slow
@pytest.mark.parametrize(
  'backend, pattern, seen, permuted',
  [
    # The keys of one neighbour are enough.
    ('ring', 'local(window=6)', Visibility(), False),
    ('ring(block=3)', 'full', Visibility(), True),
    ('ring', 'bidirectional', Visibility(REAL, visible_BLM=SEES), False),
    ('all_gather', 'full', Visibility(prefix_B=PREFIX), True),
  ],
)
def test_patterns(backend, pattern, seen, permuted):
  check(backend, {'context': 4}, pattern, seen, None, 0.0, permuted)


@pytest.mark.parametrize(
  'backend, collectives',
  [
    ('all_gather', {'all_gather': 3, 'reduce_scatter': 2}),
    # Keys, values and places to the next device; and their gradients, home.
    ('ring', {'ppermute': 3 + 3 + 2 + 2}),
    ('ulysses', {'all_to_all': 8}),
  ],
)
def test_what_is_sent(backend, collectives):
  """Traced only."""

  def total(x):
    pattern = spec.build('model.attention', 'full', PATTERNS)
    built = spec.build('model.attention_backend', backend, BACKENDS)
    return jnp.sum(attend_rows(Request(*x, pattern, Visibility(), 0.3), backend=built))

  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    text = str(jax.make_jaxpr(jax.grad(total))((Q, KEYS, VALUES)))
  names = 'all_gather|reduce_scatter|ppermute|all_to_all'
  sent = re.findall(rf'= ({names})\[', text)
  for name, number in collectives.items():
    assert sent.count(name) == number, (name, sent)


@pytest.mark.parametrize('backend', ['all_gather', 'ring'])
def test_nothing_as_large_as_the_scores_is_kept(backend):
  """Of layers that are computed again in the backward pass; traced only.

  Masks are the same in each: JAX would keep them outside of the loop.
  """
  pattern = spec.build('model.attention', 'full', PATTERNS)
  built = spec.build('model.attention_backend', backend, BACKENDS)

  def layer(q, _):
    request = Request(q, KEYS, VALUES, pattern, Visibility(), 0.3)
    return attend_rows(request, backend=built), None

  def total(q):
    return jnp.sum(jax.lax.scan(jax.checkpoint(layer), q, None, length=2)[0])

  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    jaxpr = jax.make_jaxpr(jax.grad(total))(Q)
  sizes = [x.aval.size for e in jaxpr.jaxpr.eqns for x in e.outvars]
  assert 2 * Q.size <= max(sizes) < B * H * L * L


def test_refused():
  request = Request(
    Q, KEYS, VALUES, spec.build('model.attention', 'full', PATTERNS), Visibility(), 0.3
  )
  ulysses = BACKENDS['ulysses']()
  with sharding.use(tiny.make_mesh(1, 1, 1, context=8), RULES):
    with pytest.raises(UsageError, match=r'ulysses: .*=4 does not div'):
      attend_rows(request, backend=ulysses)
    odd = Request(*(x[:, :20] for x in request[:3]), *request[3:])
    with pytest.raises(UsageError, match=r'ring: 20 \(length\) does not div'):
      attend_rows(odd, backend=BACKENDS['ring']())
    with pytest.raises(UsageError, match=r'splash: .* splits rows'):
      splash = BACKENDS['splash'](interpret=True)
      attend_rows(request, backend=splash)


# Which device has which tokens of a row, and of which models.


def test_each_device_has_an_early_and_a_late_chunk():
  found = zigzag(12, 3)
  assert [*found] == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
  # Each query sees the keys up to its own: as many on each device.
  work = (found + 1).reshape(3, -1).sum(axis=1)
  assert [*work] == [26] * 3


@pytest.mark.parametrize(
  'changes, length',
  [
    ({'attention': 'local(window=3)'}, 8),
    ({'attention': 'bidirectional'}, 8),
    ({'attention_backend': 'ulysses'}, 8),
    ({'attention_backend': 'reference'}, 8),
    ({'num_encoder_layers': 1}, 8),
    ({'ffn': 'switch(num_experts=2)'}, 8),
    ({'dropout': 'rates(residual=0.1)'}, 8),
    ({}, 6),
  ],
)
def test_rows_in_order(changes, length):
  """Where all devices have as much to do, or drops go by the order."""
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    assert zigzag_places(tiny.model(**changes), (8, length)) is None


def test_rows_of_causal_models():
  model = tiny.model(attention='full, local(window=3)', num_layers=4)
  assert zigzag_places(model, (8, 8)) is None  # on one device
  with sharding.use(tiny.make_mesh(1, 1, 2, context=2), RULES):
    np.testing.assert_array_equal(zigzag_places(model, (8, 8)), zigzag(8, 2))


@pytest.mark.parametrize(
  'changes, length, ordered',
  [
    ({}, 256, True),
    ({'position': 'alibi'}, 256, False),
    ({}, 200, False),
    ({'attention_backend': 'all_gather'}, 256, False),
    ({'num_heads': 3, 'num_kv_heads': 1}, 256, False),
  ],
)
def test_rows_that_splash_reads_stay_in_order(changes, length, ordered, monkeypatch):
  fields = {'head_size': 64, 'context_length': 256, **changes}
  model = tiny.model(**fields)
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), RULES):
    assert zigzag_places(model, (8, length)) is not None
    monkeypatch.setattr(layout, 'platform', lambda: 'tpu')
    assert (zigzag_places(model, (8, length)) is None) == ordered
