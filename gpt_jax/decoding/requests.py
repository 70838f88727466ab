# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is asked of the engine, what it answers, and what a batch is told."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.decoding import programs, sampler
from gpt_jax.decoding.sampler import Sampler

# Caches have room for so many tokens to come: a request that asks for more
# seldom gets that far.
AHEAD = 512


class Request(NamedTuple):
  """A prompt to continue.

  Attributes:
    ids: the prompt, at least one token. Of an encoder-decoder it is the
      decoder's: the token that it starts with.
    max_tokens: how many are drawn at most, one or more.
    sampler: draws them.
    seed: of the draws, below 2^32.
    stop_ids: tokens that end the continuation, each.
    source: ids for the encoder of an encoder-decoder.
    num_source: how many of `ids`, the first, are a source: see
      `decoding.in_row`. What they say may be said again.
  """

  ids: Sequence[int]
  max_tokens: int
  sampler: Sampler = Sampler()
  seed: int = 0
  stop_ids: Collection[int] = frozenset()
  source: Sequence[int] | None = None
  num_source: int = 0

  @property
  def shown(self) -> Sequence[int]:
    """The ids that are shown before what is drawn: none of an answer."""
    return self.ids if self.source is None and not self.num_source else ()


# How a request ends whose next token has no scores; and what to say of it.
FAILED = 'failed'
DAMAGED = (
  'its weights are damaged, or its numbers overflow; take another checkpoint, '
  'or a model.dtype with a larger range'
)
NOT_FINITE = (
  f"the model's scores of the next token are NaN or infinite: {DAMAGED}"
)

_NOTHING = Request([], 0, Sampler(temperature=0))


class Token(NamedTuple):
  """A token of a request, or its end.

  Attributes:
    request: the number that `Engine.add` returned.
    id: None for nothing but the end: a stop token is not returned.
    finish: 'stop' or 'length' with the last token, or `FAILED`; None: more
      follow.
  """

  request: int
  id: int | None
  finish: str | None


@dataclasses.dataclass
class Slot:
  """A running request: its prompt and what was drawn, in one list."""

  number: int
  request: Request
  ids: list[int]

  @property
  def prompt(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is read before the first draw; equal for equal prompts."""
    return tuple(self.request.ids), tuple(self.request.source or ())

  @property
  def horizon(self) -> int:
    """The length that it is expected to reach at most."""
    end = len(self.request.ids) + self.request.max_tokens
    return min(end, len(self.ids) + AHEAD)

  @property
  def num_left(self) -> int:
    """Tokens that may still be drawn."""
    return len(self.request.ids) + self.request.max_tokens - len(self.ids)

  def append(self, token: int) -> Token:
    """Takes a drawn token."""
    if token == sampler.NO_TOKEN:
      return Token(self.number, None, FAILED)
    if token in self.request.stop_ids:
      return Token(self.number, None, 'stop')
    self.ids.append(token)
    finish = None if self.num_left else 'length'
    return Token(self.number, token, finish)


class Step(NamedTuple):
  """What a step draws for its rows, and how.

  Attributes:
    rows: see `programs.Rows`.
    seen_BV: bool, the tokens of each row; None: no row has a penalty.
    how: see `sampler.method`.
  """

  rows: programs.Rows
  seen_BV: Any
  how: sampler.Method


def step_of(rows: Sequence[Slot | None], vocab_size: int) -> Step:
  """How the next tokens of a batch are drawn."""
  requests = [row.request if row else _NOTHING for row in rows]
  samplers, seen_BV = [request.sampler for request in requests], None
  if any(s.repetition_penalty != 1 for s in samplers):
    seen_BV = np.zeros((len(rows), vocab_size), bool)
    for seen_V, row in zip(seen_BV, rows, strict=True):
      seen_V[row.ids[row.request.num_source :] if row else []] = True
  stacked = sampler.stack(samplers, [request.seed for request in requests])
  return Step(
    rows_of(rows)._replace(samplers=stacked), seen_BV, sampler.method(samplers)
  )


def rows_of(rows: Sequence[Slot | None]) -> programs.Rows:
  """What is asked of a batch, but for samplers; of its free rows nothing."""
  requests = [row.request if row else _NOTHING for row in rows]
  fields = (
    [len(request.ids) for request in requests],
    [len(request.source or ()) for request in requests],
    [request.max_tokens for request in requests],
    [request.num_source for request in requests],
  )
  return programs.Rows(None, *(np.array(x, np.int32) for x in fields))


def texts(rows: Sequence[Slot | None], longest: int) -> np.ndarray:
  """The tokens of each row, int32 [B, T], for `constraints.apply`.

  Args:
    rows: of a batch; None: free.
    longest: the context.
  """
  lengths = [len(row.ids) if row else 0 for row in rows]
  size = programs.bucket(max(lengths), longest)
  ids_BT = np.zeros((len(rows), size), np.int32)
  for ids_T, row, length in zip(ids_BT, rows, lengths, strict=True):
    ids_T[:length] = row.ids if row else ()
  return ids_BT


def alike(rows: Iterable[Slot], longest: int) -> list[list[Slot]]:
  """Groups of rows whose prompts are padded to about the same length.

  Sources to the very same: experts of an encoder may have room for so many
  tokens, padding among them.
  """
  groups: dict[Any, list[Slot]] = {}
  for row in rows:
    source = len(row.request.source or ())
    size = max(len(row.ids), programs.SHORTEST)
    kind = (size - 1).bit_length(), programs.width(source, longest)
    groups.setdefault(kind, []).append(row)
  return list(groups.values())


def portions(
  group: Sequence[Slot], longest: int, budget: int
) -> list[list[Slot]]:
  """Splits a group of `alike` into ones whose first block is small enough.

  Args:
    group: rows, of which those with the same prompt stay together.
    longest: the context.
    budget: tokens of prompts and sources; of one prompt it may be more.
  """
  prompts: dict[Any, list[Slot]] = {}
  for row in group:
    prompts.setdefault(row.prompt, []).append(row)
  width = programs.width(max(len(row.ids) for row in group), longest)
  source = len(group[0].request.source or ())
  cost = min(width, programs.BLOCK) + (
    programs.width(source, longest) if source else 0
  )
  most = max(1, budget // cost)
  # Padded to powers of two: see `programs.num_rows`.
  most = 1 << (most.bit_length() - 1)
  rows = [*prompts.values()]
  return [
    [row for same in rows[i : i + most] for row in same]
    for i in range(0, len(rows), most)
  ]
