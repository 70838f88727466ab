# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows cut from all documents joined end to end, or rows of whole documents.

Row r of `stream` has `length` targets, tokens r * length + 1 to
(r + 1) * length of a source, and one more token before them.

Row r of `documents` has as many whole documents as fit into `length` targets,
in the order of the store; they do not see each other. A longer document begins
a row, is cut into pieces of `length`, and shares its last row with the
documents that follow. The rest of a row is padding. Each token is a target
once; the first token of a document, or of a piece of one, is predicted only
from the token before it. At a document that is the previous document's end.
"""

from collections.abc import Sequence

import numpy as np

from gpt_jax.core.rows import rows as rows_lib
from gpt_jax.core.rows.rows import Keys, RowMaker, Rows, Texts
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.tokens.store import TokenStore


def begins(ends: np.ndarray, length: int, start: int, stop: int) -> np.ndarray:
  """Finds the rows among the tokens [start, stop) of a store.

  Args:
    ends: the exclusive end of each document, int64 [N].
    length: targets in a row.
    start: the start of a document.
    stop: the exclusive end of a document.

  Returns:
    int64 [R + 1]: row r has the targets [begins[r], begins[r + 1]).
  """
  first, last = np.searchsorted(ends, [start, stop], side='right')
  ends = ends[first:last]
  starts = np.concatenate([[start], ends[:-1]]).astype(np.int64)
  # The rows that a document fills by itself if it begins one, ...
  full = np.maximum(ends - starts - 1, 0) // length
  tails = starts + full * length
  # ... and the document after the last one beside its last piece.
  following = np.searchsorted(ends, tails + length, side='right').tolist()
  heads, document = [], 0
  while document < len(ends):
    heads.append(document)
    document = following[document]
  counts = full[heads] + 1
  rows = np.repeat(starts[heads], counts)
  rows += length * (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts))
  return np.append(rows, stop)


def segments_of(targets: np.ndarray, eos_id: int) -> tuple[np.ndarray, np.ndarray]:
  """Each target's document within its row, and its position in the document.

  Args:
    targets: int32 [B, L]; each document ends with `eos_id`.
    eos_id: the end of a document.

  Returns:
    Segments and positions, both from 0 in each row, int32 [B, L].
  """
  ended = np.zeros(targets.shape, np.int32)
  ended[:, 1:] = targets[:, :-1] == eos_id
  columns = np.arange(targets.shape[1], dtype=np.int32)[None]
  first = np.maximum.accumulate(np.where(ended, columns, 0), axis=1)
  return np.cumsum(ended, axis=1, dtype=np.int32), columns - first


class Stream(RowMaker):
  """Rows of `length` targets of a store."""

  holds = 'stream'
  arrays = ('before',)

  def __init__(self, store: TokenStore, length: int):
    """Counts the rows; there may be none."""
    self._store, self._length = store, length
    self._parts = store.parts()
    self.sizes = {name: (stop - start - 1) // length for name, (start, stop) in self._parts.items()}

  @property
  def num_rows(self) -> int:
    """Number of rows in an epoch of the whole store."""
    return (len(self._store) - 1) // self._length

  @property
  def num_held_out(self) -> int:
    """Number of rows in which each token is a target, also the first."""
    return -(-len(self._store) // self._length)

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of each row; the first is an input only."""
    del keys
    return [Texts([range(start, start + self._length + 1)], 0) for start in self._starts(places)]

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    del keys
    windows = self._store.read_many(self._starts(places), self._length + 1)
    return rows_lib.cut(windows.astype(np.int32))

  def read_held_out(self, keys: Keys) -> Rows:
    """Rows in which every token is a target, also the first; then padding."""
    starts = keys.row * self._length - 1  # one before the first target
    places = starts[:, None] + 1 + np.arange(self._length)
    windows = _window(self._store, starts, self._length)
    return rows_lib.cut(windows, places < len(self._store))

  def _starts(self, places: Sequence[Place]) -> list[int]:
    return [self._parts[place.source][0] + place.row * self._length for place in places]


class Documents(RowMaker):
  """Rows of whole documents."""

  holds = 'documents'
  arrays = ('before', 'segments', 'positions')

  def __init__(self, store: TokenStore, length: int):
    """Finds where rows begin."""
    self._store, self._length = store, length
    ends = store.document_ends
    self._begins = {
      name: begins(ends, length, start, stop) for name, (start, stop) in store.parts().items()
    }
    self.sizes = {name: len(x) - 1 for name, x in self._begins.items()}
    self.tokens = {n: int(x[-1] - x[0]) for n, x in self._begins.items()}

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The targets of each row."""
    del keys
    pieces = []
    for place in places:
      begins = self._begins[place.source]
      first, last = np.minimum([place.row, place.row + 1], len(begins) - 1)
      pieces.append(Texts([range(int(begins[first]), int(begins[last]))], 0))
    return pieces

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    eos_id, length = self._store.manifest.eos_id, self._length
    spans = [texts.ranges[0] for texts in self.texts(places, keys)]
    starts = np.array([span.start for span in spans], np.int64)
    windows = _window(self._store, starts - 1, length)
    counts = np.array([len(span) for span in spans], np.int64)
    real = np.arange(length)[None] < counts[:, None]
    windows[:, 1:][~real] = eos_id
    rows = rows_lib.cut(windows, real)
    segments, positions = segments_of(rows.tokens, eos_id)
    return rows._replace(segments=segments, positions=positions)


def _window(store: TokenStore, starts: np.ndarray, length: int) -> np.ndarray:
  """Rows, int32 [B, L + 1], from `starts` on; eos outside the store."""
  eos_id = store.manifest.eos_id
  tokens = np.full((len(starts), length + 1), eos_id, np.int32)
  whole = (starts >= 0) & (starts + length + 1 <= len(store))
  tokens[whole] = store.read_many(starts[whole], length + 1)
  for i in np.flatnonzero(~whole):
    first, stop = max(starts[i], 0), min(starts[i] + length + 1, len(store))
    if first < stop:
      ids = store.tokens(int(first), int(stop))
      tokens[i, first - starts[i] :][: len(ids)] = ids
  return tokens
