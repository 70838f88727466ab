# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Segment recurrence (Dai et al. 2019, section 3.2), and clamped distances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.nn.attend import SegmentMemory
from gpt_jax.nn.caches import init_memories
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.spec import UsageError
from tests.support import tiny

B, L, M = 3, 5, 7
D = 22  # pairs of sine and cosine
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def make(memory=M, clamp=0, **changes):
  position = f'transformer_xl(memory={memory}, clamp={clamp})'
  sizes = {'d_model': D, 'num_layers': 4}
  return tiny.model(**{**sizes, 'position': position, **changes})


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, tokens, caches):
  return model.apply(
    {'params': params}, tokens, caches=caches, mutable=['intermediates']
  )


def run(model, params, tokens, caches=None):
  out, sown = apply(model, params, tokens, caches)
  sown = sown['intermediates']
  inputs = [sown['embedded'][0], *layer_outputs(sown)[:-1]]
  return out, [np.asarray(x) for x in inputs]


def as_memory(inputs, period):
  """What each layer was given, as caches: layer n is n % period."""
  return tuple(
    SegmentMemory(jnp.stack(inputs[first::period])) for first in range(period)
  )


@pytest.mark.parametrize(
  'changes, period',
  [
    ({'block': 'post'}, 1),
    slow({'block': 'pre'}, 1),
    slow({'block': 'parallel', 'clamp': 3}, 1),
    ({'attention': 'full, local(window=3)', 'loop': 'unroll'}, 2),
    slow({'remat': 'full', 'attention': 'local(window=5)'}, 1),
  ],
)
def test_two_segments_are_one_row(changes, period):
  """With all earlier states in memory, as if read at once."""
  model = make(**changes)
  params, tokens = tiny.params(model), tiny.tokens(B, M + L)
  whole, inputs = run(model, params, tokens)
  _, first = run(model, params, tokens[:, :M])
  out, _ = run(model, params, tokens[:, M:], as_memory(first, period))
  np.testing.assert_allclose(
    out.hidden_BLD, whole.hidden_BLD[:, M:], rtol=1e-4, atol=1e-5
  )
  # The memory for the next segment is the last M inputs of each layer.
  expected = as_memory([x[:, -M:] for x in inputs], period)
  assert len(out.caches) == len(expected) == period
  for found, memory in zip(out.caches, expected, strict=True):
    assert found.hidden_BMD.shape == (4 // period, B, M, D)
    np.testing.assert_allclose(
      found.hidden_BMD, memory.hidden_BMD, rtol=1e-4, atol=1e-5
    )


def test_a_long_segment_replaces_the_memory():
  model = make(memory=3)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  zeros = init_memories(model, B)
  assert zeros[0].hidden_BMD.shape == (4, B, 3, D)
  assert not np.any(zeros[0].hidden_BMD)
  out, inputs = run(model, params, tokens, zeros)
  expected = np.stack(inputs)[:, :, -3:]
  np.testing.assert_array_equal(out.caches[0].hidden_BMD, expected)
  # Zeros count as tokens.
  without, _ = run(model, params, tokens)
  assert np.max(np.abs(out.hidden_BLD - without.hidden_BLD)) > 1e-2
  assert without.caches == (None,)


@pytest.mark.parametrize('block', [slow('pre'), 'post'])
def test_no_gradient_goes_into_the_memory(block):
  model = make(block=block)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  rng = np.random.default_rng(2)
  memory = np.float32(rng.normal(size=(4, B, M, D)))

  def total(params, memory):
    variables = {'params': params}
    caches = (SegmentMemory(memory),)
    out = model.apply(variables, tokens, caches=caches)
    return jnp.sum(jnp.square(out.hidden_BLD[:, :1]))

  value, (of_params, of_memory) = jax.jit(
    jax.value_and_grad(total, argnums=(0, 1))
  )(params, memory)
  assert not np.any(of_memory)
  assert np.any(of_params['decoder']['periods']['block_0']['attention']['key'])
  other = jax.jit(total)(params, -memory)
  assert abs(other - value) > 1e-3


def test_clamped_distances():
  """Far tokens are all as far as the clamp: their order does not matter."""
  tokens = tiny.tokens(1, 7)
  tokens[0, :3] = [3, 8, 5]
  swapped = tokens.copy()
  swapped[0, :3] = [5, 3, 8]
  same, other = [], []
  for clamp, found in ((4, same), (0, other)):
    model = make(clamp=clamp, num_layers=1)
    params = tiny.params(model)
    for row in (tokens, swapped):
      found.append(np.asarray(run(model, params, row)[0].hidden_BLD[:, -1]))
  np.testing.assert_allclose(*same, rtol=1e-4, atol=1e-5)
  assert np.max(np.abs(other[0] - other[1])) > 1e-3


def test_refusals():
  for position in ('transformer_xl', 'rope'):
    with pytest.raises(UsageError, match='keeps no memory'):
      init_memories(make(position=position), B)
  for sizes in ((-1, 0), (0, -1)):
    with pytest.raises(UsageError, match='=-1 must be at least 0'):
      init_memories(make(*sizes), B)
