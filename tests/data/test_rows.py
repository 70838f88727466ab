# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a prefix and a target: only the target counts."""

import numpy as np
import pytest

from gpt_jax.data.rows import Example, prefix_target
from gpt_jax.spec import UsageError

E = 0  # the end of a document


def test_rows_written_out():
  batch = prefix_target(
    [
      Example([5, 6, 7], [8, 9]),  # fits
      Example([1, 2, 3, 4, 5, 6], [8]),  # the prefix is cut at its start
      Example([], [3, 4]),
      Example(np.array([9], np.uint16), np.array([1, 2, 3, 4, 5, 6])),
    ],
    length=7,
    eos_id=E,
  )
  np.testing.assert_array_equal(
    batch['inputs'],
    [
      [E, 5, 6, 7, 8, 9, E],
      [E, 2, 3, 4, 5, 6, 8],
      [E, 3, 4, E, E, E, E],
      [E, 1, 2, 3, 4, 5, 6],
    ],
  )
  np.testing.assert_array_equal(
    batch['targets'],
    [
      [5, 6, 7, 8, 9, E, E],
      [2, 3, 4, 5, 6, 8, E],
      [3, 4, E, E, E, E, E],
      [1, 2, 3, 4, 5, 6, E],
    ],
  )
  np.testing.assert_array_equal(
    batch['weights'],
    [
      [0, 0, 0, 1, 1, 1, 0],
      [0, 0, 0, 0, 0, 1, 1],
      [1, 1, 1, 0, 0, 0, 0],
      [1, 1, 1, 1, 1, 1, 1],
    ],
  )
  assert batch['inputs'].dtype == batch['targets'].dtype == np.int32
  assert batch['weights'].dtype == np.float32


def test_a_target_that_does_not_fit_is_named():
  fits, too_long = Example([1], [2] * 6), Example([], [2] * 7)
  with pytest.raises(UsageError, match=r'context_length=7: .* example 1 has 7'):
    prefix_target([fits, too_long], length=7, eos_id=E)
