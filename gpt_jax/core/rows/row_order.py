# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The global order: batch s of a run is a closed-form function of (seed, s).

A row maker (`row_makers`) knows the rows of a token store by number, and the
tokens of each. Row i of the run is entry i of a permutation of all rows, a new
one in each epoch. Batch s has the rows of the run from `offset(s)` on, so
nothing is iterated, and nothing depends on the number of hosts. If a run has
rows of several lengths, each length has its own rows and order. For the order
of a mixture, see `tokens.mixture`.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import grain
import numpy as np

from gpt_jax.core.rows import row_makers
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.core.rows.rows import Keys, Rows, Texts
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Order, Place, Shuffle
from gpt_jax.core.tokens.store import TokenStore

Batch = dict[str, np.ndarray]

# (rows, keys of their random choices) -> arrays of a batch.
MakeBatch = Callable[[Rows, Keys], Batch]

# For a store in memory: two threads, four batches ready, which hardly slow down
# a step on a CPU.
_READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
# For other stores, which may be remote: eight batches are read concurrently,
# which hides reads of up to eight steps.
_READ_AHEAD = grain.ReadOptions(num_threads=8, prefetch_buffer_size=16)


class RowSource:
  """The rows of a token store in the order of the run."""

  def __init__(self, store: TokenStore, *, length: int, seed: int):
    """Rows of `length` tokens, in the order given by `seed`."""
    self._seed = seed
    self._maker = row_makers.load(store, length)
    self.rows_per_epoch = self._maker.num_rows
    if self.rows_per_epoch < 1:
      raise UsageError(
        f'{store.folder}: has {len(store)} tokens, a row needs {length + 1}; '
        'lower model.context_length, or add text to data.source'
      )
    self._order = Shuffle(self.rows_per_epoch, seed)
    self._mixture: Order | None = None
    if store.mixture:
      self._mixture = Order(
        store.mixture,
        self._maker.sizes,
        length=length,
        seed=seed,
        tokens=self._maker.tokens,
        examples=store.num_examples(),
      )

  def place(self, index: int) -> Place:
    """Returns the place of row `index` of the run; its source may be ''."""
    if self._mixture:
      return self._mixture.place(index)
    return Place('', index // self.rows_per_epoch, self._order[index])

  def places(self, batch_rows: BatchRows) -> tuple[list[Place], Keys]:
    """The places of rows of the run, and the keys of their random choices."""
    places = [self.place(index) for index in batch_rows.indices]
    numbers = np.array(batch_rows.numbers, np.int64)
    rows = np.array([place.row for place in places], np.int64)
    epochs = np.array([place.epoch for place in places], np.int64)
    return places, Keys(self._seed, numbers, rows, epochs)

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """Returns the tokens of the store in each row; see `places`.

    In rows cut from a stream the first token is an input only.
    """
    return self._maker.texts(places, keys)

  def row_numbers(self, indices: Iterable[int]) -> np.ndarray:
    """Returns the numbers of rows of the run within their sources."""
    return np.array([self.place(int(i)).row for i in indices], np.int64)

  def epochs(self, index: int) -> dict[str, float]:
    """Passes over the data before row `index`: `epochs`, `epochs/SOURCE`."""
    parts = self._mixture.epochs(index) if self._mixture else {}
    return {
      'epochs': index / self.rows_per_epoch,
      **{f'epochs/{name}': value for name, value in parts.items()},
    }

  def read(self, batch_rows: BatchRows) -> tuple[Rows, Keys]:
    """Returns rows of the run, and the keys of their random choices."""
    places, keys = self.places(batch_rows)
    return self._maker.read(places, keys), keys

  def batch(self, batch_rows: BatchRows, make_batch: MakeBatch) -> Batch:
    """Returns rows of the run as the arrays of a batch."""
    return make_batch(*self.read(batch_rows))


def sources(store: TokenStore, *, seed: int) -> Callable[[int], RowSource]:
  """The rows of a run by their length, made at the first call for each."""
  return functools.cache(lambda length: RowSource(store, length=length, seed=seed))


def all_rows(count: int) -> slice:
  """The slice of a single host: all rows."""
  return slice(0, count)


def batches(
  store: TokenStore,
  *,
  seed: int,
  start: int,
  stop: int,
  rows: RowsOfStep,
  make_batch: MakeBatch,
  host_rows: Callable[[int], slice] = all_rows,
) -> Generator[Batch]:
  """Yields this host's share of the batches of steps [start, stop).

  Threads prepare the batches ahead and end when the iterator is closed or
  dropped; an error in one of them is raised here, at its step.

  Args:
    store: the train split.
    rows: step -> the rows of the run that make its batch.
    make_batch: rows and their keys -> the arrays of a batch.
    host_rows: count -> the slice of them that this host reads.
  """
  of_length = sources(store, seed=seed)
  if start < stop:
    of_length(rows(start).length)

  def batch(step: int) -> Batch:
    batch_rows = rows(step).share(host_rows)
    return of_length(batch_rows.length).batch(batch_rows, make_batch)

  return prefetch(batch, start, stop, ahead=not store.in_memory)


def evaluation_batches(
  store: TokenStore,
  *,
  length: int,
  rows: int,
  make_batch: MakeBatch,
  host_rows: Callable[[int], slice] = all_rows,
  most: int | None = None,
) -> Iterator[Batch]:
  """Yields batches with each token of the store as a target once, in order.

  The first token follows the end of a document. Padding of the last row and the
  last batch has weight 0. The number of batches is the same on every host.

  Args:
    store: the split held out.
    length: targets in a row.
    rows: in a batch, over all hosts.
    make_batch: rows and their keys -> the arrays of a batch.
    host_rows: count -> the slice of them that this host reads.
    most: read only this many rows of the store, from the first; None: all.
  """
  maker = row_makers.load(store, length)
  filling = maker.num_held_out  # past the last row: reads as padding
  stop = filling if most is None else min(filling, most)

  def batch(step: int) -> Batch:
    numbers = np.arange(step * rows, (step + 1) * rows)[host_rows(rows)]
    keys = Keys.held_out(np.where(numbers < stop, numbers, filling))
    return make_batch(maker.read_held_out(keys), keys)

  return prefetch(batch, 0, -(-stop // rows), ahead=not store.in_memory)


def prefetch(
  batch: Callable[[int], Batch], start: int, stop: int, *, ahead: bool = False
) -> Generator[Batch]:
  """Yields `batch(step)` for the steps, made by Grain's threads.

  Args:
    ahead: use more threads and read further ahead, for slow reads.
  """
  steps = grain.MapDataset.range(start, stop).map(batch)
  options = _READ_AHEAD if ahead else _READ
  with contextlib.closing(iter(steps.to_iter_dataset(options))) as iterator:
    yield from iterator
