# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of whole sentences (Liu et al., 2019, RoBERTa: section 4.2).

  data.rows = 'full_sentences'   FULL-SENTENCES: [CLS] s s s [SEP] s s [SEP]
  data.rows = 'doc_sentences'    DOC-SENTENCES: [CLS] s s s [SEP]

A row has consecutive sentences, as many as fit. In full rows they go on over
the ends of documents, with a [SEP] there; else a row ends with its document, so
that more of it is padding (the paper has more rows in a batch instead). A
sentence that is longer than a row is cut into rows, of which the last goes on
with the next sentence. Each sentence is in one row of an epoch. The rows are
the same in each epoch, whatever the seed, which decides on their order.
"""

from collections.abc import Sequence

import numpy as np

from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.rows.texts import (
  RowMaker,
  Sentences,
  Texts,
  assemble,
  check_special,
  sentences,
  walk,
)
from gpt_jax.spec import UsageError
from gpt_jax.tokens.mixture import Place
from gpt_jax.tokens.store import TokenStore

_AROUND = 2  # [CLS] and [SEP]


class SentenceRows(RowMaker):
  """Rows of `length` tokens of a store."""

  made_of = 'sentences'
  arrays = ('special',)

  def __init__(self, store: TokenStore, length: int, *, crossing: bool):
    """Finds where the rows begin.

    Args:
      store: with sentences.
      length: of a row.
      crossing: whether rows go on over the ends of documents.
    """
    check_special(store)
    if length <= _AROUND:
      raise UsageError(
        f'model.context_length={length}: a row of data.rows={store.rows!r} '
        f'has [CLS], [SEP] and a text; give {_AROUND + 1} or more'
      )
    self._store, self._length = store, length
    self._bounds, self.tokens = {}, {}
    for name, found in sentences(store).items():
      self._bounds[name], counts = bounds(
        found, length - _AROUND, crossing=crossing
      )
      self.tokens[name] = int(np.sum(counts + _AROUND))
    self.sizes = {name: len(found) for name, found in self._bounds.items()}

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store that rows have; nothing is drawn."""
    del keys
    found = []
    for source, _, row in places:
      bound = self._bounds[source][row : row + 1].tolist()
      found.append(Texts([range(*ends) for ends in bound], 0))
    return found

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    """The rows at some places."""
    return assemble(
      self._store, self.texts(places, keys), self._length, types=False
    )


def bounds(
  found: Sentences, capacity: int, *, crossing: bool
) -> tuple[np.ndarray, np.ndarray]:
  """The rows.

  Args:
    found: the sentences.
    capacity: tokens of a row, each [SEP] between documents counted.
    crossing: whether rows go on over the ends of documents.

  Returns:
    The tokens of the store that each row has, int64 [R, 2], among them the ends
    of documents without a sentence; and how many the row counts: its sentences
    and each [SEP] between documents, int64 [R].
  """
  starts, stops, documents = _cut(found, capacity)
  begins = np.diff(documents, prepend=documents[:1]) > 0
  # What a sentence adds to a row: itself, and the [SEP] of a document before.
  added = np.cumsum(stops - starts + begins)
  before = np.append(0, added)
  # As the first of a row it needs no [SEP] before it.
  most = before[:-1] + begins + capacity
  following = np.searchsorted(added, most, side='right')
  if not crossing:
    ends = np.searchsorted(documents, documents, side='right')
    following = np.minimum(following, ends)
  heads = walk(following)
  lasts = np.append(heads[1:], len(starts)) - 1
  counts = added[lasts] - before[heads] - begins[heads]
  return np.stack([starts[heads], stops[lasts]], axis=1), counts


def _cut(
  found: Sentences, capacity: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Starts, stops and documents, with long sentences cut into `capacity`."""
  counts = -(-(found.stops - found.starts) // capacity)
  starts = np.repeat(found.starts, counts)
  nth = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
  starts += capacity * nth
  stops = np.minimum(starts + capacity, np.repeat(found.stops, counts))
  return starts, stops, np.repeat(found.documents, counts)
