# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Biases on the scores: ALiBi's slopes and T5's buckets, as published."""

import math

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.build import POSITIONS
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.nn.positions import alibi_slopes, t5_bucket
from gpt_jax.nn.transformer import parameter_shapes
from gpt_jax.spec import UsageError
from tests.support import tiny

B, H, K = 2, 3, 5
QUERY = np.array([[4, 5, 6, 7], [0, 1, 2, 3]])
KEY = np.array([[0, 1, 2, 3, 4, 5, 6], [7, 6, 5, 4, 2, 1, 0]])


def bias(name, pattern='full', heads=H, **arguments):
  return POSITIONS[name](**arguments).bias(
    num_heads=heads,
    head_size=K,
    pattern=PATTERNS[pattern](),
    initializer=nn.initializers.normal(0.5),
  )


def published_slopes(n):
  """`get_slopes` of the paper's released code."""

  def power_of_two(n):
    start = 2 ** (-(2 ** -(math.log2(n) - 3)))
    return [start * start**i for i in range(n)]

  if math.log2(n).is_integer():
    return power_of_two(n)
  closest = 2 ** math.floor(math.log2(n))
  more = published_slopes(2 * closest)[0::2][: n - closest]
  return power_of_two(closest) + more


def test_alibi_slopes_of_8_heads():
  # Press et al. (2022), section 3: 1/2, 1/4, ..., 1/256.
  expected = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
  np.testing.assert_array_equal(alibi_slopes(8), expected)


def test_alibi_slopes_of_12_heads():
  first = [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]
  more = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
  np.testing.assert_allclose(alibi_slopes(12), first + more)


@pytest.mark.parametrize('heads', [1, 2, 3, 5, 7, 16, 25, 71])
def test_alibi_slopes_as_published(heads):
  np.testing.assert_allclose(alibi_slopes(heads), published_slopes(heads))


@pytest.mark.parametrize('scale, factor', [('none', 1), ('rsqrt', K**-0.5)])
def test_alibi(scale, factor):
  module = bias('alibi', 'bidirectional', scale=scale)
  found = jax.jit(module.apply)({}, QUERY, KEY)
  assert found.shape == (B, H, 4, 7)
  slopes = published_slopes(H)
  for b, h, i, j in np.ndindex(found.shape):
    distance = abs(QUERY[b, i] - KEY[b, j])
    expected = -slopes[h] * distance * factor
    np.testing.assert_allclose(found[b, h, i, j], expected, rtol=1e-6)


def test_alibi_in_bfloat16_rounds_slopes_positions_and_products():
  module = bias('alibi', scale='rsqrt', dtype='bfloat16')
  key = np.array([[0, 1, 3, 100, 255, 257, 1000]])
  found = jax.jit(module.apply)({}, QUERY[:1], key)
  assert found.shape == (1, H, 4, 7)
  slopes = np.array(published_slopes(H)).astype(ml_dtypes.bfloat16)
  for h, i, j in np.ndindex(found.shape[1:]):
    product = slopes[h] * key[0, j].astype(ml_dtypes.bfloat16)
    assert product.dtype == ml_dtypes.bfloat16
    expected = np.float32(product) * np.float32(K**-0.5)
    np.testing.assert_allclose(found[0, h, i, j], expected, rtol=2e-7)


def test_alibi_in_bfloat16_differs_by_a_constant_for_each_query():
  # 8 heads, and positions below 256: nothing has to be rounded.
  exact = bias('alibi', heads=8).apply({}, QUERY, KEY)
  rounded = bias('alibi', heads=8, dtype='bfloat16').apply({}, QUERY, KEY)
  seen = QUERY[:, :, None] >= KEY[:, None, :]
  for b, h, i in np.ndindex(B, 8, 4):
    difference = (rounded - exact)[b, h, i][seen[b, i]]
    np.testing.assert_array_equal(difference, difference[0])


@pytest.mark.parametrize(
  'arguments, message',
  [
    ("scale='sqrt'", "scale='sqrt'.*none, rsqrt"),
    ("dtype='float16'", "dtype='float16'.*float32, bfloat16"),
  ],
)
def test_alibi_mistakes_are_named(arguments, message):
  with pytest.raises(UsageError, match=message):
    spec.build('model.position', f'alibi({arguments})', POSITIONS)


def published_bucket(distance, *, causal, num_buckets, max_distance):
  """`_relative_position_bucket` of mesh-tensorflow, for one distance.

  The distance is key position - query position.
  """
  out, n = 0, -distance
  if causal:
    n = max(n, 0)
  else:
    num_buckets //= 2
    out += num_buckets if n < 0 else 0
    n = abs(n)
  max_exact = num_buckets // 2
  if n < max_exact:
    return out + n
  large = max_exact + int(
    math.log(n / max_exact)
    / math.log(max_distance / max_exact)
    * (num_buckets - max_exact)
  )
  return out + min(large, num_buckets - 1)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('num_buckets, max_distance', [(32, 128), (20, 53)])
def test_t5_buckets_as_published(causal, num_buckets, max_distance):
  distances = np.arange(-300, 301)
  rule = {
    'causal': causal,
    'num_buckets': num_buckets,
    'max_distance': max_distance,
  }
  found = jax.jit(lambda d: t5_bucket(d, **rule))(distances)
  expected = [published_bucket(int(d), **rule) for d in distances]
  np.testing.assert_array_equal(found, expected)


def test_t5_causal_buckets_written_out():
  # 8 buckets: 4 of one distance each, then 4 log(n / 4) / log(16 / 4) more.
  distances = -np.arange(19)
  found = t5_bucket(distances, causal=True, num_buckets=8, max_distance=16)
  expected = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]
  np.testing.assert_array_equal(found, expected)
  # Later keys, which are never seen, count as distance 0.
  later = t5_bucket(
    np.array([1, 9]), causal=True, num_buckets=8, max_distance=16
  )
  np.testing.assert_array_equal(later, [0, 0])


def test_t5_bidirectional_buckets_written_out():
  # 4 buckets a side: distances 0 and 1, then 2 log(n / 2) / log(8 / 2) more.
  distances = np.arange(-9, 10)
  found = t5_bucket(distances, causal=False, num_buckets=8, max_distance=8)
  before = [3, 3, 3, 3, 3, 3, 2, 2, 1]  # -9 to -1
  after = [5, 6, 6, 7, 7, 7, 7, 7, 7]  # 1 to 9
  np.testing.assert_array_equal(found, [*before, 0, *after])


@pytest.mark.parametrize('pattern', ['full', 'bidirectional'])
def test_t5_bias_is_the_buckets_scalar(pattern):
  module = bias('t5_bias', pattern, num_buckets=8, max_distance=16)
  variables = jax.jit(module.init)(jax.random.key(0), QUERY, KEY)
  boxed = variables['params']['embedding']
  assert boxed.names == ('buckets', 'heads')
  table = np.asarray(boxed.value)
  assert table.shape == (8, H)
  found = jax.jit(module.apply)(variables, QUERY, KEY)
  assert found.shape == (B, H, 4, 7)
  for b, h, i, j in np.ndindex(found.shape):
    bucket = published_bucket(
      int(KEY[b, j] - QUERY[b, i]),
      causal=pattern == 'full',
      num_buckets=8,
      max_distance=16,
    )
    assert found[b, h, i, j] == table[bucket, h]


@pytest.mark.parametrize('position', ['t5_bias', 'alibi'])
def test_causal_and_bidirectional_layers_share_no_bias(position):
  """The buckets and distances of one kind are not those of the other."""
  mixed = {'attention': 'full, bidirectional', 'num_layers': 2}
  with pytest.raises(UsageError, match=r'full, bidirectional.*cannot share'):
    parameter_shapes(tiny.model(position=position, **mixed))
  parameter_shapes(tiny.model(**mixed))
  same = {'attention': 'full, local(window=3)', 'num_layers': 2}
  parameter_shapes(tiny.model(position=position, **same))
