# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of a run in each batch, and rows that are skipped after spikes."""

from collections.abc import Callable
from typing import NamedTuple


class BatchRows(NamedTuple):
  """The rows of a batch.

  Rows of a run have unique numbers, whatever their lengths. Rows of each length
  have their own order, which the index refers to.
  """

  offset: int  # number of the first row
  count: int
  length: int  # targets in each row
  index: int  # of the first row

  def share(self, host_rows: Callable[[int], slice]) -> 'BatchRows':
    """The rows of one host: `host_rows` maps a count to the host's slice."""
    start, stop, _ = host_rows(self.count).indices(self.count)
    return self._replace(offset=self.offset + start, index=self.index + start, count=stop - start)

  @property
  def numbers(self) -> range:
    """The rows' numbers in the run."""
    return range(self.offset, self.offset + self.count)

  @property
  def indices(self) -> range:
    """The rows' places in the order of their length."""
    return range(self.index, self.index + self.count)


# Maps a step, counted from 0, to the rows of its batch.
RowsOfStep = Callable[[int], BatchRows]


def even(count: int, length: int) -> RowsOfStep:
  """Batches of `count` rows of one length."""
  return lambda step: BatchRows(step * count, count, length, step * count)


# Rows of the global order that a run skips after a spike.
#
# A run that rewinds to step r and skips n rows consumes, from step r on, the
# rows n places later, in the order of each row length. Given the list of all
# (r, n), the data order is still a closed form of the step. `training.past`
# reads and writes that list.


class Skip(NamedTuple):
  """One skip."""

  step: int  # steps done in the restored state: the first step affected
  rows: int  # number of rows skipped
  spike: int  # the step of the spike, counted from 1


class Skips(NamedTuple):
  """All skips of a run, by step."""

  skips: tuple[Skip, ...] = ()
  # The last entry's rewind may be unfinished: checkpoints after its step may
  # have abandoned states.
  pending: bool = False

  def shifted(self, rows: RowsOfStep) -> RowsOfStep:
    """The data order without the skipped rows."""

    def shifted_rows(step: int) -> BatchRows:
      of_step = rows(step)
      skipped = sum(s.rows for s in self.skips if s.step <= step)
      return of_step._replace(offset=of_step.offset + skipped, index=of_step.index + skipped)

    return shifted_rows

  def add(self, rows: RowsOfStep, *, step: int, spike: int, batches: int) -> 'Skips':
    """Adds a skip that covers at least all rows consumed up to the spike.

    Args:
      rows: the data order without any skip.
      step: steps done in the restored state.
      spike: the step of the spike, counted from 1.
      batches: minimum number of batches to skip, from `step` on.
    """
    earlier = tuple(s for s in self.skips if s.step <= step)
    consumed = self.shifted(rows)
    first, last = consumed(step), consumed(spike - 1)
    num_rows = rows(step + batches).offset - rows(step).offset
    skipped = max(num_rows, last.offset + last.count - first.offset)
    return Skips((*earlier, Skip(step, skipped, spike)), pending=True)
