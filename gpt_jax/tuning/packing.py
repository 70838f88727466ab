# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch from sequences of tokens, packed or one by one.

In a packed row several sequences lie one after the other. They are segments
that do not see each other, and the positions of each start at 0, so that its
loss is the same as in a row of its own. A sequence of n tokens takes n - 1
places, since each of its inputs predicts the next token.

Which sequences share a row is decided once, by best-fit decreasing: the
longest sequence first, each into the fullest row that has room. So an epoch has
the same rows each time, in another order.
"""

import bisect
from collections.abc import Sequence

import numpy as np

from gpt_jax.core.rows.row_order import Batch
from gpt_jax.tuning.dialogues import LearnedTokens


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
  """Which items share a bin of size `room`: their numbers, bin by bin.

  Args:
    sizes: of the items, each at most `room`. Of equal sizes the first item
      comes first.
  """
  bins: list[list[int]] = []
  # Rooms that are left, and the bins that have each; the rooms sorted.
  rooms: list[int] = []
  having: dict[int, list[int]] = {}

  def put(number: int, left: int) -> None:
    if left not in having:
      having[left] = []
      bisect.insort(rooms, left)
    having[left].append(number)

  for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
    assert sizes[item] <= room, (sizes[item], room)
    place = bisect.bisect_left(rooms, sizes[item])
    if place == len(rooms):
      bins.append([item])
      put(len(bins) - 1, room - sizes[item])
      continue
    left = rooms[place]
    number = having[left].pop()
    if not having[left]:
      del having[left], rooms[place]
    bins[number].append(item)
    put(number, left - sizes[item])
  return bins


class TokenRows:
  """Sequences as rows of `length` inputs and targets.

  Attributes:
    num_sequences: how many there are.
  """

  def __init__(self, sequences: Sequence[LearnedTokens], length: int, pad: int, *, packed: bool):
    """`pad` fills rows; without `packed` each sequence is a row."""
    self._sequences, self._length, self._pad = sequences, length, pad
    self._packed = packed
    self.num_sequences = len(sequences)
    self._rows = [[i] for i in range(len(sequences))]
    if packed:
      sizes = [len(sequence.ids) - 1 for sequence in sequences]
      self._rows = best_fit(sizes, length)

  def __len__(self) -> int:
    """Number of rows."""
    return len(self._rows)

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of rows, each [len(numbers), length].

    `inputs` and `targets` are ids, `weights` 1 for the targets that are
    learned; packed rows also have `segments`, counted from 1, 0 being padding,
    and `positions`.
    """
    shape = len(numbers), self._length
    batch = {
      'inputs': np.full(shape, self._pad, np.int32),
      'targets': np.full(shape, self._pad, np.int32),
      'weights': np.zeros(shape, np.float32),
    }
    if self._packed:
      batch['segments'] = np.zeros(shape, np.int32)
      batch['positions'] = np.zeros(shape, np.int32)
    for row, number in enumerate(numbers):
      start = 0
      for segment, i in enumerate(self._rows[number], start=1):
        ids, learned = self._sequences[i]
        place = slice(start, start + len(ids) - 1)
        batch['inputs'][row, place] = ids[:-1]
        batch['targets'][row, place] = ids[1:]
        batch['weights'][row, place] = learned[1:]
        if self._packed:
          batch['segments'][row, place] = segment
          batch['positions'][row, place] = np.arange(len(ids) - 1)
        start = place.stop
    return batch
