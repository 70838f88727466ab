# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The global order: batch s of a run is a closed-form function of (seed, s).

Row r of a token store has `length` targets, tokens r * length + 1 to
(r + 1) * length, and as inputs the tokens one before. Row i of the run is the
row at place i of a permutation of all rows, another one in each epoch. Batch s
is the rows of the run from `offset(s)` on, so nothing needs to be iterated, and
nothing depends on the number of hosts. Of a mixture, see `mixture`; of rows
of whole documents, which need not be full, `packing`.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator

import grain
import numpy as np

from gpt_jax.data import packing
from gpt_jax.data import rows as rows_lib
from gpt_jax.data.mixture_order import Order, Place
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.shuffle import Shuffle
from gpt_jax.data.store import TokenStore
from gpt_jax.spec import UsageError

Batch = dict[str, np.ndarray]

# Rows and what their random choices follow from, to the arrays of a batch.
MakeBatch = Callable[[Rows, Keys], Batch]

# Of a store in memory two batches are made at once, and four are held ready: a
# step on a CPU loses next to nothing to the threads.
_READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
# Of others more, since a remote store answers late: with eight batches on
# their way, reads of up to eight steps' time are hidden.
_READ_AHEAD = grain.ReadOptions(num_threads=8, prefetch_buffer_size=16)


class RowSource:
  """The rows of a token store in the order of the run."""

  def __init__(self, store: TokenStore, *, length: int, seed: int):
    """Rows of `length` targets, in the order given by `seed`.

    Raises:
      UsageError: the store is shorter than one row.
    """
    self._store, self._length, self._seed = store, length, seed
    self.rows_per_epoch = rows_per_epoch(store, length)
    self._order = Shuffle(self.rows_per_epoch, seed)
    self._mixture: Order | None = None
    self._begins = {'': 0}
    self._packed = None
    if store.rows == 'documents':
      self._packed = store.packed(length)
    if store.mixture:
      ends = store.manifest.parts
      self._begins = dict(zip(ends, [0, *ends.values()], strict=False))
      sizes = {n: (ends[n] - self._begins[n] - 1) // length for n in ends}
      tokens = None
      if self._packed:
        sizes, tokens = packing.counts(self._packed)
      self._mixture = Order(
        store.mixture, sizes, length=length, seed=seed, tokens=tokens
      )

  def place(self, index: int) -> Place:
    """Returns where row `index` of the run is found; its source may be ''."""
    if self._mixture:
      return self._mixture.place(index)
    return Place('', index // self.rows_per_epoch, self._order[index])

  def span(self, place: Place) -> range:
    """The tokens of a row in the store; the first is an input only.

    Of whole documents it is the targets.
    """
    if self._packed:
      begins = self._packed[place.source]
      return range(begins[place.row], begins[place.row + 1])
    begin = self._begins[place.source] + place.row * self._length
    return range(begin, begin + self._length + 1)

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

  def read(self, indices: Iterable[int]) -> tuple[Rows, Keys]:
    """Returns rows of the run, and what their random choices follow from."""
    numbers = np.fromiter(indices, np.int64)
    places = [self.place(number) for number in numbers.tolist()]
    keys = Keys(
      self._seed,
      numbers,
      np.array([place.row for place in places], np.int64),
      np.array([place.epoch for place in places], np.int64),
    )
    spans = [self.span(place) for place in places]
    if self._packed:
      return _packed_rows(self._store, spans, self._length), keys
    starts = [span.start for span in spans]
    windows = self._store.read_many(starts, self._length + 1)
    return rows_lib.cut(windows.astype(np.int32)), keys

  def batch(self, indices: Iterable[int], make_batch: MakeBatch) -> Batch:
    """Returns rows of the run as the arrays of a batch."""
    return make_batch(*self.read(indices))


def rows_per_epoch(store: TokenStore, length: int) -> int:
  """Returns how many rows of `length` targets the store holds.

  Raises:
    UsageError: not even one.
  """
  if store.rows == 'documents':
    return sum(len(begins) - 1 for begins in store.packed(length).values())
  count = (len(store) - 1) // length
  if count < 1:
    raise UsageError(
      f'{store.folder}: has {len(store)} tokens, a row needs {length + 1}; '
      'lower model.context_length, or add text to data.source'
    )
  return count


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
  make_batch: MakeBatch,
  host_rows: Callable[[int], slice] = all_rows,
) -> Generator[Batch]:
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
    make_batch: rows and their keys -> the arrays of a batch.
    host_rows: count -> the slice of them that this host reads.

  Raises:
    UsageError: at once, if the store is shorter than one row.
  """
  source = RowSource(store, length=length, seed=seed)

  def batch(step: int) -> Batch:
    offset, count = rows(step)
    numbers = range(offset, offset + count)[host_rows(count)]
    return source.batch(numbers, make_batch)

  return prefetch(batch, start, stop, ahead=not store.in_memory)


def evaluation_batches(
  store: TokenStore,
  *,
  length: int,
  rows: int,
  make_batch: MakeBatch,
  host_rows: Callable[[int], slice] = all_rows,
) -> Iterator[Batch]:
  """Yields batches that have each token of the store as a target once.

  In order; the token before the first is the end of a document. What fills up
  the last row and the last batch has weight 0. The number of batches, see
  `num_evaluation_batches`, is the same on every host.

  Args:
    store: the split held out.
    length: targets in a row.
    rows: in a batch, over all hosts.
    make_batch: rows and their keys -> the arrays of a batch.
    host_rows: count -> the slice of them that this host reads.
  """

  def batch(step: int) -> Batch:
    numbers = np.arange(step * rows, (step + 1) * rows)[host_rows(rows)]
    return make_batch(
      _evaluation_rows(store, numbers, length), Keys.held_out(numbers)
    )

  count = num_evaluation_batches(store, length=length, rows=rows)
  return prefetch(batch, 0, count, ahead=not store.in_memory)


def num_evaluation_batches(store: TokenStore, *, length: int, rows: int) -> int:
  """Returns how many batches of `rows` rows cover the store."""
  if store.rows == 'documents':
    return -(-rows_per_epoch(store, length) // rows)
  return -(-len(store) // (length * rows))


def _evaluation_rows(
  store: TokenStore, numbers: np.ndarray, length: int
) -> Rows:
  """Rows that have each token of the store once, in order."""
  if store.rows == 'documents':
    begins = store.packed(length)['']
    bounds = begins[np.minimum([numbers, numbers + 1], len(begins) - 1)]
    return _packed_rows(store, [range(*bound) for bound in bounds.T], length)
  starts = numbers * length - 1  # of the row, one before its first target
  places = starts[:, None] + 1 + np.arange(length)
  return rows_lib.cut(_window(store, starts, length), places < len(store))


def _packed_rows(store: TokenStore, spans: list[range], length: int) -> Rows:
  """Rows of whole documents: the tokens of `spans`, and padding."""
  eos_id = store.manifest.eos_id
  bounds = np.array([[s.start, s.stop] for s in spans], np.int64)
  starts, stops = bounds.reshape(-1, 2).T
  windows = _window(store, starts - 1, length)
  real = np.arange(length)[None] < (stops - starts)[:, None]
  windows[:, 1:][~real] = eos_id
  rows = rows_lib.cut(windows, real)
  segments, positions = packing.segments(rows.tokens, eos_id)
  return rows._replace(segments=segments, positions=positions)


def _window(store: TokenStore, starts: np.ndarray, length: int) -> np.ndarray:
  """Rows int32 [B, L + 1] from `starts` on; eos outside of the store."""
  eos_id = store.manifest.eos_id
  tokens = np.full((len(starts), length + 1), eos_id, np.int32)
  whole = (starts >= 0) & (starts + length + 1 <= len(store))
  tokens[whole] = store.read_many(starts[whole], length + 1)
  for i in np.flatnonzero(~whole):
    first, stop = max(starts[i], 0), min(starts[i] + length + 1, len(store))
    if first < stop:
      found = store.tokens(int(first), int(stop))
      tokens[i, first - starts[i] :][: len(found)] = found
  return tokens


def prefetch(
  batch: Callable[[int], Batch], start: int, stop: int, *, ahead: bool = False
) -> Generator[Batch]:
  """Yields `batch(step)` for the steps, made by Grain's threads.

  Args:
    batch: step -> batch.
    start: the first step.
    stop: after the last step.
    ahead: by more threads and further ahead, as batches take long to read.
  """
  steps = grain.MapDataset.range(start, stop).map(batch)
  options = _READ_AHEAD if ahead else _READ
  with contextlib.closing(iter(steps.to_iter_dataset(options))) as iterator:
    yield from iterator
