# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests to the engine, its tokens, and the slots of its batch."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.decoding import programs, sampler
from gpt_jax.decoding.sampler import Sampler

# Caches have room for at most so many tokens to come: requests rarely reach a
# larger limit.
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
    num_source: how many of the first `ids` are a source, see
      `decoding.in_row`. They are exempt from the repetition penalty.
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
    """The prompt as text to print before a continuation; () for sources."""
    return self.ids if self.source is None and not self.num_source else ()


# `Token.finish` where the scores of the next token are NaN, and the error.
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
    id: None if the request just ends: stop tokens are not returned.
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
    """What is read before the first draw: the key under which it is shared."""
    return tuple(self.request.ids), tuple(self.request.source or ())

  @property
  def horizon(self) -> int:
    """The length for which its cache has room."""
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
  """The arguments of a decoding step that are the same from token to token.

  Attributes:
    rows: see `programs.Rows`.
    seen_BV: bool, the tokens of each row; None: no row has a penalty.
    how: see `sampler.method`.
  """

  rows: programs.Rows
  seen_BV: Any
  how: sampler.Method


def moved(
  rows: Sequence[Slot | None], size: int
) -> tuple[list[Slot | None], np.ndarray]:
  """A batch of another size: its running rows first, and where each was, [B].

  Free rows take what stands in the first.
  """
  kept = [i for i, row in enumerate(rows) if row is not None]
  free = size - len(kept)
  slots = [*(rows[i] for i in kept), *[None] * free]
  return slots, np.array([*kept, *[0] * free])


def step_of(rows: Sequence[Slot | None], vocab_size: int) -> Step:
  """Per-row sampling arrays of a batch; free rows get a no-op."""
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
  """The lengths of each row of a batch, without samplers; free rows get 0."""
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
  """Groups rows whose prompts are padded to about the same length.

  Sources are padded to exactly the same length: the capacity of an encoder's
  experts counts padding.
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
  """Splits a group of `alike` by the cost of its first block.

  Rows with the same prompt stay together.

  Args:
    group: the rows.
    longest: the context length.
    budget: tokens of prompts and sources; a single prompt may exceed it.
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
