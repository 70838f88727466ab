# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The global order: batch s of a run is a closed-form function of (seed, s).

Row r of a token store has `length` targets, tokens r * length + 1 to
(r + 1) * length, and as inputs the tokens one before. Row i of the run is the
row at place i of a permutation of all rows, another one in each epoch. Batch s
is the rows of the run from `offset(s)` on, so nothing needs to be iterated, and
nothing depends on the number of hosts. Of a mixture, see `mixture`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import grain
import numpy as np

from gpt_jax.data.mixture import Order, Place
from gpt_jax.data.store import TokenStore
from gpt_jax.spec import UsageError

Batch = dict[str, np.ndarray]

# Rows of tokens, int32 [B, L + 1], to the arrays of a batch.
Corrupt = Callable[[np.ndarray], Batch]

# Two batches are made at once, four are held ready: enough to hide a slow
# read, and a step on a CPU loses next to nothing to the threads.
_READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


class Rows(NamedTuple):
  """The rows of the run from `offset` to `offset + count`."""

  offset: int
  count: int


class RowSource:
  """The rows of a token store in the order of the run."""

  def __init__(self, store: TokenStore, *, length: int, seed: int):
    """Rows of `length` targets, in the order given by `seed`.

    Raises:
      UsageError: the store is shorter than one row.
    """
    self._store = store
    self._length = length
    self.rows_per_epoch = rows_per_epoch(store, length)
    ordered = grain.MapDataset.range(self.rows_per_epoch).seed(seed)
    self._order: Any = ordered.shuffle().repeat()
    self._mixture: Order | None = None
    self._begins = {'': 0}
    if store.mixture:
      ends = store.manifest.parts
      self._begins = dict(zip(ends, [0, *ends.values()], strict=False))
      sizes = {n: (ends[n] - self._begins[n] - 1) // length for n in ends}
      self._mixture = Order(store.mixture, sizes, length=length, seed=seed)

  def place(self, index: int) -> Place:
    """Returns where row `index` of the run is found; its source may be ''."""
    if self._mixture:
      return self._mixture.place(index)
    row = int(self._order[index])
    return Place('', index // self.rows_per_epoch, row)

  def begin(self, place: Place) -> int:
    """The first token of a row in the store."""
    return self._begins[place.source] + place.row * self._length

  def row_numbers(self, indices: Iterable[int]) -> np.ndarray:
    """Returns which row of its source is row i of the run, for each i."""
    return np.array([self.place(int(i)).row for i in indices], np.int64)

  def epochs(self, index: int) -> dict[str, float]:
    """Passes over the data before row `index`: `epochs`, `epochs/SOURCE`."""
    parts = self._mixture.epochs(index) if self._mixture else {}
    return {
      'epochs': index / self.rows_per_epoch,
      **{f'epochs/{name}': value for name, value in parts.items()},
    }

  def read(self, indices: Iterable[int]) -> np.ndarray:
    """Returns rows of the run, int32 [num_indices, length + 1]."""
    starts = [self.begin(self.place(int(i))) for i in indices]
    return self._store.read_many(starts, self._length + 1).astype(np.int32)


def rows_per_epoch(store: TokenStore, length: int) -> int:
  """Returns how many rows of `length` targets the store holds.

  Raises:
    UsageError: not even one.
  """
  count = (len(store) - 1) // length
  if count < 1:
    raise UsageError(
      f'{store.folder}: has {len(store)} tokens, a row needs {length + 1}; '
      'lower model.context_length, or add text to data.source'
    )
  return count


def causal(rows: np.ndarray) -> Batch:
  """Each token predicts the next: [B, L + 1] to arrays [B, L]."""
  targets = np.ascontiguousarray(rows[:, 1:])
  return {
    'inputs': np.ascontiguousarray(rows[:, :-1]),
    'targets': targets,
    'weights': np.ones(targets.shape, np.float32),
  }


def all_rows(count: int) -> slice:
  """The share of the only host."""
  return slice(0, count)


def batches(
  store: TokenStore,
  *,
  length: int,
  seed: int,
  start: int,
  stop: int,
  rows: Callable[[int], tuple[int, int]],
  host_rows: Callable[[int], slice] = all_rows,
  corrupt: Corrupt = causal,
) -> Iterator[Batch]:
  """Yields this host's share of the batches of steps [start, stop).

  Threads prepare the batches ahead and end when the iterator is closed or
  dropped; an error in one of them is raised here, at its step.

  Args:
    store: the train split.
    length: targets in a row.
    seed: of the order.
    start: the first step.
    stop: after the last step.
    rows: step -> (offset, count), the rows of the run that make its batch.
    host_rows: count -> the slice of them that this host reads.
    corrupt: rows of tokens -> the arrays of a batch.

  Raises:
    UsageError: at once, if the store is shorter than one row.
  """
  source = RowSource(store, length=length, seed=seed)

  def batch(step: int) -> Batch:
    offset, count = rows(step)
    return corrupt(source.read(range(offset, offset + count)[host_rows(count)]))

  return prefetch(batch, start, stop)


def evaluation_batches(
  store: TokenStore,
  *,
  length: int,
  rows: int,
  host_rows: Callable[[int], slice] = all_rows,
  corrupt: Corrupt = causal,
) -> Iterator[Batch]:
  """Yields batches that have each token of the store as a target once.

  In order; the token before the first is the end of a document. What fills up
  the last row and the last batch has weight 0. The number of batches, see
  `num_evaluation_batches`, is the same on every host.

  Args:
    store: the split held out.
    length: targets in a row.
    rows: in a batch, over all hosts.
    host_rows: count -> the slice of them that this host reads.
    corrupt: rows of tokens -> the arrays of a batch.
  """

  def batch(step: int) -> Batch:
    numbers = np.arange(step * rows, (step + 1) * rows)[host_rows(rows)]
    tokens, counts = _evaluation_rows(store, numbers, length)
    made = corrupt(tokens)
    made['weights'] = np.where(counts, made['weights'], np.float32(0))
    return made

  count = num_evaluation_batches(store, length=length, rows=rows)
  return prefetch(batch, 0, count)


def num_evaluation_batches(store: TokenStore, *, length: int, rows: int) -> int:
  """Returns how many batches of `rows` rows cover the store."""
  return -(-len(store) // (length * rows))


def _evaluation_rows(
  store: TokenStore, numbers: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows int32 [B, L + 1], and which of their targets count [B, L]."""
  eos_id = store.manifest.eos_id
  tokens = np.full((len(numbers), length + 1), eos_id, np.int32)
  starts = numbers * length - 1  # of the row, one before its first target
  whole = (starts >= 0) & (starts + length + 1 <= len(store))
  tokens[whole] = store.read_many(starts[whole], length + 1)
  for i in np.flatnonzero(~whole):
    first, stop = max(starts[i], 0), min(starts[i] + length + 1, len(store))
    if first < stop:
      found = store.tokens(int(first), int(stop))
      tokens[i, first - starts[i] :][: len(found)] = found
  positions = starts[:, None] + 1 + np.arange(length)
  return tokens, positions < len(store)


def prefetch(
  batch: Callable[[int], Batch], start: int, stop: int
) -> Iterator[Batch]:
  """Yields `batch(step)` for the steps, made ahead by Grain's threads."""
  steps = grain.MapDataset.range(start, stop).map(batch)
  iterator = iter(steps.to_iter_dataset(_READ))

  def stream() -> Iterator[Batch]:
    with contextlib.closing(iterator):
      yield from iterator

  return stream()
