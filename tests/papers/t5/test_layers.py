# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's position buckets, against the released code and written out."""

import math

import jax
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.papers.t5.layers import t5_bias, t5_bucket

ROWS, HEADS = 2, 3
QUERY = np.array([[4, 5, 6, 7], [0, 1, 2, 3]])
KEY = np.array([[0, 1, 2, 3, 4, 5, 6], [7, 6, 5, 4, 2, 1, 0]])


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
    math.log(n / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
  )
  return out + min(large, num_buckets - 1)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('num_buckets, max_distance', [(32, 128), (20, 53)])
def test_t5_buckets_as_published(causal, num_buckets, max_distance):
  distances = np.arange(-300, 301)
  rule = {'causal': causal, 'num_buckets': num_buckets, 'max_distance': max_distance}
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
  later = t5_bucket(np.array([1, 9]), causal=True, num_buckets=8, max_distance=16)
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
  module = t5_bias(num_buckets=8, max_distance=16).bias(
    num_heads=HEADS,
    head_size=5,
    pattern=PATTERNS[pattern](),
    initializer=nn.initializers.normal(0.5),
  )
  variables = jax.jit(module.init)(jax.random.key(0), QUERY, KEY)
  boxed = variables['params']['embedding']
  assert boxed.names == ('buckets', 'heads')
  table = np.asarray(boxed.value)
  assert table.shape == (8, HEADS)
  found = jax.jit(module.apply)(variables, QUERY, KEY)
  assert found.shape == (ROWS, HEADS, 4, 7)
  for b, h, i, j in np.ndindex(found.shape):
    bucket = published_bucket(
      int(KEY[b, j] - QUERY[b, i]), causal=pattern == 'full', num_buckets=8, max_distance=16
    )
    assert found[b, h, i, j] == table[bucket, h]
