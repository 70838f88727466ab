# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary positions against complex numbers, and each scaling written out."""

import math

import jax
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn.build import POSITIONS
from gpt_jax.nn.positions import SCALINGS
from gpt_jax.spec import UsageError

B, L, H, K = 3, 5, 2, 14
THETA = 500.0
AT = np.array([[0, 1, 2, 3, 4], [11, 7, 3, 90, 1], [0, 0, 63, 64, 65]])


def heads(seed=0):
  x = np.random.default_rng(seed).normal(size=(B, L, H, K))
  return x.astype(np.float32)


def pairs(layout, size):
  if layout == 'half':
    return [(i, i + size // 2) for i in range(size // 2)]
  return [(2 * i, 2 * i + 1) for i in range(size // 2)]


def expected_turn(x, at, *, layout, size, frequencies, scale=1.0):
  """RoFormer, equation 12: the i-th pair is a complex number that turns."""
  out = x.astype(np.float64)
  for b, m, h in np.ndindex(x.shape[:3]):
    for (i, j), frequency in zip(pairs(layout, size), frequencies, strict=True):
      turn = scale * np.exp(1j * at[b, m] * frequency)
      z = complex(x[b, m, h, i], x[b, m, h, j]) * turn
      out[b, m, h, i], out[b, m, h, j] = z.real, z.imag
  return out


def plain(size, theta=THETA):
  return [theta ** (-2 * i / size) for i in range(size // 2)]


def llama3(size, theta, *, factor, original, low=1.0, high=4.0):
  """`apply_scaling` of Meta's LLaMA 3.1, by wavelengths."""
  out = []
  for f in plain(size, theta):
    wave = 2 * math.pi / f
    if wave < original / high:
      out.append(f)
    elif wave > original / low:
      out.append(f / factor)
    else:
      smooth = (original / wave - low) / (high - low)
      out.append((1 - smooth) * f / factor + smooth * f)
  return out


def yarn(size, theta, *, factor, original, fast=32.0, slow=1.0, truncate=True):
  """YaRN, section 3.2, with the bounds of its released code."""

  def dim(turns):
    return size * math.log(original / (turns * 2 * math.pi)) / (2 * log_theta)

  log_theta = math.log(theta)
  low, high = dim(fast), dim(slow)
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, size - 1)
  if low == high:
    high += 0.001
  out = []
  for i, f in enumerate(plain(size, theta)):
    ramp = min(max((i - low) / (high - low), 0), 1)
    out.append(f / factor * ramp + f * (1 - ramp))
  return out


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
@pytest.mark.parametrize('fraction, size', [(1.0, 14), (3 / 7, 6), (0.45, 6)])
def test_each_pair_turns(layout, fraction, size):
  x = heads()
  rope = POSITIONS['rope'](theta=THETA, fraction=fraction, layout=layout)
  found = jax.jit(rope.rotate)(x, AT)
  expected = expected_turn(
    x, AT, layout=layout, size=size, frequencies=plain(size)
  )
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
  np.testing.assert_array_equal(found[..., size:], x[..., size:])


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
@pytest.mark.parametrize('fraction', [1.0, 3 / 7])
@pytest.mark.parametrize(
  'scaling', ['none', 'linear(factor=3)', 'yarn(factor=3, original_context=64)']
)
def test_scores_depend_on_the_distance_alone(layout, fraction, scaling):
  rope = POSITIONS['rope'](
    theta=THETA, fraction=fraction, layout=layout, scaling=scaling
  )
  q, k = heads(1), heads(2)
  rotate = jax.jit(rope.rotate)

  def scores(shift):
    turned = [np.asarray(rotate(x, AT + shift), np.float64) for x in (q, k)]
    return np.einsum('blhk,bmhk->bhlm', *turned)

  np.testing.assert_allclose(scores(0), scores(37), rtol=0, atol=2e-4)
  # Were nothing turned, this would hold trivially.
  plain_scores = np.einsum('blhk,bmhk->bhlm', q, k)
  assert np.abs(scores(0) - plain_scores).max() > 0.5


def test_position_zero_stays():
  x = heads()
  rope = POSITIONS['rope']()
  found = jax.jit(rope.rotate)(x, np.zeros((1, L), np.int32))
  np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
  'call, expected',
  [
    ('none', lambda size, theta: plain(size, theta)),
    (
      'linear(factor=2.5)',
      lambda size, theta: [f / 2.5 for f in plain(size, theta)],
    ),
    (
      'llama3(factor=8, original_context=64)',
      lambda size, theta: llama3(size, theta, factor=8, original=64),
    ),
    (
      'llama3(factor=4, original_context=100, low_freq_factor=2,'
      ' high_freq_factor=16)',
      lambda size, theta: llama3(
        size, theta, factor=4, original=100, low=2, high=16
      ),
    ),
    (
      'yarn(factor=4, original_context=512)',
      lambda size, theta: yarn(size, theta, factor=4, original=512),
    ),
    (
      'yarn(factor=4, original_context=512, beta_fast=10, beta_slow=2,'
      ' truncate=False)',
      lambda size, theta: yarn(
        size, theta, factor=4, original=512, fast=10, slow=2, truncate=False
      ),
    ),
    # Fewer than 2 pi tokens: the bounds cross.
    (
      'yarn(factor=4, original_context=3, truncate=False)',
      lambda size, theta: yarn(
        size, theta, factor=4, original=3, truncate=False
      ),
    ),
  ],
)
@pytest.mark.parametrize('size, theta', [(14, 500.0), (64, 1e4), (10, 5e5)])
def test_scalings(call, expected, size, theta):
  x = np.zeros((1, 1, 1, size), np.float32)
  x[..., : size // 2] = 1
  rotate = jax.jit(POSITIONS['rope'](theta=theta, scaling=call).rotate)
  frequencies = expected(size, theta)
  found = np.asarray(rotate(x, np.array([[1]])))[0, 0, 0]
  angles = np.arctan2(found[size // 2 :], found[: size // 2])
  np.testing.assert_allclose(angles, frequencies, rtol=2e-6, atol=1e-7)
  lengths = np.hypot(found[size // 2 :], found[: size // 2])
  scale = 0.1 * math.log(4) + 1 if call.startswith('yarn') else 1
  np.testing.assert_allclose(lengths, scale, rtol=1e-6)


def test_llama3_keeps_ramps_and_divides():
  # Waves of 2 pi 500^(2 i / 14): 6.3, 15, 37, 90, 219, 532, 1293 tokens.
  found, _ = SCALINGS['llama3'](factor=8.0, original_context=400)(14, THETA)
  ratio = found / plain(14)
  np.testing.assert_allclose(ratio[:4], 1)  # shorter than 400 / 4
  assert 1 / 8 < ratio[4] < 1
  np.testing.assert_allclose(ratio[5:], 1 / 8)  # longer than 400


@pytest.mark.parametrize(
  'extra, scale',
  [
    ('', 0.1 * math.log(16) + 1),
    (', attention_factor=1.25', 1.25),
  ],
)
def test_yarn_scales_queries_and_keys(extra, scale):
  call = f'yarn(factor=16, original_context=64{extra})'
  rope = POSITIONS['rope'](theta=THETA, scaling=call)
  x = heads()
  found = jax.jit(rope.rotate)(x, AT)
  expected = expected_turn(
    x,
    AT,
    layout='half',
    size=K,
    frequencies=yarn(K, THETA, factor=16, original=64),
    scale=scale,
  )
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'layout': 'quarter'}, "layout='quarter'.*half, interleaved"),
    ({'fraction': 0.0}, 'fraction=0.0 must be above 0'),
    ({'fraction': 1.5}, 'fraction=1.5 must be at most 1'),
    ({'theta': 1e999}, 'theta=inf must be a finite number'),
    ({'scaling': 'dynamic'}, "unknown 'dynamic'; one of linear, llama3"),
    (
      {'scaling': 'llama3(factor=8, original_context=64, low_freq_factor=4)'},
      'high_freq_factor=4.0 must be above low_freq_factor=4',
    ),
  ],
)
def test_mistakes_are_named(arguments, message):
  with pytest.raises(UsageError, match=message):
    written = ', '.join(f'{k}={v!r}' for k, v in arguments.items())
    text = f'rope({written.replace("inf", "1e999")})'
    spec.build('model.position', text, POSITIONS)


@pytest.mark.parametrize('fraction, size', [(0.5, 7), (0.05, 0)])
def test_pairs_need_an_even_number(fraction, size):
  rope = POSITIONS['rope'](fraction=fraction)
  with pytest.raises(UsageError, match=f'of a head of 14 is {size} features'):
    rope.rotate(heads(), AT)
