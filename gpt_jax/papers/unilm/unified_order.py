# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The mask of a row, one of UniLM's four (Dong et al., 2019; section 2.3).

A third of the rows are bidirectional, a third sequence to sequence, a sixth
left to right, a sixth right to left. The row's number in the run determines the
mask, so that any six consecutive rows have these shares, and 330 have 110, 110,
55 and 55; a row's mask differs between epochs as its number does.
"""

import numpy as np

BIDIRECTIONAL, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SEQ2SEQ = range(4)
# The names of the masks in metrics.
NAMES = ('bidirectional', 'left_to_right', 'right_to_left', 'seq2seq')

_TURNS = np.array(
  [BIDIRECTIONAL, SEQ2SEQ, LEFT_TO_RIGHT, BIDIRECTIONAL, SEQ2SEQ, RIGHT_TO_LEFT], np.int32
)


def masks(run: np.ndarray) -> np.ndarray:
  """The mask of each row, int32 [B], by `Keys.run`."""
  return _TURNS[run % len(_TURNS)]


def share(mask: int) -> float:
  """The fraction of rows that have a mask."""
  return float(np.mean(np.equal(_TURNS, mask)))
