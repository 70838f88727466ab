# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention patterns, written out."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn.choices import PATTERNS
from gpt_jax.spec import UsageError

FULL = """
#....
##...
###..
####.
#####
"""
LOCAL_1 = """
#....
.#...
..#..
...#.
....#
"""
LOCAL_2 = """
#....
##...
.##..
..##.
...##
"""
LOCAL_3 = """
#....
##...
###..
.###.
..###
"""
STRIDED_3 = """
#.......
##......
###.....
####....
.####...
..####..
#..####.
.#..####
"""
FIXED_3 = """
#.......
##......
###.....
..##....
..###...
..####..
..#..##.
..#..###
"""
FIXED_3_2 = """
#.......
##......
###.....
.###....
.####...
.#####..
.##.###.
.##.####
"""


def mask(drawing):
  return np.array([[c == '#' for c in row] for row in drawing.split()])


@pytest.mark.parametrize(
  'text, drawing',
  [
    ('full', FULL),
    ('local(window=1)', LOCAL_1),
    ('local(window=2)', LOCAL_2),
    ('local(3)', LOCAL_3),
    ('local(window=5)', FULL),
    ('local(window=97)', FULL),
    ('bidirectional', '##### ' * 5),
    ('strided(stride=1)', FULL),
    ('strided(stride=5)', FULL),
    ('strided(stride=3)', STRIDED_3),
    ('fixed(stride=1)', FULL),
    ('fixed(stride=5)', FULL),
    ('fixed(stride=3)', FIXED_3),
    ('fixed(stride=3, summary=2)', FIXED_3_2),
    ('fixed(3, 3)', FULL),
  ],
)
def test_pattern(text, drawing):
  pattern = spec.build('model.attention', text, PATTERNS)
  expected = mask(drawing)
  index = jnp.arange(len(expected))
  np.testing.assert_array_equal(
    pattern.visible(index[:, None], index[None, :]), expected
  )
  np.testing.assert_array_equal(
    pattern.num_visible(len(expected)), expected.sum(axis=1)
  )


@pytest.mark.parametrize(
  'text',
  [
    'bidirectional',
    'fixed(stride=3, summary=2)',
    'full',
    'local(window=4)',
    'strided(stride=5)',
  ],
)
def test_bounds_follow_from_the_rule(text):
  """Attention leaves out what `causal` and `window` say is not seen."""
  pattern = spec.build('model.attention', text, PATTERNS)
  index = jnp.arange(29)
  seen = np.asarray(pattern.visible(index[:, None], index[None, :]))
  query, key = np.nonzero(seen)
  assert pattern.causal == (key <= query).all()
  furthest = (query - key).max() + 1
  assert pattern.window == (4 if 'local' in text else None)
  if pattern.window is None:
    assert furthest > 25
  else:
    assert furthest == pattern.window
  assert np.diag(seen).all()
  assert pattern.name == text.partition('(')[0]


def test_positions_need_not_start_at_zero():
  """Queries at 2 and 5 against seven slots, as decoding asks."""
  pattern = spec.build('model.attention', 'local(window=3)', PATTERNS)
  seen = pattern.visible(jnp.array([2, 5])[:, None], jnp.arange(7)[None, :])
  expected = mask("""
    ###....
    ...###.
  """)
  np.testing.assert_array_equal(seen, expected)


def test_decoding_sees_the_same_sets():
  """One query at a time, in a cache that is longer."""
  for text, drawing in (
    ('strided(stride=3)', STRIDED_3),
    ('fixed(stride=3, summary=2)', FIXED_3_2),
  ):
    pattern = spec.build('model.attention', text, PATTERNS)
    for i, row in enumerate(mask(drawing)):
      seen = pattern.visible(jnp.array([[i]]), jnp.arange(8)[None, :])
      np.testing.assert_array_equal(seen, row[None])


@pytest.mark.parametrize('size', [0, -3])
@pytest.mark.parametrize(
  'name, field',
  [
    ('local', 'window'),
    ('strided', 'stride'),
    ('fixed', 'stride'),
  ],
)
def test_sizes_must_be_positive(name, field, size):
  with pytest.raises(UsageError, match=f'{field}={size} must be at least 1'):
    spec.build('model.attention', f'{name}({size})', PATTERNS)


def test_fixed_needs_a_summary():
  with pytest.raises(UsageError, match='summary=0 must be at least 1'):
    spec.build('model.attention', 'fixed(3, summary=0)', PATTERNS)
  # All of a block is the most (above: `fixed(3, 3)`).
  with pytest.raises(UsageError, match=r'model\.attention: summary=4 .*3$'):
    PATTERNS['fixed'](3, summary=4)
