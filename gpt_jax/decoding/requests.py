# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests to the engine, the tokens it returns, and the slots of its batch."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.decoding import programs, sampler
from gpt_jax.decoding.logprobs import Logprobs, TokenLogprobs
from gpt_jax.decoding.settings import Sampler

# Caches have room for at most this many further tokens: few requests reach a
# larger limit.
AHEAD = 512


class Request(NamedTuple):
  """A prompt to continue.

  Attributes:
    ids: the prompt, at least one token; the decoder's start token of an
      encoder-decoder.
    max_tokens: the most tokens to sample; 0 only reads the prompt.
    seed: of the sampling, below 2^32.
    stop_ids: tokens, each of which ends the continuation.
    source: ids for the encoder of an encoder-decoder.
    num_source: how many of the first `ids` are a source in the same row, see
      `decoding.in_row`. They are exempt from the repetition penalty.
    num_top: how many alternatives to return with the log-probability of each
      sampled token, at most `logprobs.NUM_TOP`; None: no log-probabilities.
    scores_prompt: whether to return them for the prompt's tokens, too.
  """

  ids: Sequence[int]
  max_tokens: int
  sampler: Sampler = Sampler()
  seed: int = 0
  stop_ids: Collection[int] = frozenset()
  source: Sequence[int] | None = None
  num_source: int = 0
  num_top: int | None = None
  scores_prompt: bool = False

  @property
  def shown(self) -> Sequence[int]:
    """The part of the prompt to print before the continuation; not a source."""
    return self.ids if self.source is None and not self.num_source else ()


# `Token.finish` if the scores of the next token are NaN; the error to raise.
FAILED = 'failed'
DAMAGED = (
  'its weights are damaged, or its numbers overflow; take another checkpoint, '
  'or a model.dtype with a larger range'
)
NOT_FINITE = f"the model's scores of the next token are NaN or infinite: {DAMAGED}"

_NOTHING = Request([], 0, Sampler(temperature=0))


class Token(NamedTuple):
  """A sampled token of a request.

  Attributes:
    request: the number that `Engine.add` returned.
    id: None for a stop token, which is not returned.
    finish: 'stop', 'length' or `FAILED` if this is the last one, else None.
    logprobs: None unless the request asks for them.
    prompt: those of the prompt's tokens, with the first token of a request that
      asks for them; else empty.
  """

  request: int
  id: int | None
  finish: str | None
  logprobs: TokenLogprobs | None = None
  prompt: Sequence[TokenLogprobs] = ()


@dataclasses.dataclass
class Slot:
  """A running request; `ids` are its prompt and the tokens sampled so far."""

  number: int
  request: Request
  ids: list[int]

  @property
  def prompt(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Key of requests that are read once for all: ids of prompt and source."""
    return tuple(self.request.ids), tuple(self.request.source or ())

  @property
  def horizon(self) -> int:
    """The row length that its cache has room for."""
    end = len(self.request.ids) + self.request.max_tokens
    return min(end, len(self.ids) + AHEAD)

  @property
  def num_left(self) -> int:
    """How many more tokens may be sampled."""
    return len(self.request.ids) + self.request.max_tokens - len(self.ids)

  def append(
    self, token: int, scores: Logprobs | None, prompt: Sequence[TokenLogprobs] = ()
  ) -> Token:
    """Adds a sampled token.

    Args:
      scores: of this token alone.
      prompt: see `Token`.
    """
    if token == sampler.NO_TOKEN:
      return Token(self.number, None, FAILED)
    if not self.num_left:
      return Token(self.number, None, 'length', None, prompt)
    if token in self.request.stop_ids:
      return Token(self.number, None, 'stop', None, prompt)
    self.ids.append(token)
    finish = None if self.num_left else 'length'
    logprobs, num_top = None, self.request.num_top
    if scores is not None and num_top is not None:
      logprobs = scores.token(token, num_top)
    return Token(self.number, token, finish, logprobs, prompt)


class DecodingStep(NamedTuple):
  """The arguments of a decoding step that stay the same from token to token.

  Attributes:
    seen_BV: bool, the tokens in each row; None if no row has a penalty or asks
      for log-probabilities.
    greedy: whether every row takes the most probable token.
  """

  rows: programs.BatchArrays
  seen_BV: Any
  greedy: bool


def moved(rows: Sequence[Slot | None], size: int) -> tuple[list[Slot | None], np.ndarray]:
  """Resizes a batch: its running rows come first.

  Returns:
    The new rows, and the old index of each, [B]; 0 for free rows.
  """
  kept = [i for i, row in enumerate(rows) if row is not None]
  free = size - len(kept)
  slots = [*(rows[i] for i in kept), *[None] * free]
  return slots, np.array([*kept, *[0] * free])


def step_of(rows: Sequence[Slot | None], vocab_size: int) -> DecodingStep:
  """Per-row sampling arrays of a batch; free rows get a no-op."""
  requests = [row.request if row else _NOTHING for row in rows]
  samplers, seen_BV = [request.sampler for request in requests], None
  scored_B = np.array([request.num_top is not None for request in requests])
  if scored_B.any() or any(s.repetition_penalty != 1 for s in samplers):
    seen_BV = np.zeros((len(rows), vocab_size), bool)
    for seen_V, row in zip(seen_BV, rows, strict=True):
      seen_V[row.ids[row.request.num_source :] if row else []] = True
  stacked = sampler.stack(samplers, [request.seed for request in requests])
  return DecodingStep(
    rows_of(rows)._replace(samplers=stacked, scored_B=scored_B),
    seen_BV,
    all(s.temperature == 0 for s in samplers),
  )


def rows_of(rows: Sequence[Slot | None]) -> programs.BatchArrays:
  """The lengths of each row of a batch, without samplers; 0 for free rows."""
  requests = [row.request if row else _NOTHING for row in rows]
  fields = (
    [len(request.ids) for request in requests],
    [len(request.source or ()) for request in requests],
    [request.max_tokens for request in requests],
    [request.num_source for request in requests],
  )
  arrays = (np.array(x, np.int32) for x in fields)
  return programs.BatchArrays(None, None, *arrays)


def texts(rows: Sequence[Slot | None], size: int) -> np.ndarray:
  """The tokens of each row, int32 [B, T], for `sampler.constrain`.

  Args:
    rows: of a batch; None is a free row.
    size: T, at least the longest row.
  """
  ids_BT = np.zeros((len(rows), size), np.int32)
  for ids_T, row in zip(ids_BT, rows, strict=True):
    if row is not None:
      ids_T[: len(row.ids)] = row.ids
  return ids_BT


def alike(rows: Iterable[Slot], longest: int) -> list[list[Slot]]:
  """Groups rows whose prompts have about the same padded length.

  Their sources have exactly the same padded length, because the capacity of an
  encoder's experts counts padding.
  """
  groups: dict[Any, list[Slot]] = {}
  for row in rows:
    source = len(row.request.source or ())
    size = max(len(row.ids), programs.SHORTEST)
    kind = (size - 1).bit_length(), programs.width(source, longest)
    groups.setdefault(kind, []).append(row)
  return list(groups.values())


def portions(group: Sequence[Slot], longest: int, budget: int) -> list[list[Slot]]:
  """Splits a group of `alike` by the tokens in its first block and sources.

  Rows with the same prompt stay together.

  Args:
    longest: the context length.
    budget: tokens of a part; a single prompt may exceed it.
  """
  prompts: dict[Any, list[Slot]] = {}
  for row in group:
    prompts.setdefault(row.prompt, []).append(row)
  width = programs.width(max(len(row.ids) for row in group), longest)
  source = len(group[0].request.source or ())
  cost = min(width, programs.BLOCK) + (programs.width(source, longest) if source else 0)
  most = max(1, budget // cost)
  # Padded to powers of two: see `programs.num_rows`.
  most = 1 << (most.bit_length() - 1)
  rows = [*prompts.values()]
  return [[row for same in rows[i : i + most] for row in same] for i in range(0, len(rows), most)]
