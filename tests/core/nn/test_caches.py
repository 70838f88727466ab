# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache of keys and values equals one pass over all tokens."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.row import Row
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import programs
from tests.support import tiny
from tests.support.cases import slow

B, L, CONTEXT = tiny.B, tiny.L, tiny.MODEL['context_length']
EVEN = {'d_model': 22, 'head_size': 8}
TWO = {'num_layers': 2, 'attention': 'full, local(window=5)'}
GEMMA = {
  'block': "sandwich(qk_norm='per_head')",
  'attention_scale': 'rsqrt(size=3, softcap=2.0)',
  'norm': 'rmsnorm(plus_one=True)',
  'bias': 'none',
}
ONE_HEAD = {'num_kv_heads': 1}
SPARSE = {'num_layers': 2, 'attention': 'local(window=3), local(window=2)'}


@pytest.mark.parametrize(
  'position, changes',
  [
    slow('rope', {**TWO, **EVEN, **ONE_HEAD, 'block': 'parallel'}),
    ("rope(scaling='linear(3)', local_theta=70)", {**TWO, **EVEN, **GEMMA}),
    slow('alibi', {**TWO, **ONE_HEAD}),
    ('t5_bias(num_buckets=6, max_distance=7)', TWO),
    ('learned(offset=2)', {**SPARSE, 'num_kv_heads': 6}),
    slow('sinusoidal', {**TWO, **EVEN, 'block': 'post'}),
    ('transformer_xl', {**TWO, **EVEN}),
    slow('none', {**SPARSE, 'attention_scale': 'by_layer', 'loop': 'unroll'}),
  ],
)
def test_token_by_token_equals_one_pass(position, changes):
  """After a prompt of four, rows go on from positions 2, 3 and 4."""
  model = tiny.model(position=position, **changes)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  start = np.array([[2], [3], [4]])

  @jax.jit
  def run(params):
    def apply(tokens, positions=None, caches=None):
      return model.apply({'params': params}, Row(tokens, positions), caches)

    prompt = np.broadcast_to(np.arange(4), (B, 4))
    caches = init_caches(model, B, CONTEXT)
    # What stands in slots that were not written must not be seen.
    caches = jax.tree.map(lambda x: x + 97.0, caches)
    first = apply(tokens[:, :4], prompt, caches)

    def step(caches, i):
      now = jnp.take_along_axis(jnp.asarray(tokens), start + i, axis=1)
      out = apply(now, start + i, caches)
      return out.caches, out.hidden_BLD[:, 0]

    last, states = jax.lax.scan(step, first.caches, jnp.arange(L - 4))
    return apply(tokens).hidden_BLD, first.hidden_BLD, states, last

  whole, first, states, caches = jax.device_get(run(params))
  np.testing.assert_allclose(first, whole[:, :4], rtol=1e-3, atol=1e-4)
  for i, b in np.ndindex(L - 4, B):
    at = start[b, 0] + i
    np.testing.assert_allclose(states[i, b], whole[b, at], rtol=1e-3, atol=1e-4)
  # One for each pattern, with a leading axis of periods.
  assert len(caches) == 2
  heads = changes.get('num_kv_heads', tiny.G)
  size = changes.get('head_size', tiny.K)
  for cache in caches:
    assert cache.key_BGKM.shape == (1, B, heads, size, CONTEXT)
    assert cache.value_BGMK.shape == (1, B, heads, CONTEXT, size)


def test_bidirectional_attention_is_refused():
  """Alone, and as one of several patterns."""
  for attention in ('bidirectional', 'full, bidirectional'):
    model = tiny.model(attention=attention, num_layers=2)
    with pytest.raises(UsageError, match='bidirectional: cannot decode with'):
      jax.eval_shape(
        lambda p, m=model: m.apply(
          {'params': p},
          Row(tiny.tokens(B, 1), np.zeros((B, 1), np.int32)),
          init_caches(m, B, CONTEXT),
        ),
        tiny.params(model),
      )


@pytest.mark.parametrize('rows', [1, 3])
def test_a_step_makes_nothing_of_a_caches_size_but_the_cache(rows):
  """Keys and values are written in place; the products read what was written.

  A single row, too, whose writing XLA would merge into those products.
  """
  slots, num_layers = 59, 2
  stacked = tiny.model(num_layers=num_layers, context_length=slots)
  model, params = programs.for_decoding(stacked, tiny.params(stacked))
  caches = init_caches(model, rows, slots)

  @functools.partial(jax.jit, donate_argnums=1)
  def step(params, caches, tokens, positions):
    out = model.apply({'params': params}, Row(tokens, positions), caches)
    return out.hidden_BLD, out.caches

  ones = np.ones((rows, 1), np.int32)
  program = step.lower(params, caches, ones, ones).compile().as_text()
  _, _, entry = program.partition('\nENTRY')
  made = re.findall(r'= f32\[([\d,]+)\]\S* ([\w-]+)\(', entry)
  size = rows * tiny.G * tiny.K * slots
  whole = [
    kind
    for shape, kind in made
    if math.prod(map(int, shape.split(','))) == size and kind not in ('parameter', 'bitcast')
  ]
  # Of each layer keys and values.
  assert len(whole) == 2 * num_layers, whole
