# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention patterns, written out."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.nn.masks import PATTERNS
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
  ],
)
def test_pattern(text, drawing):
  pattern = spec.build('model.attention', text, PATTERNS)
  index = jnp.arange(5)
  np.testing.assert_array_equal(
    pattern.visible(index[:, None], index[None, :]), mask(drawing)
  )


def test_positions_need_not_start_at_zero():
  """Queries at 2 and 5 against seven slots, as decoding asks."""
  pattern = spec.build('model.attention', 'local(window=3)', PATTERNS)
  seen = pattern.visible(jnp.array([2, 5])[:, None], jnp.arange(7)[None, :])
  expected = mask("""
    ###....
    ...###.
  """)
  np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize('window', [0, -3])
def test_window_must_be_positive(window):
  with pytest.raises(UsageError, match=f'window={window} must be at least 1'):
    PATTERNS['local'](window)
