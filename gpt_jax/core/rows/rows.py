# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens, row makers, and the keys of rows' random choices.

A row's keys determine an objective's random choices (which tokens are masked,
which of two texts comes first). Tokens and keys both follow from the row's
number in the run, so that they do not depend on hosts, micro-batches or a
resume.

A `RowMaker` knows which tokens of a store each row has, its `Texts`, and reads
them; `row_makers` lists them.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokens.mixture import Place

# The seed of held-out rows: their random choices are the same in each
# evaluation and in each run.
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
    special: bool [B, L], tokens that are not part of a text, such as [CLS].
    pair: int32 [B], 0 if B follows A in the text, else 1.
    reused: bool [B, L], the half that sees nothing of the other one.
    source: in rows with two sides, the encoder's input; the other fields are
      then the decoder's targets. In packed rows a target and its source have
      the same segment.
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
  epoch: np.ndarray  # int64 [B], number of earlier uses of the row

  @classmethod
  def held_out(cls, rows: np.ndarray) -> 'Keys':
    """Keys of held-out rows: the same in every evaluation."""
    return cls(HELD_OUT, rows, rows, np.zeros_like(rows))

  def recurring(self, times: int) -> 'Keys':
    """Keys with which a row's choices repeat after `times` epochs."""
    return self._replace(run=self.row * times + self.epoch % times)

  def generators(self, purpose: int) -> list[np.random.Generator]:
    """A generator for each row and `purpose`, which is at least 1."""
    # An array, since a list with 2**64 - 1 would become floats. The counter of
    # one purpose never reaches that of the next.
    keys = np.stack(
      [np.full(len(self.run), self.seed, np.uint64), self.run.astype(np.uint64)], axis=1
    )
    return [np.random.Generator(np.random.Philox(key=k, counter=[0, 0, 0, purpose])) for k in keys]


# Purposes of `Keys.generators`.
MAKING_ROWS, MASKING, CUTTING = 1, 2, 3


def cut(windows: np.ndarray, real: np.ndarray | None = None) -> Rows:
  """Rows cut from a stream, with the token before each.

  Args:
    windows: int32 [B, L + 1].
    real: bool [B, L], False for padding; None: no padding.
  """
  tokens = windows[:, 1:]
  if real is None:
    real = np.ones(tokens.shape, bool)
  return Rows(tokens, real, before=windows[:, 0])


def check_length(rows: str, length: int, least: int, has: str) -> None:
  """Checks that a row of `data.rows` has room for what every row has."""
  if length < least:
    raise UsageError(
      f'model.context_length={length}: a row of data.rows={rows!r} has {has}; give {least} or more'
    )


class Texts(NamedTuple):
  """The texts of a row."""

  # The tokens of the store in each text; no text in a row that only pads a
  # batch.
  ranges: list[range]
  pair: int  # 1 if the second text does not follow the first, else 0


# What a row holds. An objective accepts some of these (`Needs.rows`): it reads
# the arrays that they have beside the tokens.
Holds = Literal[
  'stream',  # tokens of the joined documents
  'documents',  # documents that do not see each other
  'sentences',  # whole sentences
  'pairs',  # texts A and B
  'halves',  # text, and texts A and B that see it
  'parallel',  # sources and targets
]


class RowMaker(abc.ABC):
  """The rows of a store for one length."""

  holds: ClassVar[Holds]
  # What the store must contain.
  made_of: ClassVar[Literal['tokens', 'sentences', 'pairs']] = 'tokens'
  # The fields of `Rows` that its rows have, besides `tokens` and `real`.
  arrays: ClassVar[tuple[str, ...]] = ()
  # Number of rows of each source of a mixture; without a mixture, of ''.
  sizes: dict[str, int]
  # Tokens of these rows without padding, special tokens included; an expected
  # value if texts are drawn each time that a row is read. None: no padding.
  tokens: dict[str, int] | None = None

  @staticmethod
  def as_read(special: Special, **arguments: Any) -> Special:
    """The special tokens around single texts, as in these rows.

    Args:
      **arguments: of the constructor, but the store and the length.
    """
    del arguments
    return special

  @property
  def num_rows(self) -> int:
    """Number of rows in an epoch."""
    return sum(self.sizes.values())

  @property
  def num_held_out(self) -> int:
    """Number of rows that cover a held-out set."""
    return self.num_rows

  @abc.abstractmethod
  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store in the rows at these places."""

  @abc.abstractmethod
  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    """The rows at these places, given their keys in the run."""

  def read_held_out(self, keys: Keys) -> Rows:
    """Rows of a held-out set; numbers past its last row give padding."""
    return self.read([Place('', 0, row) for row in keys.row.tolist()], keys)
