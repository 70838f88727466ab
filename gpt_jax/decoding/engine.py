# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: requests come and go while others are decoded.

Requests wait in a queue. Where a row of the batch is free, the prompt of the
next is read into caches of its own, which are then put into the row; a long one
a block at a time, while other rows go on. The batch has as many rows as there
are running requests, rounded up to a power of two, and caches as long as the
longest of them needs, rounded up to a bucket: rows that have
ended cost nothing, and few sizes are compiled.
"""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import jax
import numpy as np

from gpt_jax.decoding import programs, requests, speculative
from gpt_jax.decoding.reading import Reader, Reading
from gpt_jax.decoding.requests import Request as Request
from gpt_jax.decoding.requests import Row
from gpt_jax.decoding.requests import Token as Token
from gpt_jax.decoding.speculative import Draft
from gpt_jax.nn import caches as caches_lib
from gpt_jax.nn.stack import Caches
from gpt_jax.nn.transformer import Transformer


class Engine:
  """Decodes up to `slots` requests at a time.

  The tokens of a request depend on its prompt, sampler and seed, never on what
  else is decoded. Over several devices it is used inside `sharding.use`. It is
  no more than one thread's at a time.
  """

  def __init__(
    self,
    model: Transformer,
    params: Any,
    *,
    slots: int,
    draft: Draft | None = None,
  ):
    """Takes models and their parameters, as they are or from `in_place`.

    Args:
      model: decodes.
      params: its parameters.
      slots: the most requests at a time.
      draft: proposes tokens to it.

    Raises:
      UsageError: the draft does not suit the model.
    """
    assert slots > 0
    self._model, self._params = programs.in_place(model, params)
    self._slots = slots
    self._draft = draft and speculative.in_place(draft)
    if draft is not None:
      speculative.check(model, draft.model)
    self.proposals = speculative.Proposals()
    self._next = 0
    self._waiting: dict[int, Request] = {}
    self._rows: list[Row | None] = []  # None: free
    self._caches: Caches = ()  # of the model, then of the draft
    self._lengths = (0, 0)  # slots of the caches, and of the encoder's
    self._asked: requests.Asked | None = None
    self._readings: list[Reading] = []  # the first is read first
    self._readers = [Reader(self._model, self._params)]
    if self._draft is not None:
      self._readers.append(Reader(self._draft.model, self._draft.params))

  @property
  def num_waiting(self) -> int:
    """Requests in the queue."""
    return len(self._waiting)

  @property
  def num_running(self) -> int:
    """Requests whose prompts are being read, or that are being decoded."""
    reading = sum(len(reading.rows) for reading in self._readings)
    return reading + len(self._running())

  @property
  def cache_bytes(self) -> int:
    """Size of the caches now."""
    caches = [self._caches, [reading.caches for reading in self._readings]]
    return sum(x.nbytes for x in jax.tree.leaves(caches))

  def add(self, request: Request) -> int:
    """Queues a request, and numbers it."""
    assert request.max_tokens > 0 and len(request.ids) > 0
    length = len(request.ids) + request.max_tokens
    assert length <= self._model.context_length
    assert bool(request.source) == (self._model.num_encoder_layers > 0)
    self._next += 1
    self._waiting[self._next] = request
    return self._next

  def cancel(self, number: int) -> None:
    """Forgets a request, waiting or running; one that has ended is no more."""
    self._waiting.pop(number, None)
    for reading in self._readings:
      reading.rows = [row for row in reading.rows if row.number != number]
    self._readings = [reading for reading in self._readings if reading.rows]
    self._free({number})

  def run(self) -> Iterator[Token]:
    """Steps until no request is left; they may be added and cancelled."""
    while self._waiting or self.num_running:
      yield from self.step()

  def step(self) -> list[Token]:
    """Decodes a token of each row and reads prompts of waiting requests.

    Prompts are read to their end where no row is being decoded; else no more
    than a block of them, so that those rows go on. A request gets its first
    token in the step that ends its prompt. With a draft it is one or more
    tokens of each row, in order; of one that is cancelled between them, too.
    """
    out = []
    if self._running():
      out = self._decode() if self._draft is None else self._speculate()
    self._free({token.request for token in out if token.finish})
    self._take_on()
    return out + self._read()

  def _running(self) -> list[Row]:
    """Rows of the batch."""
    return [row for row in self._rows if row is not None]

  def _free(self, numbers: Collection[int]) -> None:
    for i, row in enumerate(self._rows):
      if row is not None and row.number in numbers:
        self._rows[i] = self._asked = None

  def _decode(self) -> list[Token]:
    """One step of the batch."""
    if self._asked is None:
      self._asked = requests.ask(self._rows, self._model.vocab_size)
    asked = self._asked
    last = [row.ids if row else [0] for row in self._rows]
    drawn_B, self._caches, seen_BV = programs.decode_step(
      self._params,
      self._caches,
      np.array([ids[-1] for ids in last], np.int32),
      np.array([len(ids) - 1 for ids in last], np.int32),
      asked.seen_BV,
      asked.rows,
      model=self._model,
      how=asked.how,
    )
    self._asked = asked._replace(seen_BV=seen_BV)
    drawn = np.asarray(drawn_B).tolist()
    pairs = zip(self._rows, drawn, strict=True)
    return [row.append(token) for row, token in pairs if row is not None]

  def _speculate(self) -> list[Token]:
    """One round of the batch: see `speculative`."""
    assert self._draft is not None
    asked = self._asked or requests.ask(self._rows, self._model.vocab_size)
    ids = [row.ids if row else [0, 0] for row in self._rows]
    drawn = speculative.draw(
      self._model,
      self._params,
      self._draft,
      self._caches,
      np.array([own[-2:] for own in ids], np.int32),
      np.array([len(own) - 1 for own in ids], np.int32),
      asked.seen_BV,
      asked.rows,
      how=asked.how,
    )
    self._caches = drawn.caches
    self._asked = asked._replace(seen_BV=drawn.seen_BV)
    out: list[Token] = []
    tokens = np.asarray(drawn.ids_BN).tolist()
    accepted = np.asarray(drawn.accepted_B).tolist()
    for row, own, count in zip(self._rows, tokens, accepted, strict=True):
      if row is None:
        continue
      of_use = min(self._draft.num_tokens, row.num_left)
      self.proposals = self.proposals.more(of_use, min(count, of_use))
      for token in own[: count + 1]:
        out.append(row.append(token))
        if out[-1].finish:
          break
    return out

  def _fit(self, new: list[Row]) -> None:
    """Gives the batch the size for the running rows and some new ones."""
    kept = [i for i, row in enumerate(self._rows) if row is not None]
    rows = self._running() + new
    if not rows:
      self._rows, self._caches, self._lengths = [], (), (0, 0)
      return
    longest = self._model.context_length
    size = programs.num_rows(len(rows), self._slots)
    length = programs.bucket(max(row.horizon for row in rows), longest)
    sources = [len(row.request.source or ()) for row in rows]
    memory = programs.width(max(sources), longest) if max(sources) else 0
    ahead = 1 + (self._draft.num_tokens if self._draft else 0)
    enough = max(min(len(row.ids) + ahead, row.horizon) for row in rows)
    if (
      size == len(self._rows)
      and memory <= self._lengths[1]
      and enough <= self._lengths[0] < 2 * length
    ):
      return
    if kept:
      index_B = np.array([*kept, *[0] * (size - len(kept))])
      self._caches = caches_lib.take_rows(self._caches, index_B, length, memory)
    else:
      self._caches = ()
    self._rows = [*self._running(), *[None] * (size - len(kept))]
    self._lengths, self._asked = (length, memory), None

  def _take_on(self) -> None:
    """Takes requests from the queue whose prompts are to be read."""
    free = self._slots - self.num_running
    numbers = list(itertools.islice(self._waiting, free))
    chosen = [(number, self._waiting.pop(number)) for number in numbers]
    rows = [Row(n, request, list(request.ids)) for n, request in chosen]
    longest, limited = self._model.context_length, bool(self._running())
    for group in requests.alike(rows, longest):
      groups = [group]
      if limited:
        groups = requests.portions(group, longest, programs.BLOCK)
      self._readings += [
        Reading(rows, self._readers, slots=self._slots) for rows in groups
      ]

  def _read(self) -> list[Token]:
    """Reads prompts, as much as `step` says; admits rows that are ready."""
    turn, most = self._readings, None
    if self._running():
      costs = itertools.accumulate(reading.num_tokens for reading in turn)
      num = sum(cost <= programs.BLOCK for cost in costs)
      turn, most = turn[: max(num, 1)], 1
    ready = [r for r in turn if most is None or r.num_blocks <= most]
    self._readings = [r for r in self._readings if r not in ready]
    self._fit([row for reading in ready for row in reading.rows])
    out = []
    for reading in turn:
      for _ in range(most or reading.num_blocks):
        reading.read()
      if reading in ready:
        out += self._admit(reading)
    return out

  def _admit(self, reading: Reading) -> list[Token]:
    """Draws the first tokens of rows whose prompts were read; inserts them."""
    group = reading.rows
    size = programs.num_rows(len(group), self._slots)
    index_B = np.zeros(size, np.int32)
    index_B[: len(group)] = reading.places()
    asked = requests.ask(
      [*group, *[None] * (size - len(group))], self._model.vocab_size
    )
    drawn_B = programs.first_draw(
      self._params,
      reading.last_BD,
      index_B,
      asked.seen_BV,
      asked.rows,
      model=self._model,
      how=asked.how,
    )
    drawn = np.asarray(drawn_B).tolist()[: len(group)]
    out = [row.append(token) for row, token in zip(group, drawn, strict=True)]
    free = (i for i, row in enumerate(self._rows) if row is None)
    # Past the last row: what has ended already goes nowhere.
    rows_B = np.full(size, len(self._rows))
    for i, (row, token) in enumerate(zip(group, out, strict=True)):
      if not token.finish:
        rows_B[i] = next(free)
        self._rows[rows_B[i]] = row
    self._insert(reading.caches, rows_B, index_B)
    return out

  def _insert(
    self, new: Caches, rows_B: np.ndarray, index_B: np.ndarray
  ) -> None:
    """Puts rows of `new` into rows of the batch, as in `put_rows`."""
    self._asked = None
    if self._caches:
      self._caches = caches_lib.put_rows(self._caches, rows_B, new, index_B)
    elif any(self._rows):
      # The first of an empty batch.
      from_B = np.zeros(len(self._rows) + 1, np.int32)
      from_B[rows_B] = index_B
      self._caches = caches_lib.take_rows(new, from_B[:-1], *self._lengths)
