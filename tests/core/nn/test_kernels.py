# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The attention kernels against the reference.

Splash runs in interpret mode here, and compiles for TPUs. cuDNN needs a GPU:
only what is asked of it is tested.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AbstractDevice

from configs import base
from gpt_jax.core import sharding, spec
from gpt_jax.core.nn import backends, fast_backends, kernels
from gpt_jax.core.nn.attend import Request, attend_within
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.row import Row, Visibility
from tests.support import tiny, tpu
from tests.support.cases import slow

B, L, K = 4, 256, 64
EVERYTHING = Visibility()
SPLASH = 'splash(block=128, interpret=True)'
UNFUSED = 'splash(block=128, fused_until=0, interpret=True)'
RULES = sharding.parse_rules(base.get_config().mesh.rules)


def qkv(heads=4, kv_heads=2, *, dtype='float32'):
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, L, heads, K))
  k, v = rng.normal(size=(2, B, L, kv_heads, K))
  return tuple(jnp.asarray(x, dtype) for x in (q, k, v))


def documents():
  """Documents that begin within blocks, and one that is a whole row."""
  ids = np.zeros((B, L), np.int32)
  ids[0, 4:] = ids[2, 130:] = 1
  ids[0, 170:] = 2
  return ids


def padding():
  """Left, right, and within."""
  mask = np.ones((B, L), bool)
  mask[0, :30] = mask[1, 200:] = mask[2, 140:150] = False
  return mask


SEEN = {
  'all': EVERYTHING,
  'documents': Visibility(None, documents()),
  'padding': Visibility(padding(), None),
  'both': Visibility(padding(), documents()),
}


def backend(text):
  return spec.build('model.attention_backend', text, BACKENDS)


def pattern(text):
  return spec.build('model.attention', text, PATTERNS)


def results(text, inputs, attention='full', seen=EVERYTHING, softcap=0.0):
  """The output, and the gradients of a function of it."""
  chosen, weight = backend(text), np.ones((B, L), bool)
  if seen.key_mask_BM is not None:
    weight = seen.key_mask_BM

  def loss(q, k, v, seen):
    asked = Request(q, k, v, pattern(attention), seen, K**-0.5)
    asked = asked._replace(softcap=softcap)
    out = backends.attend_rows(asked, backend=chosen)
    out *= weight[..., None, None]
    return jnp.sum(out**2), out

  run = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
  (_, out), gradients = jax.jit(run)(*inputs, seen)
  return out, gradients


def check_equal(found, expected):
  np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
  for ours, theirs in zip(found[1], expected[1], strict=True):
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'text, attention, heads, seen',
  [
    slow(SPLASH, 'full', (3, 3), 'all'),
    (SPLASH, 'full', (6, 2), 'documents'),
    slow(SPLASH, 'full', (3, 1), 'padding'),
    (SPLASH, 'local(window=100)', (3, 3), 'both'),
    slow(SPLASH, 'local(window=100)', (6, 2), 'all'),
    slow(SPLASH, 'local(window=128)', (3, 1), 'all'),
    (SPLASH, 'bidirectional', (6, 2), 'padding'),
    slow(SPLASH, 'bidirectional', (3, 3), 'all'),
    ('splash(interpret=True)', 'full', (6, 2), 'all'),
    (UNFUSED, 'full', (6, 2), 'both'),
    slow(UNFUSED, 'local(window=100)', (3, 1), 'all'),
  ],
)
def test_splash_is_the_reference(text, attention, heads, seen):
  inputs = qkv(*heads)
  found = results(text, inputs, attention, SEEN[seen])
  check_equal(found, results('reference', inputs, attention, SEEN[seen]))


@pytest.mark.parametrize('text', [SPLASH, slow(UNFUSED)])
def test_splash_bounds_the_scores(text):
  inputs = qkv(6, 2)
  args = inputs, 'local(window=100)', SEEN['both']
  expected = results('reference', *args, softcap=0.5)
  check_equal(results(text, *args, softcap=0.5), expected)
  assert not np.allclose(expected[0], results(text, *args)[0], atol=0.1)


@pytest.mark.parametrize('text', [UNFUSED, slow(SPLASH)])
def test_larger_blocks_of_long_rows(text, monkeypatch):
  """One for the row, whose scores are computed in two parts."""
  monkeypatch.setattr(kernels, 'MOST_BLOCKS', 1)
  assert kernels.blocks(L, 128, 64, fused=False).block_kv == L
  inputs = qkv(6, 2)
  expected = results('reference', inputs, 'full', SEEN['both'])
  check_equal(results(text, inputs, 'full', SEEN['both']), expected)


@pytest.mark.parametrize('fused_until', [slow(0), L])
def test_documents_have_no_gradient_to_each_other(fused_until):
  second = documents() == 1

  def loss(q, k, v):
    asked = Request(q, k, v, pattern('full'), SEEN['documents'], K**-0.5)
    backend = fast_backends.splash(128, fused_until, interpret=True)
    out = backends.attend_rows(asked, backend=backend)
    return (out**2)[second].sum()

  for gradient in jax.jit(jax.grad(loss, (0, 1, 2)))(*qkv()):
    assert not np.any(gradient[~second])
    assert np.any(gradient[second])


@pytest.fixture
def shapes(monkeypatch):
  """Of what each device gives splash: q, k and v."""
  shapes, original = set(), kernels._splash

  def local(q, k, v, segments, **kwargs):
    shapes.add((q.shape, k.shape, v.shape))
    return original(q, k, v, segments, **kwargs)

  monkeypatch.setattr(kernels, '_splash', local)
  return shapes


@pytest.mark.parametrize(
  'sizes, heads, local_heads, seen',
  [
    ((2, 2, 2), (4, 2), (2, 1), 'both'),
    ((2, 1, 4), (8, 2), (2, 1), 'all'),  # two devices share a kv head
    slow((1, 2, 2), (4, 1), (2, 1), 'all'),
    slow((4, 1, 2), (4, 4), (2, 2), 'documents'),
  ],
)
def test_splash_on_a_mesh(sizes, heads, local_heads, seen, shapes):
  """Each device computes its own rows and heads."""
  inputs = qkv(*heads)
  with sharding.use(tiny.make_mesh(*sizes), RULES):
    found = results(SPLASH, inputs, seen=SEEN[seen])
  check_equal(found, results('reference', inputs, seen=SEEN[seen]))
  rows = B // (sizes[0] * sizes[1])
  q, kv = ((rows, L, n, K) for n in local_heads)
  assert shapes == {(q, kv, kv)}


@pytest.mark.parametrize(
  'sizes, context, heads, local_heads, attention, seen',
  [
    ((1, 2, 1), 2, (4, 2), (2, 1), 'full', 'both'),
    # Four devices share two key/value heads.
    slow((1, 1, 2), 2, (8, 2), (2, 1), 'local(window=100)', 'documents'),
  ],
)
def test_splash_within_ulysses(sizes, context, heads, local_heads, attention, seen, shapes):
  """Each device computes whole rows of some heads."""
  inputs = qkv(*heads)
  with sharding.use(tiny.make_mesh(*sizes, context=context), RULES):
    found = results('ulysses(interpret=True)', inputs, attention, SEEN[seen])
  check_equal(found, results('reference', inputs, attention, SEEN[seen]))
  q, kv = ((B // sizes[1], L, n, K) for n in local_heads)
  assert shapes == {(q, kv, kv)}


MODEL = {
  'context_length': 128,
  'num_layers': 2,
  'num_heads': 4,
  'num_kv_heads': 2,
  'head_size': K,
  'd_model': 24,
  'vocab_size': 48,
  'd_ff': 40,
  'attention': 'full, local(window=50)',
  'attention_scale': 'by_layer',
  'position': 'rope',
}


@pytest.mark.slow
def test_a_model_on_a_mesh():
  """Inside the scan over layers, and what is computed again."""
  tokens = tiny.tokens(B, 128, vocab_size=48)
  segments = documents()[:, 64:192]

  def gradients(text):
    model = tiny.model(**MODEL, remat='full', attention_backend=text)

    def loss(params):
      row = Row(tokens, segments_BL=segments)
      out = model.apply({'params': params}, row)
      return jnp.sum(out.hidden_BLD**3)

    return jax.jit(jax.value_and_grad(loss))(params)

  params = tiny.params(tiny.model(**MODEL))
  expected = gradients('reference')
  with sharding.use(tiny.make_mesh(2, 2, 2), RULES):
    found = gradients(SPLASH)
  for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize(
  'attention, seen, scale',
  [
    ('full', 'both', 0.3),
    ('local(window=100)', 'all', np.float32(0.3)),
    ('local(window=100)', 'documents', 0.3),
    ('bidirectional', 'padding', 0.3),
  ],
)
def test_cudnn_is_asked_for_the_reference(attention, seen, scale, monkeypatch):
  """XLA's version of the same function stands in for the kernel.

  It gets the scale as a number, but one of a layer's own with the queries.
  """
  asked = []

  def stand_in(*args, implementation, **kwargs):
    asked.append((implementation, kwargs['scale']))
    return original(*args, **kwargs, implementation='xla')

  original = jax.nn.dot_product_attention
  monkeypatch.setattr(jax.nn, 'dot_product_attention', stand_in)
  inputs, seen = qkv(), SEEN[seen]

  def run(attend):
    def apply(q, k, v):
      return attend(Request(q, k, v, pattern(attention), seen, scale))

    return jax.jit(apply)(*inputs)

  with sharding.use(tiny.make_mesh(2, 1, 2), RULES):
    found = run(kernels.cudnn)
  expected = run(attend_within)
  real = slice(None) if seen.key_mask_BM is None else seen.key_mask_BM
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)
  assert asked == [('cudnn', scale if isinstance(scale, float) else 1.0)]


@pytest.mark.parametrize('window', [None, 1, 5, 6, 7, 30])
@pytest.mark.parametrize('rows, columns', [(3, 3), (6, 2), (2, 6)])
def test_blocks_of_masks(window, rows, columns):
  """Whether all of a block is seen, or none, from its corners."""
  text = 'full' if window is None else f'local(window={window})'
  length = 24
  mask = kernels._causal(pattern(text), length)
  back = np.arange(length)[:, None] - np.arange(length)[None]
  expected = (back >= 0) & (back < (window or length))
  for start in range(0, length, rows):
    for first in range(0, length, columns):
      block = slice(start, start + rows), slice(first, first + columns)
      found = mask[block]
      assert found.shape == (1, 1) or not (found.all() or not found.any())
      assert np.array_equal(np.broadcast_to(found, (rows, columns)), expected[block])


@pytest.mark.parametrize(
  'length, size',
  [
    (128, 128),
    (384, 384),
    (512, 512),
    (640, 128),
    (768, 384),
    (2048, 512),
    # 512 blocks at most.
    (128 * 1025, 640),
    (1 << 18, 512),
    (1 << 19, 1024),
    (1 << 20, None),
    (128 * 1021, None),
  ],
)
def test_blocks_divide_the_length(length, size):
  assert kernels.block_size(length, 512) == size


@pytest.mark.parametrize(
  'length, size', [(384, 384), (512, 512), (1024, 512), (1536, 768), (2048, 1024), (8192, 1024)]
)
def test_rows_of_more_than_512_tokens_have_two_blocks(length, size):
  """So that one is skipped where attention is causal."""
  block = kernels.SPLASH['block']
  assert kernels.block_size(length, block) == size
  # Large heads have smaller blocks in the backward kernels, and parts of scores.
  of_128, of_256 = (kernels.blocks(length, block, head, fused=True) for head in (128, 256))
  assert of_128.block_q_dkv == of_128.block_kv_compute == of_256.block_q == size
  part, back = of_256.block_kv_compute, of_256.block_q_dkv
  assert part is not None and part <= 512 and size % part == 0
  assert back is not None and back <= 512 and length % back == 0


@pytest.mark.parametrize('fused_until', [0, 4096])
def test_lowers_for_tpu(fused_until):
  """As far as a Mosaic kernel for each phase; the mesh says it is for TPU."""
  device = AbstractDevice(device_kind='TPU v4', num_cores=1, platform='tpu')
  mesh = sharding.abstract_mesh((2, 1, 1, 1, 1, 2), device)

  def loss(q, k, v):
    asked = Request(q, k, v, pattern('full'), EVERYTHING, 0.3, softcap=50.0)
    assert fast_backends.pick(asked).name == 'splash'
    run = fast_backends.splash(fused_until=fused_until).run
    return jnp.sum(run(asked).astype(jnp.float32))

  inputs = qkv(dtype='bfloat16')
  with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(RULES):
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs)
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
  assert text.count('@tpu_custom_call') == (2 if fused_until else 3)


@pytest.mark.tpu
@pytest.mark.parametrize('topology', ['v5e:2x4', pytest.param('v4:2x2x1', marks=pytest.mark.long)])
def test_attention_and_the_train_step_compile(topology):
  assert tpu.compiled('attention', topology) == {
    # Forward, and backward in one kernel or in two.
    'full, splash': 2,
    'full, splash(block=128, fused_until=128)': 3,
    'local(window=96), splash(block=128)': 2,
    'bidirectional, splash(block=128)': 2,
    # Two patterns: forward, the same for the backward pass, and backward.
    'train step': 6,
  }
