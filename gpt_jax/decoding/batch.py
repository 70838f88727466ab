# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows that are decoded together, and their caches.

There are as many rows as requests run, rounded up to a power of two, and caches
as long as the longest of them needs, rounded up to a bucket: rows that have
ended cost nothing, and few sizes are compiled.
"""

from collections.abc import Sequence

import numpy as np

from gpt_jax.decoding import programs, requests
from gpt_jax.decoding.requests import Asked, Row
from gpt_jax.nn import caches as caches_lib
from gpt_jax.nn.stack import Caches
from gpt_jax.nn.transformer import Transformer


class Batch:
  """Rows that come and go.

  Attributes:
    rows: of the batch; None: free.
    caches: of the model, then of the draft.
  """

  def __init__(self, model: Transformer, *, slots: int, ahead: int):
    """Without rows.

    Args:
      model: decodes them.
      slots: the most rows.
      ahead: tokens of a row that a step may read.
    """
    self._model, self._slots, self._ahead = model, slots, ahead
    self.rows: list[Row | None] = []
    self.caches: Caches = ()
    self._lengths = (0, 0)  # slots of the caches, and of the encoder's
    self._asked: Asked | None = None

  def running(self) -> list[Row]:
    """The rows that are not free."""
    return [row for row in self.rows if row is not None]

  def asked(self) -> Asked:
    """What is asked of the rows as they are now."""
    if self._asked is None:
      self._asked = requests.ask(self.rows, self._model.vocab_size)
    return self._asked

  def step(self, caches: Caches, seen_BV: object) -> None:
    """Takes what a step has left: see `programs.decode_step`."""
    self.caches, self._asked = caches, self.asked()._replace(seen_BV=seen_BV)

  def free(self, index: int) -> None:
    """Ends a row."""
    self.rows[index] = self._asked = None

  def fit(self, new: Sequence[Row]) -> None:
    """Takes the size for the running rows and some new ones."""
    kept = [i for i, row in enumerate(self.rows) if row is not None]
    rows = [*self.running(), *new]
    if not rows:
      self.rows, self.caches, self._lengths = [], (), (0, 0)
      return
    longest = self._model.context_length
    size = programs.num_rows(len(rows), self._slots)
    length = programs.bucket(max(row.horizon for row in rows), longest)
    sources = [len(row.request.source or ()) for row in rows]
    memory = programs.width(max(sources), longest) if max(sources) else 0
    ends = [min(len(row.ids) + self._ahead, row.horizon) for row in rows]
    if (
      size == len(self.rows)
      and memory <= self._lengths[1]
      and max(ends) <= self._lengths[0] < 2 * length
    ):
      return
    if kept:
      index_B = np.array([*kept, *[0] * (size - len(kept))])
      self.caches = caches_lib.take_rows(self.caches, index_B, length, memory)
    else:
      self.caches = ()
    self.rows = [*self.running(), *[None] * (size - len(kept))]
    self._lengths, self._asked = (length, memory), None

  def insert(
    self, rows: Sequence[Row | None], caches: Caches, index_B: np.ndarray
  ) -> None:
    """Puts rows where there is room, which `fit` has made.

    Args:
      rows: None: goes nowhere.
      caches: what was read of their prompts.
      index_B: where that of each row stands; may be longer.
    """
    free = (i for i, row in enumerate(self.rows) if row is None)
    rows_B = np.full(len(index_B), len(self.rows))  # past the last: nowhere
    for i, row in enumerate(rows):
      if row is not None:
        rows_B[i] = next(free)
        self.rows[rows_B[i]] = row
    self._asked = None
    if self.caches:
      self.caches = caches_lib.put_rows(self.caches, rows_B, caches, index_B)
    elif any(self.rows):
      # The first of an empty batch.
      from_B = np.zeros(len(self.rows) + 1, np.int32)
      from_B[rows_B] = index_B
      self.caches = caches_lib.take_rows(caches, from_B[:-1], *self._lengths)
