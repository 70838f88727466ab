# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which attention backend is taken, what each refuses, and what is logged."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from gpt_jax import hf
from gpt_jax.core import sharding, spec
from gpt_jax.core.nn import backends, fast_backends, layout
from gpt_jax.core.nn.attend import ByDistance, Request
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.distance_products import DistanceProducts, Products
from gpt_jax.core.nn.masks import Order, Tokens
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.spec import UsageError
from tests.support import tiny

B, L, K = 4, 256, 64
EVERYTHING = Visibility()
SPLASH = 'splash(block=128, interpret=True)'
FLASH = 'flash(interpret=True)'
RULES = sharding.parse_rules(base.get_config().mesh.rules)


def qkv(heads=4, kv_heads=2, *, rows=B, length=L, head_size=K, dtype='float32'):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(rows, length, heads, head_size))
  k, v = rng.normal(size=(2, rows, length, kv_heads, head_size))
  return tuple(jnp.asarray(x, dtype) for x in (q, k, v))


def backend(text):
  return spec.build('model.attention_backend', text, BACKENDS)


def pattern(text):
  return spec.build('model.attention', text, PATTERNS)


def request(
  heads=(4, 2),
  *,
  attention='full',
  seen=EVERYTHING,
  bias=None,
  drop=0,
  softcap=0.0,
  keys=None,
  before=0,
  **sizes,
):
  q, k, v = qkv(*heads, **sizes)
  inputs = q[:, before:], k, v  # the first keys are of a memory
  dropout = None
  if drop:
    rows_B = jnp.arange(len(inputs[0]), dtype=jnp.uint32)
    dropout = AttentionDropout(drop, jnp.uint32(0), rows_B)
  asked = Request(*inputs, pattern(attention), seen, 0.3, bias, dropout)
  return asked._replace(softcap=softcap, keys=keys)


def attend(text, asked):
  """As the layer does."""
  return backends.attend_rows(asked, backend=backend(text))


DOCUMENTS = Visibility(None, np.zeros((B, L), np.int32))
PREFIXES = Visibility(prefix_B=np.zeros(B, np.int32))
MASKS = Visibility(visible_BLM=np.ones((B, L, L), bool))
ORDER = Visibility(order=Order(*np.zeros((2, B, L), np.int32)))
BIAS = np.zeros((1, 4, L, L), np.float32)
STRIP = ByDistance(np.zeros((4, 2 * L - 1), np.float32))
PRODUCTS = DistanceProducts(
  Products(*(np.ones(shape, np.float32) for shape in ((B, L, 4, K), (L, 4, K))))
)
# What the kernels cannot do, and why they say so.
PLAIN = [
  ({'bias': BIAS}, 'model.position adds a bias for each pair of tokens'),
  ({'drop': 0.1}, 'model.dropout drops'),
  ({'attention': 'bigbird'}, 'model.attention holds bigbird, which lists bl'),
  ({'seen': PREFIXES}, 'rows have a prefix'),
  ({'seen': MASKS}, 'rows have a mask of their own'),
  ({'seen': ORDER}, 'rows have an order of their own'),
  ({'bias': STRIP}, 'model.position adds a bias by distance'),
  ({'bias': PRODUCTS}, 'model.position adds products with vectors of dist'),
  ({'before': 56}, 'a memory precedes the rows'),
  ({'keys': Tokens(np.arange(L)[None])}, 'a decoder attends to the encoder'),
]


@pytest.mark.parametrize(
  'changes, reason',
  [
    *PLAIN,
    ({'length': 200}, 'the length 200 is not a multiple of 128'),
    ({'head_size': 32}, 'model.head_size=32 is below 64 or no multiple of 32'),
    ({'head_size': 72}, 'model.head_size=72'),
  ],
)
def test_splash_refuses(changes, reason):
  with pytest.raises(UsageError) as e:
    attend(SPLASH, request(**changes))
  assert str(e.value).startswith(f'model.attention_backend=splash: {reason}')
  assert str(e.value).endswith('; change that, or take auto or reference')


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'bias': BIAS}, 'model.position adds a bias'),
    ({'attention': 'bigbird'}, 'model.attention holds bigbird, which lists bl'),
    ({'seen': MASKS}, 'rows have a mask of their own'),
    ({'length': 63}, 'rows of 63 tokens are shorter than 64'),
    ({'length': 4098}, 'rows of 4098 tokens are longer than 4096: the gradient of a head would '),
    (
      {'length': 1026, 'bias': PRODUCTS},
      'rows of 1026 tokens are longer than 1024: the vectors of their distanc',
    ),
  ],
)
def test_flash_refuses(changes, reason):
  sizes = {'rows': 1} if changes.get('length', 0) > 200 else {}
  with pytest.raises(UsageError, match=f'backend=flash: {reason}'):
    backends.check(backend(FLASH), request(**changes, **sizes))


@pytest.mark.parametrize('text', ['splash', 'cudnn', 'flash'])
def test_a_backend_for_other_devices_is_refused(text):
  with pytest.raises(UsageError, match=f'{text}: it needs a .PU, and the dev'):
    attend(text, request())


def test_what_does_not_divide_over_the_mesh_is_refused():
  with sharding.use(tiny.make_mesh(2, 1, 4), RULES):
    with pytest.raises(UsageError, match=r'3 \(batch\) .* the 2 devices of'):
      attend(SPLASH, request(rows=3))
    with pytest.raises(UsageError, match=r'6 \(heads\) .* mesh.rules.heads'):
      attend(SPLASH, request((6, 2)))


@pytest.fixture
def on(monkeypatch):
  """Makes the devices look like others."""

  def on(platform, capability=9.0):
    monkeypatch.setattr(layout, 'platform', lambda: platform)
    monkeypatch.setattr(fast_backends, '_capability', lambda: capability)

  return on


@pytest.mark.parametrize(
  'changes, reason',
  [
    *PLAIN,
    ({'dtype': 'float32'}, 'model.dtype=float32 is neither'),
    ({'head_size': 68}, 'model.head_size=68 is above 128 or no multiple of 8'),
    ({'head_size': 136}, 'model.head_size=136'),
    ({'length': 63}, 'rows have an odd number of tokens, 63'),
    ({'softcap': 50.0}, 'model.attention_scale has a softcap'),
  ],
)
def test_cudnn_refuses(changes, reason, on):
  on('gpu', 8.6)
  with pytest.raises(UsageError) as e:
    attend('cudnn', request(**{'dtype': 'bfloat16', **changes}))
  assert str(e.value).startswith(f'model.attention_backend=cudnn: {reason}')


def test_cudnn_by_the_gpu(on):
  asked = request(head_size=256, dtype='bfloat16')
  on('gpu', 9.0)
  assert backends.refusal(fast_backends.cudnn(), asked) is None
  on('gpu', 7.5)
  assert '7.5 is below 8.0' in str(backends.refusal(fast_backends.cudnn(), asked))


@pytest.mark.parametrize(
  'text, why',
  [
    ('splash(block=100)', 'block=100 is not a multiple of 128'),
    ('splash(block=0)', 'block=0 must be at least 1'),
    ('flash(block=100)', 'block=100 is not a multiple of 128'),
    ('best', "unknown 'best'; one of all_gather, auto, blocks, cudnn, flash, ref"),
  ],
)
def test_arguments(text, why):
  with pytest.raises(UsageError, match=f'model.attention_backend.*{why}'):
    backend(text)


@pytest.fixture
def lines(monkeypatch):
  """What is logged, as if nothing had been."""
  lines = []
  fast_backends.log_once.cache_clear()
  monkeypatch.setattr(fast_backends.log, 'info', lines.append)
  yield lines
  fast_backends.log_once.cache_clear()


def test_auto_on_cpu(lines):
  asked = request()
  assert fast_backends.pick(asked).name == 'reference'
  assert np.array_equal(attend('auto', asked), attend('reference', asked))
  assert lines == ['attention: reference, on cpu']


def test_auto_on_tpu(lines, on):
  on('tpu')
  assert fast_backends.pick(request()).name == 'splash'
  masked = request(seen=MASKS)
  assert fast_backends.pick(masked).name == fast_backends.pick(masked).name == 'reference'
  assert np.array_equal(attend('auto', masked), attend('reference', masked))
  across = {'keys': Tokens(np.arange(L)[None])}
  for changes in (
    {'length': 100},
    {'drop': 0.1},
    {'bias': STRIP},
    {'seen': PREFIXES},
    {'bias': PRODUCTS},
    {'bias': PRODUCTS, 'before': 56},
    across,
    {'seen': ORDER, 'attention': 'bidirectional'},
  ):
    assert fast_backends.pick(request(**changes)).name == 'flash'
  assert fast_backends.pick(request(bias=BIAS)).name == 'reference'
  short = request(length=60, **across)
  assert fast_backends.pick(short).name == 'reference'
  mask = 'rows have a mask of their own'
  bias = 'model.position adds a bias for each pair of tokens'
  assert lines == [
    'attention: splash',
    f'attention: reference, not splash: {mask}; not flash: {mask}',
    'attention: flash',
    'cross-attention: flash',
    f'attention: reference, not splash: {bias}; not flash: {bias}',
    'cross-attention: reference, not splash: a decoder attends to the '
    "encoder's output; not flash: rows of 60 tokens are shorter than 64",
  ]


def test_products_for_those_that_take_none():
  """They get them as one number for each pair."""
  asked = request(bias=PRODUCTS)
  whole = request(bias=PRODUCTS.whole(asked))
  expected = attend('reference', whole)
  for text in ('reference', 'auto', 'ring'):
    np.testing.assert_allclose(attend(text, asked), expected, rtol=0, atol=1e-5)


def test_who_takes_a_bias_by_distance(on):
  """Others get it as one number for each pair."""
  asked = request(bias=STRIP)
  assert not backends.takes_distances(backend('auto'), asked)
  whole = attend('reference', request(bias=STRIP.whole(None)))
  for text in ('reference', 'auto', 'ring'):
    np.testing.assert_allclose(attend(text, asked), whole, rtol=0, atol=1e-5)
  on('tpu')
  assert backends.takes_distances(backend('auto'), asked)
  assert not backends.takes_distances(backend('auto'), request(bias=BIAS))
  assert not backends.takes_distances(backend('reference'), asked)


@pytest.mark.parametrize(
  'context, changes, name',
  [
    (2, {}, 'ulysses'),
    (2, {'seen': DOCUMENTS}, 'ulysses'),
    (8, {}, 'all_gather'),  # of four heads
    (2, {'length': 192}, 'all_gather'),
    (2, {'bias': BIAS}, 'all_gather'),
    (2, {'seen': Visibility(places_1L=np.arange(L)[None])}, 'all_gather'),
    (2, {'drop': 0.1}, 'all_gather'),
  ],
)
def test_auto_on_tpu_with_split_rows(on, context, changes, name):
  with sharding.use(tiny.make_mesh(1, 1, 1, context=context), RULES):
    assert fast_backends.pick(request(**changes)).name != 'ulysses'
    on('tpu')
    assert fast_backends.pick(request(**changes)).name == name


@pytest.mark.parametrize('platform', ['cpu', 'tpu', 'gpu'])
def test_auto_takes_blocks_where_the_pattern_has_them(lines, on, platform):
  on(platform)
  sparse = functools.partial(request, attention='bigbird(block=8)')
  assert fast_backends.pick(sparse()).name == 'blocks'
  assert fast_backends.pick(sparse(seen=MASKS)).name == 'reference'
  assert fast_backends.pick(sparse(seen=ORDER)).name == 'reference'
  assert fast_backends.pick(sparse(drop=0.1)).name == 'blocks'
  assert lines == [
    'attention: blocks',
    'attention: reference, not blocks: rows have a mask of their own',
    'attention: reference, not blocks: rows have an order of their own',
  ]


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'attention': 'full'}, 'model.attention holds full, which lists no bl'),
    ({'bias': BIAS}, 'model.position adds a bias'),
    ({'seen': PREFIXES}, 'rows have a prefix'),
    ({'bias': STRIP}, 'model.position adds a bias'),
  ],
)
def test_blocks_refuse(changes, reason):
  with pytest.raises(UsageError, match=f'backend=blocks: {reason}'):
    attend('blocks', request(**{'attention': 'bigbird', **changes}))


@pytest.mark.parametrize('text', ['auto', 'blocks', 'reference'])
def test_packed_documents_have_no_blocks(text):
  with pytest.raises(UsageError, match=r'attention=bigbird: .*documents'):
    attend(text, request(attention='bigbird', seen=DOCUMENTS))


def test_auto_on_gpu(lines, on):
  on('gpu')
  assert fast_backends.pick(request(dtype='bfloat16')).name == 'cudnn'
  assert fast_backends.pick(request()).name == 'reference'
  assert lines == [
    'attention: cudnn',
    'attention: reference, not cudnn: model.dtype=float32 is neither bfloat16 nor float16',
  ]


def test_a_model_whose_backend_cannot_serve_it():
  """Parameters are made all the same: a run may go on elsewhere."""
  model = tiny.model(attention_backend='splash')
  assert parameter_shapes(model) == parameter_shapes(tiny.model())
  apply = functools.partial(model.apply, {'params': tiny.params(model)})
  with pytest.raises(UsageError, match='splash: it needs a TPU'):
    jax.eval_shape(apply, tiny.tokens(2, 11))


def test_kernels_want_values_as_wide_as_keys(tmp_path):
  """And so does whoever has no such models (rows B of the Transformer's)."""
  q, v = (jax.ShapeDtypeStruct((1, 128, 2, size), np.float32) for size in (64, 96))
  whole = Request(q, q, v, pattern('full'), EVERYTHING, 1.0)
  parts = whole._replace(pattern=pattern('bigbird(block=16)'))
  refused = [(SPLASH, whole), ('blocks', parts)]
  refused += [(name, whole) for name in ('all_gather', 'ring', 'ulysses')]
  for text, asked in refused:
    message = 'model.value_size=96 is not model.head_size=64; change'
    with pytest.raises(UsageError, match=message):
      backends.check(backend(text), asked)
  backends.check(backend('reference'), whole)
  model = tiny.model(value_size=5, num_layers=1, num_kv_heads=tiny.H, d_model=18, head_size=3)
  with pytest.raises(UsageError, match=r'model\.value_size=5'):
    hf.save(str(tmp_path), model, tiny.params(model))
