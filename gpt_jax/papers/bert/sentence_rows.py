# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of whole sentences (Liu et al., 2019, RoBERTa: section 4.2).

  data.rows = 'full_sentences'   FULL-SENTENCES: [CLS] s s s [SEP] s s [SEP]
  data.rows = 'doc_sentences'    DOC-SENTENCES: [CLS] s s s [SEP]

A row has as many consecutive sentences as fit. FULL-SENTENCES rows continue
across the ends of documents, with a [SEP] there; DOC-SENTENCES rows end with
their document, and so have more padding (the paper has more rows in a batch
instead). A sentence that is longer than a row is cut into rows, the last of
which continues with the next sentence. Each sentence is in one row of an epoch.
The rows are the same in each epoch; the seed determines their order.

`assemble` makes all rows of sentences, including those of two texts
(`pair_rows`). The token that ends a document in the store becomes [SEP] in a
row that continues after it.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gpt_jax.core.rows.rows import Keys, RowMaker, Rows, Texts, check_length
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.tokens.store import TokenStore


class Sentences(NamedTuple):
  """Sentences that have a token, besides the end of a document."""

  starts: np.ndarray  # int64 [S], their first tokens in the store
  stops: np.ndarray  # int64 [S], after their last, without ends of documents
  documents: np.ndarray  # int64 [S], the document of each; ascending


def check_special(store: TokenStore):
  """Checks that the tokenizer has [CLS] and [SEP]."""
  special = store.special
  missing = [
    name for name, i in (('[CLS]', special.cls_id), ('[SEP]', special.sep_id)) if i is None
  ]
  if missing:
    raise UsageError(
      f'tokenizer.name={store.manifest.tokenizer!r}: has no '
      f'{" and no ".join(missing)}, which data.rows={store.rows!r} puts around '
      "texts; take a tokenizer of encoders, such as 'wordpiece(30000)'"
    )


def sentences(store: TokenStore) -> dict[str, Sentences]:
  """The sentences of each source of a mixture; without one, those of ''."""
  found, ends, document_ends = {}, store.sentence_ends, store.document_ends
  for name, (start, stop) in store.parts().items():
    first, last = np.searchsorted(ends, [start, stop], side='right')
    stops = ends[first:last]
    starts = np.append(start, stops[:-1])
    documents = np.searchsorted(document_ends, starts, side='right')
    stops = stops - (stops == document_ends[documents])
    kept = stops > starts
    if not kept.any():
      where = f' of the source {name}' if name else ''
      raise UsageError(
        f'{store.folder}: data.rows={store.rows!r}: no document{where} has a token; add text'
      )
    found[name] = Sentences(starts[kept], stops[kept], documents[kept])
  return found


def walk(following: np.ndarray) -> np.ndarray:
  """Where rows begin: at 0, and at each row's end.

  Args:
    following: int64 [N], following[i] is the end of a row that begins at i;
      greater than i, at most N.
  """
  steps, heads, head = following.tolist(), [], 0
  while head < len(steps):
    heads.append(head)
    head = steps[head]
  return np.array(heads, np.int64)


def assemble(store: TokenStore, found: Sequence[Texts], length: int, *, types: bool) -> Rows:
  """Assembles rows from their texts.

  Args:
    store: has the tokens.
    found: the texts of each row, which fit into `length` with special tokens.
    types: whether to add token types and the label `pair`: see `Rows`.
  """
  special = store.special
  assert special.cls_id is not None and special.sep_id is not None
  tokens = np.full((len(found), length), special.pad_id, np.int32)
  real = np.zeros(tokens.shape, bool)
  put_in, token_types = np.zeros_like(real), np.zeros_like(tokens)
  ranges = [part for texts in found for part in texts.ranges]
  read = iter(store.read_ranges(ranges))
  for i, texts in enumerate(found):
    at = 0
    for nth in range(len(texts.ranges)):
      ids = next(read).astype(np.int32)
      parted = ids == store.manifest.eos_id
      # Without the ends of documents that have no other token.
      kept = np.append(True, ~(parted[1:] & parted[:-1]))
      ids, parted = ids[kept], parted[kept]
      head = np.full(int(nth == 0), special.cls_id, np.int32)
      both = np.where(parted, np.int32(special.sep_id), ids)
      both = np.concatenate([head, both, [np.int32(special.sep_id)]])
      stop = at + len(both)
      tokens[i, at:stop], token_types[i, at:stop] = both, nth
      put_in[i, at : at + len(head)] = put_in[i, stop - 1] = True
      put_in[i, at + len(head) : stop - 1] = parted
      at = stop
    real[i, :at] = True
  rows = Rows(tokens, real, special=put_in)
  if types:
    pair = np.array([texts.pair for texts in found], np.int32)
    rows = rows._replace(token_types=token_types, pair=pair)
  return rows


_AROUND = 2  # [CLS] and [SEP]


class SentenceRows(RowMaker):
  """Rows of `length` tokens of a store."""

  holds = 'sentences'
  made_of = 'sentences'
  arrays = ('special',)

  def __init__(self, store: TokenStore, length: int, *, crossing: bool):
    """Finds the rows; if `crossing`, they continue across documents."""
    check_special(store)
    check_length(store.rows, length, _AROUND + 1, '[CLS], [SEP] and a text')
    self._store, self._length = store, length
    self._bounds, self.tokens = {}, {}
    for name, found in sentences(store).items():
      self._bounds[name], counts = bounds(found, length - _AROUND, crossing=crossing)
      self.tokens[name] = int(np.sum(counts + _AROUND))
    self.sizes = {name: len(found) for name, found in self._bounds.items()}

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    del keys
    found = []
    for source, _, row in places:
      bound = self._bounds[source][row : row + 1].tolist()
      found.append(Texts([range(*ends) for ends in bound], 0))
    return found

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    return assemble(self._store, self.texts(places, keys), self._length, types=False)


def bounds(found: Sentences, capacity: int, *, crossing: bool) -> tuple[np.ndarray, np.ndarray]:
  """Where rows begin and end.

  Args:
    capacity: the most tokens of a row, including [SEP] between documents.
    crossing: whether rows continue across the ends of documents.

  Returns:
    Each row's range of tokens of the store, int64 [R, 2], including the ends of
    documents that have no sentence; and its number of tokens, those of its
    sentences and each [SEP] between documents, int64 [R].
  """
  starts, stops, documents = _cut(found, capacity)
  begins = np.diff(documents, prepend=documents[:1]) > 0
  # Tokens that a sentence adds to a row: its own, and [SEP] before a document.
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


def _cut(found: Sentences, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Starts, stops and documents, with long sentences cut into `capacity`."""
  counts = -(-(found.stops - found.starts) // capacity)
  starts = np.repeat(found.starts, counts)
  nth = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
  starts += capacity * nth
  stops = np.minimum(starts + capacity, np.repeat(found.stops, counts))
  return starts, stops, np.repeat(found.documents, counts)


def full_sentences() -> partial[RowMaker]:
  """Whole sentences, also of several documents (RoBERTa)."""
  return partial(SentenceRows, crossing=True)


def doc_sentences() -> partial[RowMaker]:
  """Whole sentences of one document."""
  return partial(SentenceRows, crossing=False)
