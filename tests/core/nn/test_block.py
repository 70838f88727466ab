# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The residual block and its feed-forward layer."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.core.meta import unbox

from gpt_jax.core import spec
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.block import Block
from gpt_jax.core.nn.choices import BACKENDS, BLOCKS, FFNS, INITS, NORMS, POSITIONS, SCALES
from gpt_jax.core.nn.layers import FORMS
from gpt_jax.core.nn.masks import local
from gpt_jax.core.nn.row import Context
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.transformer.encoder_decoder import CrossBlock
from tests.support import reference, tiny

B, L, D, F, K, H, G, M = 3, 5, 17, 29, 7, 6, 2, 11
HERE = Context()
FIRST = np.int32(0)
KINDS = ['pre', 'post', 'parallel', 'parallel(num_norms=2)', 'sandwich', 'reordered']
# What blocks normalise at the end of each sublayer, and before it.
NORMS_OF = {
  'parallel': {'attention_norm'},
  'sandwich': {'attention_norm', 'attention_output_norm', 'ffn_norm', 'ffn_output_norm'},
  'reordered': {'attention_output_norm', 'ffn_output_norm'},
}


def build(text):
  return spec.build('model.block', text, BLOCKS)


def make(text, *, cross=False):
  norm = NORMS['layernorm']()
  parts = {'inits': INITS['normal']()(1), 'dtype': jnp.float32}
  attention = functools.partial(
    Attention,
    local(3),
    position=POSITIONS['none'](),
    num_heads=H,
    num_kv_heads=G,
    head_size=K,
    scale=SCALES['rsqrt'](),
    backend=BACKENDS['reference'](),
    bias_in=True,
    bias_out=True,
    dropout=0.0,
    norm=norm,
    qk_norm=build(text).qk_norm,
    **parts,
  )
  kind = CrossBlock if cross else Block
  return kind(
    build(text).places,
    norm=norm,
    attention=attention,
    ffn=functools.partial(FFNS['gelu_tanh']().make, d_ff=F, bias=True, **parts),
    dropout=0.0,
  )


PLAIN = reference.of()


def attention_by_hand(p, x):
  """Plain JAX's, after norms of queries and keys: of each head's K features, or all heads'."""

  def heads(name, number):
    y, norm = PLAIN.dense(x, p[name]), p.get(f'{name}_norm')
    if norm and len(norm['scale']) > K:
      y = PLAIN.norm(y, norm)
    y = PLAIN.heads(y, number)
    return PLAIN.norm(y, norm) if norm and len(norm['scale']) == K else y

  k, v = (jnp.repeat(heads(name, G), H // G, axis=2) for name in ('key', 'value'))
  y = PLAIN.attend(heads('query', H), k, v, 0.0, reference.seen(L, 3), None)
  return PLAIN.dense(y, p['out'])


def by_hand(p, x, text, memory, mask):
  """A block of plain JAX's parts, with norms where the parameters have them."""
  sublayers = {'attention': lambda x: attention_by_hand(p['attention'], x)}
  if memory is not None:
    cross, real = reference.whole(p['cross']), mask[:, None, None]
    sublayers['cross'] = lambda x: PLAIN.cross_attention(x, memory, cross, real, None)
  sublayers['ffn'] = lambda x: PLAIN.mlp(x, p['ffn'])

  def norm(x, name):
    return PLAIN.norm(x, p[name]) if name in p else x

  if text.startswith('parallel'):
    h = norm(x, 'attention_norm')
    other = norm(x, 'ffn_norm') if 'ffn_norm' in p else h
    return x + sublayers['attention'](h) + sublayers['ffn'](other)
  for name, sublayer in sublayers.items():
    if text.startswith('post'):
      x = norm(x + sublayer(x), f'{name}_norm')
    else:
      x += norm(sublayer(norm(x, f'{name}_norm')), f'{name}_output_norm')
  return x


def check(text, *, cross):
  """Compares a block with plain JAX's, and returns its parameters."""
  block = make(text, cross=cross)
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, D)))
  context, memory, mask = HERE, None, None
  if cross:
    memory = np.float32(rng.normal(size=(B, M, D)))
    # Padding on the left, none, and on both sides.
    mask = np.ones((B, M), bool)
    mask[0, :4] = mask[2, :1] = mask[2, 7:] = False
    context = Context(extra={'encoded': memory, 'source_real': mask})
  args = x, context, None, FIRST
  boxed = jax.eval_shape(block.init, jax.random.key(0), *args)
  params = tiny.random_like(nn.meta.unbox(boxed['params']), seed=1)
  expected = reference.run(lambda p, x, m: by_hand(p, x, text, m, mask), params, x, memory)
  y, cache = jax.jit(block.apply)({'params': params}, *args)
  assert cache is None
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  return params


@pytest.mark.parametrize('text', KINDS)
def test_block(text):
  params = check(text, cross=False)
  norms = NORMS_OF.get(text, {'attention_norm', 'ffn_norm'})
  assert {*params} == {'attention', 'ffn', *norms}


@pytest.mark.parametrize('text', ['pre', 'post', 'sandwich', 'reordered'])
def test_cross_attention_stands_between_the_others(text):
  params = check(text, cross=True)
  assert params['cross'].keys() == params['attention'].keys()
  others = {n.replace('ffn', 'cross') for n in params if n.startswith('ffn')}
  assert {n for n in params if n.startswith('cross')} == others


@pytest.mark.parametrize(
  'text, sizes',
  [
    ("pre(qk_norm='per_head')", (K, K)),
    ("post(qk_norm='per_head')", (K, K)),
    ("reordered(qk_norm='all_heads')", (H * K, G * K)),
    ("parallel(qk_norm='all_heads')", (H * K, G * K)),
  ],
)
def test_queries_and_keys_have_norms(text, sizes):
  attention = check(text, cross=False)['attention']
  shapes = [attention[f'{n}_norm']['scale'].shape for n in ('query', 'key')]
  assert shapes == [(size,) for size in sizes]


def test_what_a_parallel_block_cannot_do():
  with pytest.raises(UsageError, match='no cross-attention'):
    check('parallel', cross=True)


def test_pre_norm_needs_one_more_norm_at_the_end():
  assert {text: build(text).final_norm for text in KINDS} == {
    'pre': True,
    'post': False,
    'parallel': True,
    'parallel(num_norms=2)': True,
    'sandwich': True,
    'reordered': True,
  }


class Constant(nn.Module):
  """Stands for a sublayer: gives the same number everywhere."""

  value: float

  @nn.compact
  def __call__(self, x: jax.Array, *context_and_cache: Any, **layer: Any):
    """As attention does, returns a cache too where it is given one."""
    y = jnp.full_like(x, self.value)
    return (y, None) if context_and_cache else y


class Identity(nn.Module):
  """Stands for a norm."""

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns `x`."""
    return x


@pytest.mark.parametrize('text', KINDS)
def test_dropout_acts_on_each_sublayer_before_it_is_added(text):
  """Sublayers that give 3 and 8: at rate 1/2 they add 0 or 6, and 0 or 16."""
  block = Block(
    build(text).places,
    norm=Identity,
    attention=functools.partial(Constant, 3.0),
    ffn=functools.partial(Constant, 8.0),
    dropout=0.5,
  )
  x = np.float32(np.random.default_rng(0).normal(size=(11, 13, D)))

  def added(**rngs):
    return np.asarray(block.apply({}, x, HERE, None, FIRST, rngs=rngs)[0] - x)

  np.testing.assert_allclose(added(), 11.0, rtol=1e-5)
  found = added(dropout=jax.random.key(0))
  np.testing.assert_array_equal(found, added(dropout=jax.random.key(0)))
  assert np.any(found != added(dropout=jax.random.key(1)))
  # The two are dropped independently: a quarter each, of 11 * 13 * 17.
  for total in (0, 6, 16, 22):
    share = np.mean(np.isclose(found, total, atol=1e-4))
    assert 0.21 < share < 0.29, total


# The feed-forward layer and its activations.


B, L, D, F = 3, 5, 17, 29


def make_ffn(name, *, bias=True, dtype=jnp.float32):
  return FFNS[name]().make(d_ff=F, bias=bias, inits=INITS['normal']()(1), dtype=dtype)


@pytest.mark.parametrize('name', FORMS)
def test_activation(name):
  """From -9 to 9, where the two forms of GELU differ by up to 5e-4."""
  x = np.linspace(-9, 9, 1009, dtype=np.float32)
  found = jax.jit(FORMS[name].activation)(x)
  expected = reference.FORMULAS[name](np.float64(x))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_the_forms_of_gelu_differ():
  x = np.linspace(-3, 3, 101, dtype=np.float32)
  exact, approximate = (FORMS[name].activation(x) for name in ('gelu', 'gelu_tanh'))
  assert 1e-4 < np.max(np.abs(exact - approximate)) < 1e-3


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('name', FORMS)
def test_ffn(name, bias):
  module = make_ffn(name, bias=bias)
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, D)))
  boxed = jax.eval_shape(module.init, jax.random.key(0), x)['params']
  axes = {f'{layer}/{kind}': p.names for layer, sub in boxed.items() for kind, p in sub.items()}
  expected_axes = {'in/kernel': ('embed', 'mlp'), 'out/kernel': ('mlp', 'embed')}
  if FORMS[name].gated:
    expected_axes['gate/kernel'] = ('embed', 'mlp')
    if bias:
      expected_axes['gate/bias'] = ('mlp',)
  if bias:
    expected_axes |= {'in/bias': ('mlp',), 'out/bias': ('embed',)}
  assert axes == expected_axes

  params = tiny.random_like(unbox(boxed), seed=1)
  assert params['in']['kernel'].shape == (D, F)
  expected = reference.feed_forward(reference.widened(params), np.float64(x), name)
  y = jax.jit(module.apply)({'params': params}, x)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_computes_in_bfloat16_from_float32_parameters():
  module = make_ffn('gelu_tanh', dtype=jnp.bfloat16)
  x = jnp.ones((B, L, D), jnp.bfloat16)
  boxed = jax.eval_shape(module.init, jax.random.key(0), x)['params']
  params = tiny.random_like(unbox(boxed), seed=1)
  assert {p.dtype for p in jax.tree.leaves(boxed)} == {np.dtype('float32')}
  y = jax.eval_shape(module.apply, {'params': params}, x)
  assert y.dtype == jnp.bfloat16
