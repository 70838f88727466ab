# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of the run that a batch takes."""

from collections.abc import Callable
from typing import NamedTuple


class Taken(NamedTuple):
  """The rows of a batch.

  No two rows of a run have the same number, whatever their lengths. Rows of
  each length have an order of their own, in which they have an index.
  """

  offset: int  # number of the first row
  count: int
  length: int  # targets of each
  index: int  # of the first row

  def share(self, host_rows: Callable[[int], slice]) -> 'Taken':
    """The rows of one host: `host_rows` maps a count to the host's slice."""
    start, stop, _ = host_rows(self.count).indices(self.count)
    return self._replace(
      offset=self.offset + start, index=self.index + start, count=stop - start
    )

  @property
  def numbers(self) -> range:
    """The rows' numbers in the run."""
    return range(self.offset, self.offset + self.count)

  @property
  def indices(self) -> range:
    """The rows' places in the order of their length."""
    return range(self.index, self.index + self.count)


# Maps a step, counted from 0, to the rows of its batch.
TakenAt = Callable[[int], Taken]


def even(count: int, length: int) -> TakenAt:
  """Batches of `count` rows of one length, from the run's first on."""
  return lambda step: Taken(step * count, count, length, step * count)


# Rows of the global order that a run leaves out after a spike.
#
# A run that goes back to step r and leaves out n rows consumes, from step r on,
# the rows n places later, in the order of each length of rows. With the list of
# all (r, n) the data order stays a closed form of the step. `training.past` has
# the file of that list.


class Skip(NamedTuple):
  """Rows left out once."""

  step: int  # steps done in the restored state: the first step that changes
  rows: int  # how many places later its rows are
  spike: int  # the step of the spike, counted from 1


class Skips(NamedTuple):
  """All rows left out by a run, by step."""

  skips: tuple[Skip, ...] = ()
  # The rewind of the last entry may not be done yet: checkpoints after its step
  # may hold states that were given up.
  pending: bool = False

  def shifted(self, rows: TakenAt) -> TakenAt:
    """The data order with the rows left out."""

    def shifted_rows(step: int) -> Taken:
      taken = rows(step)
      skipped = sum(s.rows for s in self.skips if s.step <= step)
      return taken._replace(
        offset=taken.offset + skipped, index=taken.index + skipped
      )

    return shifted_rows

  def add(
    self, rows: TakenAt, *, step: int, spike: int, batches: int
  ) -> 'Skips':
    """Adds a skip, at least of all rows that were consumed until the spike.

    Args:
      rows: the data order without any skip.
      step: steps done in the restored state.
      spike: the step of the spike, counted from 1: steps done after it.
      batches: the fewest to leave out, from `step` on.
    """
    kept = tuple(s for s in self.skips if s.step <= step)
    consumed = self.shifted(rows)
    first, last = consumed(step), consumed(spike - 1)
    wanted = rows(step + batches).offset - rows(step).offset
    skipped = max(wanted, last.offset + last.count - first.offset)
    return Skips((*kept, Skip(step, skipped, spike)), pending=True)
