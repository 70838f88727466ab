# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The token ledger: the documents that a step consumed, computed, not stored.

A batch consists of rows of the run, each of which is a row of the store, which
consists of ranges of tokens; the ends of documents and sentences map these to
texts: see `row_order`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.core.rows import row_makers, row_order
from gpt_jax.core.rows.batch_rows import RowsOfStep
from gpt_jax.core.tokens.store import TokenStore


class LedgerSpan(NamedTuple):
  """Tokens [start, stop) of a document, counted from its first."""

  document: int  # index in the store
  start: int
  stop: int


class LedgerRow(NamedTuple):
  """One row of a batch."""

  row: int  # its number in the run, which no other row has
  source: str  # of a mixture; else ''
  epoch: int  # of the source, from 0
  position: int  # the row's number in the source
  begin: int  # its first token in the store
  # The first text: in a stream, length + 1 tokens, the first an input only; in
  # rows of documents, the targets; in parallel rows, all sources.
  spans: list[LedgerSpan]
  # The second text, if there are two; in parallel rows, all targets.
  second: list[LedgerSpan]
  pair: int  # 1 where the second text does not follow the first, else 0
  # In rows of sentences: the range [first, stop) of the store's sentences in
  # each text, truncated ones included.
  sentences: list[tuple[int, int]]
  # The texts, as tokens of the store; in parallel rows source, target, ...
  texts: list[range]


class LedgerStep(NamedTuple):
  """What one step consumed."""

  step: int  # from 0
  rows: list[LedgerRow]


def steps(
  store: TokenStore, *, seed: int, start: int, stop: int, rows: RowsOfStep
) -> Iterator[LedgerStep]:
  """Yields what steps [start, stop), counted from 0, consume over all hosts.

  The arguments are those of `row_order.batches`.
  """
  sources = row_order.sources(store, seed=seed)
  ends = store.document_ends
  sentence_ends, of_pairs = None, store.manifest.pairs
  if row_makers.of_sentences(store.rows):
    sentence_ends = store.sentence_ends
  for step in range(start, stop):
    of_step = rows(step)
    source = sources(of_step.length)
    places, keys = source.places(of_step)
    read = []
    for number, place, texts in zip(
      of_step.numbers, places, source.texts(places, keys), strict=True
    ):
      both = [spans(ends, r.start, r.stop) for r in texts.ranges]
      if of_pairs:
        both = [[s for part in both[side::2] for s in part] for side in (0, 1)]
      read.append(
        LedgerRow(
          number,
          place.source,
          place.epoch,
          place.row,
          begin=texts.ranges[0].start,
          spans=both[0],
          second=both[-1] if len(both) > 1 else [],
          pair=texts.pair,
          sentences=_sentences(sentence_ends, texts.ranges),
          texts=texts.ranges,
        )
      )
    yield LedgerStep(step, read)


def _sentences(ends: np.ndarray | None, ranges: list[range]) -> list[tuple[int, int]]:
  """The sentences in each range, by the ends of all; [] if `ends` is None."""
  if ends is None:
    return []
  spans = []
  for tokens in ranges:
    bounds = np.searchsorted(ends, [tokens.start, tokens.stop - 1], 'right')
    spans.append((int(bounds[0]), int(bounds[1]) + 1))
  return spans


def spans(ends: np.ndarray, start: int, stop: int) -> list[LedgerSpan]:
  """The documents that tokens [start, stop) of a store belong to.

  Args:
    ends: the exclusive end of each document, int64 [N].
  """
  first = int(np.searchsorted(ends, start, side='right'))
  found = []
  for document in range(first, len(ends)):
    begin = int(ends[document - 1]) if document else 0
    if begin >= stop:
      break
    end = min(int(ends[document]), stop)
    # Documents can be empty.
    if max(begin, start) < end:
      found.append(LedgerSpan(document, max(begin, start) - begin, end - begin))
  return found
