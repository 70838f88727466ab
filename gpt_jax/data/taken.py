# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows of the run a batch takes."""

from collections.abc import Callable
from typing import NamedTuple


class Taken(NamedTuple):
  """The rows of a batch.

  No two rows of a run have the same number, of whatever length they are. Rows
  of each length have an order of their own, in which an index is a place.
  """

  offset: int  # the number of the first
  count: int
  length: int  # targets in each
  index: int  # of the first

  def share(self, host_rows: Callable[[int], slice]) -> 'Taken':
    """Those of one host: `host_rows` gives the slice of so many rows."""
    start, stop, _ = host_rows(self.count).indices(self.count)
    return self._replace(
      offset=self.offset + start, index=self.index + start, count=stop - start
    )

  @property
  def numbers(self) -> range:
    """Of its rows."""
    return range(self.offset, self.offset + self.count)

  @property
  def indices(self) -> range:
    """Of its rows."""
    return range(self.index, self.index + self.count)


# Step, from 0, to the rows of its batch.
TakenAt = Callable[[int], Taken]


def even(count: int, length: int) -> TakenAt:
  """Batches of `count` rows of one length, from the run's first on."""
  return lambda step: Taken(step * count, count, length, step * count)
