# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention patterns, written out."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.nn.choices import PATTERNS
from gpt_jax.core.spec import UsageError

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
  ],
)
def test_pattern(text, drawing):
  pattern = spec.build('model.attention', text, PATTERNS)
  expected = mask(drawing)
  index = jnp.arange(len(expected))
  np.testing.assert_array_equal(pattern.visible(index[:, None], index[None, :]), expected)
  np.testing.assert_array_equal(pattern.num_visible(len(expected)), expected.sum(axis=1))


@pytest.mark.parametrize('text', ['bidirectional', 'full', 'local(window=4)'])
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


@pytest.mark.parametrize('size', [0, -3])
def test_sizes_must_be_positive(size):
  with pytest.raises(UsageError, match=f'window={size} must be at least 1'):
    spec.build('model.attention', f'local({size})', PATTERNS)
