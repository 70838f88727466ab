# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird's blocks: which there are, how many keys they are, how they are
drawn.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn import bigbird
from gpt_jax.nn.masks import PATTERNS, random_blocks
from gpt_jax.spec import UsageError


def pattern(text):
  return spec.build('model.attention', text, PATTERNS)


def mixed(x):
  """MurmurHash3's last step, in whole numbers of Python."""
  x = (x + 0x9E3779B9) % 2**32
  x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
  x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
  return x ^ (x >> 16)


def test_random_blocks_by_hand():
  """The r highest of what is left beside the window, and the lower of two."""
  seed, layer, heads, number = 5, 7, 3, 11
  blocks = pattern(f'bigbird(block=4, random=2, seed={seed})').blocks
  draw = jax.jit(lambda layer: random_blocks(blocks, layer, heads, number))
  found = np.asarray(draw(layer))
  for h in range(heads):
    for i in range(number):
      key = mixed(mixed(mixed(layer ^ mixed(seed)) ^ h) ^ i)
      rank = {j: mixed(key ^ j) >> 1 for j in range(number) if abs(i - j) > 1}
      expected = sorted(rank, key=lambda j, rank=rank: (-rank[j], j))[:2]
      assert found[h, i].tolist() == expected


def test_random_blocks_follow_from_seed_and_layer():
  """The same in a loop over layers, and spread evenly over the row."""
  blocks = pattern('bigbird(random=3)').blocks
  draw = jax.jit(lambda i: random_blocks(blocks, i, 12, 62))
  alone = [draw(i) for i in range(12)]
  looped = jax.jit(lambda: jax.lax.map(draw, jnp.arange(12)))()
  np.testing.assert_array_equal(looped, alone)
  table = np.asarray(looped)
  assert len({x.tobytes() for layer in table for x in layer}) == 12 * 12
  query = np.arange(62)[:, None]
  assert (np.abs(table - query) > 1).all()
  assert (np.diff(np.sort(table, -1)) > 0).all()  # none twice
  counts = np.bincount(table.ravel(), minlength=62)
  # 12 * 12 * 62 * 3 draws: 432 of each block, plus or minus 21.
  assert abs(counts - 432).max() < 5 * 21
  other = jax.jit(lambda: random_blocks(blocks._replace(seed=1), 0, 12, 62))()
  assert (np.asarray(other) != table[0]).mean() > 0.9


def test_512_of_4096_keys():
  """Three blocks of the window, two global and three random ones: 1/8."""
  seen = pattern('bigbird').num_visible(4096)
  # Of the blocks beside the global ones the window is one block shorter.
  np.testing.assert_array_equal(
    seen.reshape(64, 64),
    np.repeat([4096, 448, *[512] * 60, 448, 4096], 64).reshape(64, 64),
  )


@pytest.mark.parametrize(
  'text, length, last_whole',
  [
    ('bigbird(block=3, random=2)', 41, 27),
    ('bigbird(block=3, window=5, random=1)', 29, 27),
    ("bigbird(block=3, random=2, draw='first')", 29, 27),
    ('bigbird(block=3, window=1, random=2, extra=5)', 41, 20),
  ],
)
def test_counts_are_the_lists_lengths(text, length, last_whole):
  blocks = pattern(text).blocks
  run = jax.jit(lambda: bigbird.listed(blocks, 3, 2, length))
  lists = np.asarray(run())
  assert lists.max() == (3 if 'first' in text else 1)
  expected = np.minimum(lists, 1).sum(axis=-1)
  for head in expected:
    np.testing.assert_array_equal(pattern(text).num_visible(length), head)
  # Global tokens see all and are seen by all; the others not.
  np.testing.assert_array_equal(
    (lists[0] > 0).all(axis=1), (lists[0] > 0).all(axis=0)
  )
  assert not (lists[0, length // 2] > 0).all()
  # Up to window + global + 2 * random blocks all see all.
  whole = pattern(text).num_visible(last_whole)
  np.testing.assert_array_equal(whole, last_whole)
  assert pattern(text).num_visible(last_whole + 1).min() < last_whole


@pytest.mark.parametrize(
  'arguments, why',
  [
    ('window=4', 'window=4 is even.*take 5'),
    ("draw='last'", "draw='last' is unknown; one of uniform, first"),
    ("draw='first', extra=7", "draw='first' with extra=7"),
    ('block=0', 'block=0 must be at least 1'),
  ],
)
def test_arguments(arguments, why):
  with pytest.raises(UsageError, match=f'model.attention.*{why}'):
    pattern(f'bigbird({arguments})')
