# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of several segments with memory (Dai et al. 2019, section 3.2)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.nn.build import build, period
from gpt_jax.nn.caches import init_caches, init_memories
from gpt_jax.nn.transformer_xl import num_visible
from gpt_jax.spec import UsageError
from tests.support import tiny

B, SIZE, M = 2, 5, 3
L = 3 * SIZE + 2  # the last segment is not full
D = 22  # pairs of sine and cosine
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def make(memory=M, segment=SIZE, clamp=0, biases='own', **changes):
  position = (
    f'transformer_xl(memory={memory}, clamp={clamp}, segment={segment}, '
    f'biases={biases!r})'
  )
  sizes = {'d_model': D, 'num_layers': 2, 'context_length': L}
  return tiny.model(**{**sizes, 'position': position, **changes})


def mask(memory):
  """The mask that is equivalent in one row, written out."""
  seen = np.zeros((L, L), bool)
  for query in range(L):
    start = query - query % SIZE
    seen[query, max(start - memory, 0) : query + 1] = True
  return seen


# The released code's same_length; each of the segments sees all before it.
CASES = [
  {'memory': M, 'block': 'post', 'biases': 'shared', 'clamp': 4},
  slow({'memory': 11, 'remat': 'full', 'attention': 'local(window=7)'}),
  slow({'memory': 0, 'loop': 'unroll', 'block': 'parallel'}),
]


@pytest.mark.parametrize('changes', CASES)
def test_segments_are_a_row_under_a_mask(changes):
  """At once under the equivalent mask, and segment by segment."""
  model, memory = make(**changes), changes['memory']
  whole = make(**changes, segment=0)
  params, tokens = tiny.params(model), tiny.tokens(B, L)

  @jax.jit  # one program for all
  def run(params):
    def hidden(*args, model=model, **kwargs):
      return model.apply({'params': params}, *args, **kwargs)

    seen = np.broadcast_to(mask(memory), (B, L, L))
    positions = np.broadcast_to(np.arange(L), (B, L))
    out = [
      hidden(tokens),
      hidden(tokens, model=whole, visible_BLM=seen),
      # Decoding has one cache for the whole row.
      hidden(tokens, positions, init_caches(model, B, L)),
    ]
    if memory:
      memories = init_memories(model, B, real=False)
      first = hidden(tokens[:, : 2 * SIZE], caches=memories)
      rest = hidden(tokens[:, 2 * SIZE :], caches=first.caches)
      parts = [first.hidden_BLD, rest.hidden_BLD]
      out.append(first._replace(hidden_BLD=jnp.concatenate(parts, axis=1)))
    return [x.hidden_BLD for x in out]

  found, *others = run(params)
  for other in others:
    np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_no_gradient_reaches_another_segment():
  """Segment 1 depends on segment 0 in value, and not at all in gradient."""
  model = make(memory=SIZE)
  params, tokens = tiny.params(model), tiny.tokens(1, 2 * SIZE)

  def total(table, tokens):
    changed = {**params, 'embed': {'embedding': table}}
    out = model.apply({'params': changed}, tokens)
    return jnp.sum(jnp.square(out.hidden_BLD[:, SIZE:]))

  both = jax.jit(jax.value_and_grad(total))
  # The first segment has tokens of its own.
  tokens[:, :SIZE] = np.arange(SIZE)
  tokens[:, SIZE:] = SIZE + np.arange(SIZE)
  table = params['embed']['embedding']
  value, grad = both(table, tokens)
  assert not np.any(grad[:SIZE])
  assert np.all(np.any(grad[SIZE : 2 * SIZE], axis=1))
  tokens[:, :SIZE] = 2 * SIZE + np.arange(SIZE)
  assert abs(both(table, tokens)[0] - value) > 1e-3


@pytest.mark.slow
def test_gradients_are_those_of_carried_memory():
  """Of all parameters: by segments, the memory carried between two calls."""
  model = make(block='post', memory=SIZE, biases='shared')
  params, tokens = tiny.params(model), tiny.tokens(B, 2 * SIZE)

  def at_once(params):
    out = model.apply({'params': params}, tokens)
    return jnp.sum(jnp.sin(out.hidden_BLD))

  def carried(params):
    caches, total = init_memories(model, B, real=False), 0.0
    for part in (tokens[:, :SIZE], tokens[:, SIZE:]):
      out = model.apply({'params': params}, part, caches=caches)
      caches = out.caches
      total += jnp.sum(jnp.sin(out.hidden_BLD))
    return total

  found, expected = jax.jit(
    lambda p: (jax.grad(at_once)(p), jax.grad(carried)(p))
  )(params)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4),
    found,
    expected,
  )


@pytest.mark.parametrize('memory', [0, M, 11])
@pytest.mark.parametrize('window', [L, 4])
def test_how_many_keys_each_token_sees(memory, window):
  attention = f'local(window={window})'
  model = make(memory=memory, attention=attention)
  (layer,) = period(model.attention, model.ffn)
  distance = np.arange(L)[:, None] - np.arange(L)
  seen = mask(memory) & (distance < window)
  np.testing.assert_array_equal(
    num_visible(build(model, 'position'), layer.attention, L), seen.sum(axis=1)
  )


def test_shared_biases_are_one_set():
  own, shared = (
    tiny.params(make(biases=biases)) for biases in ('own', 'shared')
  )
  shapes = {name: x.shape for name, x in shared['relative_biases'].items()}
  heads = (tiny.H, tiny.K)
  assert shapes == {'content_bias': heads, 'position_bias': heads}
  attention = own['decoder']['periods']['block_0']['attention']
  assert attention['content_bias'].shape == (2, *heads)


def test_refusals():
  model = make()
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  with pytest.raises(UsageError, match='set data'):
    model.apply({'params': params}, tokens, segments_BL=np.ones_like(tokens))
  with pytest.raises(UsageError, match='one of own, shared'):
    tiny.params(make(biases='both'))
