# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Vectors that are added to the embeddings; which hooks a choice uses.

Rotations are in test_rope.py, biases in test_position_bias.py, and
Transformer-XL's attention in test_relative.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.build import POSITIONS
from gpt_jax.nn.masks import full, local
from gpt_jax.spec import UsageError
from tests.support import reference

B, L, D, CONTEXT = 3, 5, 17, 13
EVEN = 22  # pairs of sine and cosine
# Rows that start elsewhere, go back and repeat.
PLACES = np.array([[0, 1, 2, 3, 4], [8, 9, 10, 11, 12], [7, 0, 7, 1, 12]])


def build(text):
  return spec.build('model.position', text, POSITIONS)


def make(text, d_model=D):
  module = build(text).embed(
    context_length=CONTEXT, initializer=nn.initializers.normal(0.5)
  )
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, d_model)))
  params = jax.jit(module.init)(jax.random.key(0), x, None)
  return module, params, x


@pytest.mark.parametrize(
  'text, hooks',
  [
    ('learned', {'embed'}),
    ('sinusoidal', {'embed'}),
    ('rope', {'rotate'}),
    ('rope(local_theta=100)', {'rotate', 'rotate_local'}),
    ('t5_bias', {'bias'}),
    ('alibi', {'bias'}),
    ('transformer_xl', {'terms'}),
    ('xlnet', {'terms', 'segments'}),
    ('none', set()),
  ],
)
def test_hooks(text, hooks):
  used = {name for name, hook in build(text)._asdict().items() if hook}
  assert used == hooks


def test_layers_with_a_window_turn_by_their_own_theta():
  """And without the scaling of the others (Gemma 3)."""
  scaled = build("rope(theta=5000, scaling='linear(3)')")
  both = build("rope(theta=5000, scaling='linear(3)', local_theta=70)")
  alone = build('rope(theta=70)')
  x = np.float32(np.random.default_rng(0).normal(size=(B, L, 2, 8)))

  def turned(position, pattern):
    return jax.jit(position.rotation(pattern))(x, PLACES)

  for pattern, same in ((full(), scaled), (local(3), alone)):
    found = turned(both, pattern)
    np.testing.assert_array_equal(found, turned(same, pattern))
  assert scaled.rotation(local(3)) is scaled.rotation(full())


@pytest.mark.parametrize('offset', [0, 2])
def test_learned_adds_the_vector_of_each_position(offset):
  """OPT's table has two rows before the first position."""
  module, params, x = make(f'learned(offset={offset})')
  boxed = params['params']['embedding']
  assert boxed.names == ('position', 'embed')
  table = np.asarray(boxed.value)
  assert table.shape == (CONTEXT + offset, D)
  table = table[offset:]
  # Without positions: 0, 1, 2, ... in each row.
  expected = [[x[b, i] + table[i] for i in range(L)] for b in range(B)]
  np.testing.assert_array_equal(module.apply(params, x, None), expected)
  # With them, in any order.
  expected = [
    [x[b, i] + table[PLACES[b, i]] for i in range(L)] for b in range(B)
  ]
  np.testing.assert_array_equal(module.apply(params, x, PLACES), expected)


@pytest.mark.parametrize('offset', [0, 2])
def test_learned_gradient_sums_over_rows(offset):
  module, params, x = make(f'learned(offset={offset})')
  weights = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)

  def loss(params, at):
    return (module.apply(params, x, at) * weights).sum()

  for at in (None, np.broadcast_to(np.arange(L), (B, L))):
    gradient = jax.grad(loss)(params, at)['params']['embedding'].value
    expected = np.zeros((CONTEXT + offset, D))
    expected[offset : offset + L] = weights.sum(0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('layout', ['interleaved', 'halves'])
@pytest.mark.parametrize(
  'at, error',
  [
    (None, 2e-6),
    (PLACES, 2e-6),
    # The angle itself, up to 2012, is rounded to 24 bits.
    (2000 + PLACES, 2e-4),
  ],
)
def test_sinusoidal(layout, at, error):
  module, params, x = make(f'sinusoidal(layout={layout!r})', EVEN)
  assert params == {}
  places = np.broadcast_to(np.arange(L), (B, L)) if at is None else at
  expected = np.float64(x)
  for b, i in np.ndindex(B, L):
    expected[b, i] += reference.sinusoid(places[b, i], EVEN, layout=layout)
  found = module.apply(params, x, at)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=error)


def test_sinusoidal_defaults_to_the_paper():
  """Sine and cosine in turn: at position 0 they are 0, 1, 0, 1, ..."""
  module, params, x = make('sinusoidal', EVEN)
  added = module.apply(params, 0 * x, None)[0]
  np.testing.assert_array_equal(added[0], np.arange(EVEN) % 2)
  np.testing.assert_allclose(added[1, :2], [np.sin(1), np.cos(1)], rtol=1e-5)


def test_sinusoidal_is_computed_in_float32():
  """Rounded once: in bfloat16 position 1001 itself would become 1000."""
  module, params, x = make('sinusoidal', EVEN)
  x = jnp.zeros(x.shape, jnp.bfloat16)
  found = module.apply(params, x, np.full((B, L), 1001))
  assert found.dtype == jnp.bfloat16
  expected = reference.sinusoid(1001, EVEN, layout='interleaved')
  expected = np.broadcast_to(expected, (B, L, EVEN))
  np.testing.assert_allclose(np.float64(found), expected, rtol=2**-8, atol=1e-4)


def test_sinusoidal_mistakes():
  with pytest.raises(UsageError, match="layout='half' is unknown; one of"):
    build("sinusoidal(layout='half')")
  with pytest.raises(UsageError, match='d_model=17: must be even'):
    make('sinusoidal', 17)
