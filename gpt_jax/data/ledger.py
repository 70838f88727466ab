# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The token ledger: which documents a step consumed, computed, not stored.

Batch s is rows of the run, a row of the run is a row of the store, a row of the
store is tokens, and the ends of the documents say whose tokens these are: see
`pipeline`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.data import pipeline
from gpt_jax.data.store import TokenStore
from gpt_jax.data.taken import TakenAt


class Span(NamedTuple):
  """Tokens [start, stop) of a document, counted from its first."""

  document: int  # index in the store
  start: int
  stop: int


class Row(NamedTuple):
  """One row of a batch."""

  row: int  # of the run: a number that no other row of the run has
  source: str  # of a mixture; else ''
  epoch: int  # of the source, from 0
  position: int  # which row of the source
  begin: int  # its first token in the store
  # Its length + 1 tokens, the first an input only; of whole documents, its
  # targets.
  spans: list[Span]


class Step(NamedTuple):
  """What one step consumed."""

  step: int  # from 0
  rows: list[Row]


def steps(
  store: TokenStore,
  *,
  seed: int,
  start: int,
  stop: int,
  rows: TakenAt,
) -> Iterator[Step]:
  """Yields what the steps [start, stop), from 0, consume over all hosts.

  The arguments are those of `pipeline.batches`.
  """
  sources = pipeline.sources(store, seed=seed)
  ends = store.document_ends
  for step in range(start, stop):
    taken = rows(step)
    source = sources(taken.length)
    places = [source.place(index) for index in taken.indices]
    found = [source.span(place) for place in places]
    yield Step(
      step,
      [
        Row(
          number,
          place.source,
          place.epoch,
          place.row,
          span.start,
          spans(ends, span.start, span.stop),
        )
        for number, place, span in zip(
          taken.numbers, places, found, strict=True
        )
      ],
    )


def spans(ends: np.ndarray, start: int, stop: int) -> list[Span]:
  """The documents that tokens [start, stop) of a store belong to.

  Args:
    ends: the exclusive end of each document, int64 [N].
    start: first token.
    stop: after the last.
  """
  first = int(np.searchsorted(ends, start, side='right'))
  found = []
  for document in range(first, len(ends)):
    begin = int(ends[document - 1]) if document else 0
    if begin >= stop:
      break
    end = min(int(ends[document]), stop)
    # A document may hold no token at all.
    if max(begin, start) < end:
      found.append(Span(document, max(begin, start) - begin, end - begin))
  return found
