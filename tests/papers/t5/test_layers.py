# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's position buckets, against plain JAX and written out."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.papers.t5.layers import t5_bias, t5_bucket
from tests.support import reference

ROWS, HEADS = 2, 3
QUERY = np.array([[4, 5, 6, 7], [0, 1, 2, 3]])
KEY = np.array([[0, 1, 2, 3, 4, 5, 6], [7, 6, 5, 4, 2, 1, 0]])


def by_hand(distances, *, causal, num_buckets, max_distance):
  """Plain JAX's, in float32: the logarithm of a distance may be a whole number of buckets."""
  plain = reference.of(NUM_BUCKETS=num_buckets, MAX_DISTANCE=max_distance)
  return np.asarray(plain.distance_buckets(distances, not causal))


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('num_buckets, max_distance', [(32, 128), (20, 53)])
def test_t5_buckets(causal, num_buckets, max_distance):
  distances = np.arange(-300, 301)
  rule = {'causal': causal, 'num_buckets': num_buckets, 'max_distance': max_distance}
  found = jax.jit(lambda d: t5_bucket(d, **rule))(distances)
  np.testing.assert_array_equal(found, by_hand(distances, **rule))


@pytest.mark.parametrize('t5_bucket', [t5_bucket, by_hand])
def test_t5_causal_buckets_written_out(t5_bucket):
  # 8 buckets: 4 of one distance each, then 4 log(n / 4) / log(16 / 4) more.
  distances = -np.arange(19)
  found = t5_bucket(distances, causal=True, num_buckets=8, max_distance=16)
  expected = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]
  np.testing.assert_array_equal(found, expected)
  # Later keys, which are never seen, count as distance 0.
  later = t5_bucket(np.array([1, 9]), causal=True, num_buckets=8, max_distance=16)
  np.testing.assert_array_equal(later, [0, 0])


@pytest.mark.parametrize('t5_bucket', [t5_bucket, by_hand])
def test_t5_bidirectional_buckets_written_out(t5_bucket):
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
  distances = KEY[:, None] - QUERY[:, :, None]
  buckets = by_hand(distances, causal=pattern == 'full', num_buckets=8, max_distance=16)
  np.testing.assert_array_equal(found, np.moveaxis(table[buckets], -1, 1))
