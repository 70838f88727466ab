# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of UniLM's four masks a row has (Dong et al., 2019; section 2.3).

A third of the rows see both sides, a third are sequence to sequence, a sixth
each see the left or the right alone. They take turns by their number in the
run, so that each six rows in a row have these shares, and 330 have 110, 110, 55
and 55; a row has another mask in the next epoch as its number has another rest.
"""

import numpy as np

BIDIRECTIONAL, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SEQ2SEQ = range(4)
# By these numbers, as metrics call them.
NAMES = ('bidirectional', 'left_to_right', 'right_to_left', 'seq2seq')

_TURNS = np.array(
  [
    *(BIDIRECTIONAL, SEQ2SEQ, LEFT_TO_RIGHT),
    *(BIDIRECTIONAL, SEQ2SEQ, RIGHT_TO_LEFT),
  ],
  np.int32,
)


def masks(run: np.ndarray) -> np.ndarray:
  """The mask of each row, int32 [B], by `Keys.run`."""
  return _TURNS[run % len(_TURNS)]


def share(mask: int) -> float:
  """The share of the rows that have a mask."""
  return float(np.mean(np.equal(_TURNS, mask)))
