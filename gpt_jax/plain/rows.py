# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows: which tokens of the store a row has, and the arrays of a batch."""

import numpy as np

from gpt_jax.plain.order import one_corpus as place
from gpt_jax.plain.order import shuffled
from gpt_jax.plain.recipe import ORDER, WEIGHTS
from gpt_jax.plain.schedules import shape_of
from gpt_jax.plain.types import Batch, Store


def corpora(store: Store) -> dict[str, tuple[int, int]]:
  """The tokens [start, stop) of each corpus."""
  if WEIGHTS:
    stops = store['parts']
    return dict(zip(stops, zip([0, *stops.values()], stops.values(), strict=False), strict=True))
  return {'': (0, store['num_tokens'])}


def ramped_stream_batch(store: Store, step: int) -> Batch:
  """Rows cut from all documents joined end to end; each token's target is the next one."""
  rows, length, _, tokens = shape_of(step)
  # Rows of one length are counted by their tokens.
  first = -(-tokens // length)
  size = (store['num_tokens'] - 1) // length
  starts = np.array([length * shuffled(i, size, ORDER) for i in range(first, first + rows)])
  windows = store['tokens'][starts[:, None] + np.arange(length + 1)].astype(np.int32)
  return {'inputs': windows[:, :-1], 'targets': windows[:, 1:]}


def stream_batch(store: Store, step: int) -> Batch:
  """Rows cut from all documents joined end to end; each token's target is the next one."""
  rows, length, first, _ = shape_of(step)
  size = (store['num_tokens'] - 1) // length
  starts = np.array([length * shuffled(i, size, ORDER) for i in range(first, first + rows)])
  windows = store['tokens'][starts[:, None] + np.arange(length + 1)].astype(np.int32)
  return {'inputs': windows[:, :-1], 'targets': windows[:, 1:]}


def mixed_stream_batch(store: Store, step: int) -> Batch:
  """Rows cut from the documents of each corpus joined end to end, each token with the next one."""
  rows, length, _, tokens = shape_of(step)
  # Rows of one length are counted by their tokens.
  first = -(-tokens // length)
  bounds = corpora(store)
  sizes = {name: (stop - start - 1) // length for name, (start, stop) in bounds.items()}
  places = [place(store, sizes, index) for index in range(first, first + rows)]
  starts = np.array([bounds[name][0] + row * length for name, row in places])
  windows = store['tokens'][starts[:, None] + np.arange(length + 1)].astype(np.int32)
  return {'inputs': windows[:, :-1], 'targets': windows[:, 1:]}


def document_starts(ends: np.ndarray, length: int, start: int, stop: int) -> np.ndarray:
  """Where the rows of whole documents begin in the tokens [start, stop), and their end.

  A row has as many documents as fit. A longer one is cut into rows, and shares its last with the
  documents that follow.
  """
  begins, at = [], start
  ends = ends[np.searchsorted(ends, start, 'right') : np.searchsorted(ends, stop, 'right')]
  while at < stop:
    begins.append(at)
    # The last document that ends within the row; none: a document fills the row.
    whole = np.searchsorted(ends, at + length, 'right')
    at = int(ends[whole - 1]) if whole and ends[whole - 1] > at else at + length
  return np.array([*begins, stop])


def document_batch(store: Store, step: int) -> Batch:
  """Rows of whole documents, which do not see each other; the rest of a row is padding."""
  rows, length, _, tokens = shape_of(step)
  # Rows of one length are counted by their tokens.
  first = -(-tokens // length)
  if f'rows/{length}' not in store:
    ends, parts = store['document_ends'], corpora(store)
    store[f'rows/{length}'] = {n: document_starts(ends, length, *parts[n]) for n in parts}
  begins = store[f'rows/{length}']
  sizes = {name: len(x) - 1 for name, x in begins.items()}
  store['row_tokens'] = {name: int(x[-1] - x[0]) for name, x in begins.items()}
  places = [place(store, sizes, index) for index in range(first, first + rows)]
  eos = store['eos_id']
  windows = np.full((rows, length + 1), eos, np.int32)
  weights = np.zeros((rows, length), np.float32)
  for i, (name, row) in enumerate(places):
    start, stop = begins[name][row : row + 2]
    windows[i, 0] = store['tokens'][start - 1] if start else eos
    windows[i, 1 : stop - start + 1] = store['tokens'][start:stop]
    weights[i, : stop - start] = 1
  targets, columns = windows[:, 1:], np.arange(length, dtype=np.int32)
  ended = np.zeros(targets.shape, np.int32)
  ended[:, 1:] = targets[:, :-1] == eos
  begun = np.maximum.accumulate(np.where(ended, columns, 0), axis=1)
  return {
    'inputs': windows[:, :-1],
    'targets': targets,
    'weights': weights,
    'segments': np.cumsum(ended, axis=1, dtype=np.int32),
    'positions': columns - begun,
  }
