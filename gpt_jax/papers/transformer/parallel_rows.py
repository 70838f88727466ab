# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of pairs of a source and a target text, packed on both sides.

  data.rows = 'parallel'
  data.rows = "parallel(start='cls')"

A row has as many pairs as fit into `length` tokens of sources for the encoder
and `length` tokens of targets for the decoder; pair n of a row is segment n on
both sides, and sees no other. The rest of a side is padding, in a separate
segment.

Pairs are shuffled once, so that neighbours in the corpus are not in the same
row, and each is put into the first open row in which both sides fit. The pairs
of a row do not depend on the run's seed and are the same in each epoch; the
order of the rows differs.

A side that is longer than a row is cut after `length` tokens, in training and
in evaluation, and so lacks its eos; the log has the number of such pairs.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from gpt_jax.core.rows import sides
from gpt_jax.core.rows.rows import Keys, RowMaker, Rows, Texts, check_length
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.tokens.store import TokenStore

# Rows that are open for pairs at a time. More hardly reduce padding: for the
# targets of Multi30k in rows of 128 tokens it is 8.4% with 8, 8.1% with 32.
_OPEN = 8

_SEED = 0xB17E  # of the pairs' order, the same in all runs

log = logging.getLogger('gpt_jax')


class Packed(NamedTuple):
  """The rows of one source of pairs.

  Attributes:
    pairs: int64 [P], the pairs, row by row.
    begins: int64 [R + 1], row r has `pairs[begins[r] : begins[r + 1]]`.
    first: number in the store of the source's first pair.
  """

  pairs: np.ndarray
  begins: np.ndarray
  first: int

  def of_row(self, row: int) -> list[int]:
    """The pairs of the store in a row; none after the last row."""
    if row >= len(self.begins) - 1:
      return []
    found = self.pairs[self.begins[row] : self.begins[row + 1]]
    return (self.first + found).tolist()


class ParallelRows(RowMaker):
  """Rows of `length` tokens on each side."""

  holds = 'parallel'
  made_of = 'pairs'
  arrays = ('segments', 'positions', 'source')

  def __init__(self, store: TokenStore, length: int, before: str = 'text'):
    """Puts pairs into rows; `before` is the argument `start` of `parallel`."""
    self._store, self._length = store, length
    self._start = sides.source_start(started(store.source_special, before))
    least = len(self._start) + 2
    check_length(store.rows, length, least, 'a text and its end')
    self._ends = store.document_ends
    # Tokens of each pair, on both sides.
    counts = np.diff(self._ends, prepend=0).reshape(-1, 2)
    counts = counts + np.array([len(self._start), 0])
    cut = int(np.count_nonzero(np.any(counts > length, axis=1)))
    counts = np.minimum(counts, length)
    self._packed, self.tokens = {}, {}
    for name, (start, stop) in store.parts().items():
      bounds = np.searchsorted(self._ends, [start, stop], side='right') // 2
      first, last = bounds.tolist()
      self._packed[name] = Packed(*pack(counts[first:last], length), first)
      self.tokens[name] = int(np.sum(counts[first:last, 1]))
    self.sizes = {name: len(p.begins) - 1 for name, p in self._packed.items()}
    self._log(counts, cut)

  @staticmethod
  def as_read(special: Special, **arguments: Any) -> Special:
    """A source begins as the argument `start` of `parallel` says."""
    return started(special, arguments['before'])

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store in each row: source, target, source, ..."""
    del keys
    rooms = self._length - len(self._start), self._length
    found = []
    for place in places:
      ranges = []
      for pair in self._packed[place.source].of_row(place.row):
        for document, room in zip((2 * pair, 2 * pair + 1), rooms, strict=True):
          start = int(self._ends[document - 1]) if document else 0
          stop = min(int(self._ends[document]), start + room)
          ranges.append(range(start, stop))
      found.append(Texts(ranges, 0))
    return found

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    texts = self.texts(places, keys)
    ranges = [part for row in texts for part in row.ranges]
    ids = iter(self._store.read_ranges(ranges))
    found = [[next(ids) for _ in row.ranges] for row in texts]
    source = self._side(
      [[np.append(self._start, text) for text in row[::2]] for row in found],
      self._store.source_special.pad_id,
    )
    target = self._side([row[1::2] for row in found], self._store.special.pad_id)
    return target._replace(source=source)

  def _side(self, found: list[list[np.ndarray]], pad_id: int) -> Rows:
    """One side of rows, from the ids of their texts."""
    shape = (len(found), self._length)
    tokens = np.full(shape, pad_id, np.int32)
    real = np.zeros(shape, bool)
    segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for i, texts in enumerate(found):
      stop = 0
      for segment, ids in enumerate(texts):
        start, stop = stop, stop + len(ids)
        tokens[i, start:stop] = ids
        segments[i, start:stop] = segment
        positions[i, start:stop] = np.arange(len(ids))
      real[i, :stop] = True
      segments[i, stop:] = len(texts)
      positions[i, stop:] = np.arange(self._length - stop)
    return Rows(tokens, real, segments=segments, positions=positions)

  def _log(self, counts: np.ndarray, cut: int):
    room = self.num_rows * self._length
    log.info(
      '%s: %d pairs; of the sources %.1f%% of the rows is padding, of the targets %.1f%%',
      self._store.folder,
      len(counts),
      *(100 * (1 - counts.sum(axis=0) / max(room, 1))),
    )
    if cut:
      log.warning(
        '%s: %d of %d pairs have a side of more than model.context_length=%d '
        'tokens: it is cut there',
        self._store.folder,
        cut,
        len(counts),
        self._length,
      )


def started(special: Special, start: str) -> Special:
  """The special tokens, with `start` applied to the start of sources."""
  if start == 'text':
    return special
  if special.cls_id is None:
    raise UsageError(
      f'data.rows: parallel(start={start!r}): the tokenizer has no [CLS]; '
      'prepare the text with another tokenizer.name, such as wordpiece'
    )
  return special._replace(prompt_start=(special.cls_id,))


def pack(counts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
  """Puts pairs into rows.

  Args:
    counts: int64 [P, 2], tokens of each side of each pair; at most `length`.
    length: tokens of a row, on each side.

  Returns:
    `Packed.pairs` and `Packed.begins`.
  """
  # Raw bits, whose values NumPy does not change.
  bits = np.random.Philox(key=_SEED).random_raw(len(counts))
  order = np.argsort(bits, kind='stable')
  rows, opened, num_rows = [], [], 0
  for source, target in counts[order].tolist():
    for row in opened:
      if row[1] >= source and row[2] >= target:
        break
    else:
      row = [num_rows, length, length]
      num_rows += 1
      opened.append(row)
      if len(opened) > _OPEN:
        del opened[0]
    rows.append(row[0])
    row[1] -= source
    row[2] -= target
  by_row = np.argsort(np.array(rows, np.int64), kind='stable')
  sizes = np.bincount(np.array(rows, np.int64), minlength=num_rows)
  return order[by_row], np.append(0, np.cumsum(sizes))


def parallel(start: Literal['text', 'cls'] = 'text') -> partial[RowMaker]:
  """Pairs of a source and a target text: see `parallel_rows`.

  Args:
    start: start of a source: 'text', the tokens that the tokenizer puts before
      texts, or 'cls', its [CLS] (UniLM).
  """
  return partial(ParallelRows, before=start)
