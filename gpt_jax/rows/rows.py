# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens, what makes them, and what their random choices depend on.

A row's tokens say what it is; its keys say which of an objective's random
choices (which tokens are masked, which of two texts comes first) it gets. Both
follow from the row's number in the run, so that neither hosts nor micro-batches
nor a resume change them.

A `RowMaker` knows which tokens of a store each row has, its `Texts`, and reads
them; `row_makers` has the choice of one.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from gpt_jax.tokens.mixture import Place

# The seed of held-out rows: their choices are the same in each evaluation and
# in each run.
HELD_OUT = 2**64 - 1


class Rows(NamedTuple):
  """Rows of tokens, on the host.

  Attributes:
    tokens: int32 [B, L].
    real: bool [B, L], False for padding.
    before: int32 [B], the token before each row, if rows are cut from a stream.
    segments: int32 [B, L], the document of each token in a packed row.
    positions: int32 [B, L], the position of each token; None: 0, 1, 2, ...
    token_types: int32 [B, L], 0 in text A, 1 in text B; in rows of two halves
      2 for [CLS].
    special: bool [B, L], tokens that are not of a text, such as [CLS].
    pair: int32 [B], 0 where B follows A in the text, 1 where it does not.
    reused: bool [B, L], the half that sees nothing of the other one.
    source: in rows with two sides, what an encoder reads; the other fields are
      then what a decoder writes. In packed rows a target's source has its
      segment.
  """

  tokens: np.ndarray
  real: np.ndarray
  before: np.ndarray | None = None
  segments: np.ndarray | None = None
  positions: np.ndarray | None = None
  token_types: np.ndarray | None = None
  special: np.ndarray | None = None
  pair: np.ndarray | None = None
  reused: np.ndarray | None = None
  source: 'Rows | None' = None


class Keys(NamedTuple):
  """Keys of the random choices of each row."""

  seed: int  # of the run; `HELD_OUT` for held-out rows
  run: np.ndarray  # int64 [B], number in the run, which no other row has
  row: np.ndarray  # int64 [B], number in the store, the same in each epoch
  epoch: np.ndarray  # int64 [B], how often the row was taken before

  @classmethod
  def held_out(cls, rows: np.ndarray) -> 'Keys':
    """Keys of held-out rows: the same in every evaluation."""
    return cls(HELD_OUT, rows, rows, np.zeros_like(rows))

  def recurring(self, times: int) -> 'Keys':
    """Keys with which a row's choices repeat after `times` epochs."""
    return self._replace(run=self.row * times + self.epoch % times)

  def generators(self, purpose: int) -> list[np.random.Generator]:
    """A generator for each row and `purpose`, which is at least 1."""
    # As an array: a list with 2**64 - 1 would become floats. The counter of
    # one purpose never reaches that of the next.
    keys = np.stack(
      [
        np.full(len(self.run), self.seed, np.uint64),
        self.run.astype(np.uint64),
      ],
      axis=1,
    )
    return [
      np.random.Generator(np.random.Philox(key=k, counter=[0, 0, 0, purpose]))
      for k in keys
    ]


# What `Keys.generators` are for.
MAKING_ROWS, MASKING = 1, 2


def cut(windows: np.ndarray, real: np.ndarray | None = None) -> Rows:
  """Rows that are cut from a stream, with the token before each.

  Args:
    windows: int32 [B, L + 1].
    real: bool [B, L], False for padding; None: there is none.
  """
  tokens = windows[:, 1:]
  if real is None:
    real = np.ones(tokens.shape, bool)
  return Rows(tokens, real, before=windows[:, 0])


class Texts(NamedTuple):
  """The texts of a row."""

  # The tokens of the store that each has; no text in a row that only fills up a
  # batch.
  ranges: list[range]
  pair: int  # 1 where the second does not follow the first, else 0


class RowMaker(abc.ABC):
  """The rows of a store for one length."""

  # What the store has to have.
  made_of: ClassVar[Literal['tokens', 'sentences', 'pairs']] = 'tokens'
  # The fields of `Rows` that its rows have, beside `tokens` and `real`.
  arrays: ClassVar[tuple[str, ...]] = ()
  # Rows of each source of a mixture; of a store without one, of ''.
  sizes: dict[str, int]
  # Tokens of these rows without padding, special ones included; an expected
  # value where texts are drawn each time that a row is read. None: no padding.
  tokens: dict[str, int] | None = None

  @property
  def num_rows(self) -> int:
    """In an epoch."""
    return sum(self.sizes.values())

  @property
  def num_held_out(self) -> int:
    """Rows that have each token of a held-out set."""
    return self.num_rows

  @abc.abstractmethod
  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store that the rows at some places have."""

  @abc.abstractmethod
  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    """The rows at some places, with the keys that they have in the run."""

  def read_held_out(self, keys: Keys) -> Rows:
    """Rows of a held-out set; padding where a number is past its last."""
    return self.read([Place('', 0, row) for row in keys.row.tolist()], keys)
