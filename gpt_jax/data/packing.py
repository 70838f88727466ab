# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of whole documents, which do not see each other.

  data.rows = 'documents'

A row's targets are as many whole documents, in the order of the store, as fit
into `length`. A document that is longer begins a row, is cut into pieces of
`length`, and shares its last row with those that follow. What is left of a row
is padding. Each token is a target once; the first of a document, or of a piece
of one, is predicted from the token before it alone. That is the end of the
document before, just as if the document stood alone.
"""

from collections.abc import Mapping

import numpy as np


def begins(ends: np.ndarray, length: int, start: int, stop: int) -> np.ndarray:
  """Finds the rows among the tokens [start, stop) of a store.

  Args:
    ends: the exclusive end of each document, int64 [N].
    length: targets in a row.
    start: where a document begins.
    stop: where one ends.

  Returns:
    int64 [R + 1]: row r has the targets [begins[r], begins[r + 1]).
  """
  first, last = np.searchsorted(ends, [start, stop], side='right')
  ends = ends[first:last]
  starts = np.concatenate([[start], ends[:-1]]).astype(np.int64)
  # A document that begins a row fills so many rows by itself, ...
  full = np.maximum(ends - starts - 1, 0) // length
  tails = starts + full * length
  # ... and with its last piece stand the documents up to this one.
  following = np.searchsorted(ends, tails + length, side='right').tolist()
  heads, document = [], 0
  while document < len(ends):
    heads.append(document)
    document = following[document]
  counts = full[heads] + 1
  rows = np.repeat(starts[heads], counts)
  rows += length * (
    np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
  )
  return np.append(rows, stop)


def counts(
  found: Mapping[str, np.ndarray],
) -> tuple[dict[str, int], dict[str, int]]:
  """Rows of each source, and their tokens without padding.

  Args:
    found: of each source, what `begins` returned.
  """
  rows = {name: len(begins) - 1 for name, begins in found.items()}
  tokens = {name: int(x[-1] - x[0]) for name, x in found.items()}
  return rows, tokens


def segments(targets: np.ndarray, eos_id: int) -> tuple[np.ndarray, np.ndarray]:
  """Which document each target belongs to, and where it stands in it.

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
