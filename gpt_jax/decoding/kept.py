# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Caches of rows that have ended, for prompts that begin as those rows did.

The next turn of a chat is its whole history and a little more. A cache has a
slot for each position, whatever the attention's window, so that its first slots
are right for every row with the same first tokens. Whole blocks are taken: what
follows is read by the programs that read whole prompts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gpt_jax.decoding import programs
from gpt_jax.nn.stack import Caches


class Prefix(NamedTuple):
  """The beginning of a row.

  Attributes:
    ids: whole blocks of tokens.
    caches: of a single row; hold those tokens, and then anything.
  """

  ids: Sequence[int]
  caches: Caches


class Kept:
  """The beginnings of rows that ended last."""

  def __init__(self, most: int):
    """Keeps at most so many."""
    self._most = most
    self._prefixes: list[Prefix] = []  # the newest last

  def wants(self, ids: Sequence[int]) -> bool:
    """Whether a row with such a beginning would be kept."""
    return self._most > 0 and len(ids) >= programs.BLOCK

  def add(self, ids: Sequence[int], caches: Caches) -> None:
    """Keeps a row, and no longer those that are its beginning.

    Args:
      ids: tokens that the caches hold, a block or more.
      caches: of that row alone.
    """
    ids = ids[: _blocks(len(ids))]
    others = [p for p in self._prefixes if p.ids != ids[: len(p.ids)]]
    self._prefixes = [*others, Prefix(ids, caches)][-self._most :]

  def find(self, prompt: Sequence[int]) -> Prefix | None:
    """The longest beginning of a prompt; its last token is always left."""
    found = [
      Prefix(prompt[: _blocks(num)], prefix.caches)
      for prefix in self._prefixes
      if (num := _num_common(prompt[:-1], prefix.ids)) >= programs.BLOCK
    ]
    return max(found, key=lambda prefix: len(prefix.ids), default=None)


def _blocks(length: int) -> int:
  """Tokens of the whole blocks among so many."""
  return length - length % programs.BLOCK


def _num_common(one: Sequence[int], two: Sequence[int]) -> int:
  """How many tokens are the same before the first that is not."""
  pairs = enumerate(zip(one, two, strict=False))
  return next((i for i, (x, y) in pairs if x != y), min(len(one), len(two)))
