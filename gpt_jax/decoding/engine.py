# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: requests come and go while others are decoded.

Requests wait in a queue. Where a row of the batch is free, the prompt of the
next is read into caches of its own, which are then put into the row; a long one
a block at a time, while other rows go on.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.decoding import programs, requests, speculative
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.reading import Kept, Reading
from gpt_jax.decoding.requests import Request, Slot, Step, Token
from gpt_jax.decoding.speculative import Draft
from gpt_jax.nn import caches as caches_lib
from gpt_jax.nn.stack import Caches
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import FailedError


class Batch:
  """The rows that are decoded together, and their caches.

  The number of running rows is rounded up to a power of two, and the caches'
  length, as the longest row needs it, to a bucket: rows that have ended cost
  nothing, and few sizes are compiled.

  Attributes:
    rows: None where a row is free.
    caches: the model's, then the draft's.
  """

  def __init__(self, model: Transformer, *, slots: int, ahead: int):
    """Starts empty.

    Args:
      slots: the most rows.
      ahead: tokens that a step may read past the end of a row.
    """
    self._model, self._slots, self._ahead = model, slots, ahead
    self.rows: list[Slot | None] = []
    self.caches: Caches = ()
    self._lengths = (0, 0)  # slots of the caches, and of the encoder's
    self._drawn: Step | None = None

  def running(self) -> list[Slot]:
    """The rows that are not free."""
    return [row for row in self.rows if row is not None]

  def drawn(self) -> Step:
    """The arguments of a step for the rows as they are now."""
    if self._drawn is None:
      self._drawn = requests.step_of(self.rows, self._model.vocab_size)
    return self._drawn

  def step(self, caches: Caches, seen_BV: object) -> None:
    """Keeps the results of a step: see `programs.decode_step`."""
    self.caches, self._drawn = caches, self.drawn()._replace(seen_BV=seen_BV)

  def free(self, index: int) -> None:
    """Ends a row."""
    self.rows[index] = self._drawn = None

  def fit(self, new: Sequence[Slot]) -> None:
    """Resizes the batch for the running rows and some new ones."""
    running = self.running()
    rows = [*running, *new]
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
    self.rows, index_B = requests.moved(self.rows, size)
    if running:
      self.caches = caches_lib.take_rows(self.caches, index_B, length, memory)
    else:
      self.caches = ()
    self._lengths, self._drawn = (length, memory), None

  def insert(
    self, rows: Sequence[Slot | None], caches: Caches, index_B: np.ndarray
  ) -> None:
    """Puts rows into free places, which `fit` has made.

    Args:
      rows: None: skipped.
      caches: of the prompts.
      index_B: the prompt of each row; may be longer than `rows`.
    """
    free = (i for i, row in enumerate(self.rows) if row is None)
    rows_B = np.full(len(index_B), len(self.rows))  # past the last: nowhere
    for i, row in enumerate(rows):
      if row is not None:
        rows_B[i] = next(free)
        self.rows[rows_B[i]] = row
    self._drawn = None
    if self.caches:
      self.caches = caches_lib.put_rows(self.caches, rows_B, caches, index_B)
    elif any(self.rows):
      # The first of an empty batch.
      from_B = np.zeros(len(self.rows) + 1, np.int32)
      from_B[rows_B] = index_B
      self.caches = caches_lib.take_rows(caches, from_B[:-1], *self._lengths)


class Engine:
  """Decodes up to `slots` requests at a time.

  The tokens of a request depend on its prompt, sampler and seed, never on what
  else is decoded. Over several devices it is used inside `sharding.use`. It is
  no more than one thread's at a time.
  """

  def __init__(
    self,
    decoder: Decoder,
    *,
    slots: int,
    draft: Draft | None = None,
    keep: int = 0,
  ):
    """Starts without requests.

    Args:
      slots: the most requests at a time.
      draft: proposes tokens; not for models that answer in the source's row.
      keep: how many ended rows keep their caches: a prompt that begins like
        one of them is read from there on. 0 for encoder-decoders.
    """
    assert slots > 0
    self._decoder = decoder = decoder.ready()
    if decoder.never_V is not None:
      self._decoder = decoder._replace(never_V=jnp.asarray(decoder.never_V))
    self._model, self._slots = decoder.model, slots
    self._draft = draft and speculative.for_decoding(draft)
    if draft is not None:
      speculative.check(decoder.model, draft.model, decoder.constraints)
    self.proposals = speculative.Proposals()
    self._next = 0
    self._waiting: dict[int, Request] = {}
    assert decoder.in_row is None or (draft is None and not keep)
    ahead = 1 + (draft.num_tokens if draft else 0)
    ahead += decoder.in_row.ahead if decoder.in_row else 0
    self._batch = Batch(self._model, slots=slots, ahead=ahead)
    self._kept = Kept(0 if self._model.num_encoder_layers else keep)
    self._readings: list[Reading] = []  # the first is read first
    self._readers = [self._decoder]
    if self._draft is not None:
      self._readers.append(Decoder(self._draft.model, self._draft.params))

  @property
  def num_waiting(self) -> int:
    """Requests in the queue."""
    return len(self._waiting)

  @property
  def num_running(self) -> int:
    """Requests whose prompts are being read, or that are being decoded."""
    reading = sum(len(reading.rows) for reading in self._readings)
    return reading + len(self._batch.running())

  @property
  def cache_bytes(self) -> int:
    """Size of the caches now, without those that are kept."""
    caches = [reading.caches for reading in self._readings]
    return sum(x.nbytes for x in jax.tree.leaves([self._batch.caches, caches]))

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
    """Drops a request, waiting or running; ignores one that has ended."""
    self._waiting.pop(number, None)
    for reading in self._readings:
      reading.rows = [row for row in reading.rows if row.number != number]
    self._readings = [reading for reading in self._readings if reading.rows]
    self._free({number})

  def run(self) -> Iterator[Token]:
    """Steps until no request is left; they may be added and cancelled.

    Raises:
      FailedError: the next token of one has no scores.
    """
    while self._waiting or self.num_running:
      for token in self.step():
        if token.finish == requests.FAILED:
          raise FailedError(requests.NOT_FINITE)
        yield token

  def step(self) -> list[Token]:
    """Decodes a token of each row and reads prompts of waiting requests.

    Prompts are read to their end where no row is being decoded; else no more
    than a block of them, so that those rows go on. A request gets its first
    token in the step that ends its prompt. With a draft it is one or more
    tokens of each row, in order; a request cancelled midway still yields the
    round's tokens.
    """
    out = []
    if self._batch.running():
      out = self._decode() if self._draft is None else self._speculate()
    self._free({token.request for token in out if token.finish})
    self._take_on()
    return out + self._read()

  def _free(self, numbers: Collection[int]) -> None:
    for i, row in enumerate(self._batch.rows):
      if row is None or row.number not in numbers:
        continue
      # The last token is not read yet; the draft may lack the one before, too.
      held = row.ids[: -1 if self._draft is None else -2]
      if self._kept.wants(held):
        length = programs.bucket(len(held), self._model.context_length)
        self._kept.add(
          held, caches_lib.take_rows(self._batch.caches, np.array([i]), length)
        )
      self._batch.free(i)

  def _texts(self, rows: Sequence[Slot | None]) -> np.ndarray | None:
    """The tokens of rows, where the next one depends on more than a cache."""
    if not self._decoder.constraints.of_text:
      return None
    return requests.texts(rows, self._model.context_length)

  def _decode(self) -> list[Token]:
    """One step of the batch."""
    step, rows = self._batch.drawn(), self._batch.rows
    last = [row.ids if row else [0] for row in rows]
    drawn_B, caches, seen_BV = programs.decode_step(
      self._decoder.params,
      self._batch.caches,
      np.array([ids[-1] for ids in last], np.int32),
      np.array([len(ids) - 1 for ids in last], np.int32),
      step.seen_BV,
      self._decoder.never_V,
      self._texts(rows),
      step.rows,
      model=self._model,
      how=step.how,
      in_row=self._decoder.in_row,
      constraints=self._decoder.constraints,
    )
    self._batch.step(caches, seen_BV)
    pairs = zip(rows, np.asarray(drawn_B).tolist(), strict=True)
    return [row.append(token) for row, token in pairs if row is not None]

  def _speculate(self) -> list[Token]:
    """One round of the batch: see `speculative`."""
    assert self._draft is not None
    step, rows = self._batch.drawn(), self._batch.rows
    ids = [row.ids if row else [0, 0] for row in rows]
    drawn = speculative.draw(
      self._decoder,
      self._draft,
      self._batch.caches,
      np.array([own[-2:] for own in ids], np.int32),
      np.array([len(own) - 1 for own in ids], np.int32),
      step.seen_BV,
      step.rows,
      how=step.how,
    )
    self._batch.step(drawn.caches, drawn.seen_BV)
    out: list[Token] = []
    tokens = np.asarray(drawn.ids_BN).tolist()
    accepted = np.asarray(drawn.accepted_B).tolist()
    for row, own, count in zip(rows, tokens, accepted, strict=True):
      if row is None:
        continue
      of_use = min(self._draft.num_tokens, row.num_left)
      self.proposals = self.proposals.more(of_use, min(count, of_use))
      for token in own[: count + 1]:
        out.append(row.append(token))
        if out[-1].finish:
          break
    return out

  def _take_on(self) -> None:
    """Takes requests from the queue whose prompts are to be read."""
    free = self._slots - self.num_running
    numbers = list(itertools.islice(self._waiting, free))
    chosen = [(number, self._waiting.pop(number)) for number in numbers]
    rows = [Slot(n, request, list(request.ids)) for n, request in chosen]
    make = functools.partial(Reading, readers=self._readers, slots=self._slots)
    others: list[Slot] = []
    for _, group in itertools.groupby(rows, lambda row: row.prompt):
      same = list(group)
      prefix = self._kept.find(same[0].ids)
      if prefix is None:
        others += same
      else:
        self._readings.append(make(same, prefix=prefix))
    longest = self._model.context_length
    for group in requests.alike(others, longest):
      groups = [group]
      if self._batch.running():
        groups = requests.portions(group, longest, programs.BLOCK)
      self._readings += map(make, groups)

  def _read(self) -> list[Token]:
    """Reads prompts, as much as `step` says; admits rows that are ready."""
    turn, most = self._readings, None
    if self._batch.running():
      costs = itertools.accumulate(reading.num_tokens for reading in turn)
      num = sum(cost <= programs.BLOCK for cost in costs)
      turn, most = turn[: max(num, 1)], 1
    ready = [r for r in turn if most is None or r.num_blocks <= most]
    self._readings = [r for r in self._readings if r not in ready]
    self._batch.fit([row for reading in ready for row in reading.rows])
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
    rows = [*group, *[None] * (size - len(group))]
    step = requests.step_of(rows, self._model.vocab_size)
    drawn_B = programs.first_draw(
      self._decoder.params,
      reading.last_BD,
      index_B,
      step.seen_BV,
      self._decoder.never_V,
      self._texts(rows),
      step.rows,
      model=self._model,
      how=step.how,
      constraints=self._decoder.constraints,
    )
    drawn = np.asarray(drawn_B).tolist()[: len(group)]
    out = [row.append(token) for row, token in zip(group, drawn, strict=True)]
    going = [
      None if token.finish else row
      for row, token in zip(group, out, strict=True)
    ]
    self._batch.insert(going, reading.caches, index_B)
    return out


def generate(
  decoder: Decoder,
  requests: Sequence[Request],
  *,
  rows: int,
  draft: Draft | None = None,
  stop_when: Callable[[list[int]], bool] = lambda ids: False,
) -> Iterator[tuple[int, list[int]]]:
  """Runs an engine until all requests have ended, the longest prompt first.

  Args:
    rows: requests that run at a time.
    draft: see `Engine`.
    stop_when: called with the new ids of a request after each token; True ends
      it after that token.

  Yields:
    The number of a request that has ended, and its new ids.
  """
  engine = Engine(decoder, slots=rows, draft=draft)
  # What is left at the end is short.
  order = sorted(
    range(len(requests)),
    key=lambda i: -len(requests[i].source or requests[i].ids),
  )
  numbers = {engine.add(requests[i]): i for i in order}
  new_ids: dict[int, list[int]] = {number: [] for number in numbers}
  for token in engine.run():
    if token.request not in new_ids:  # ended in the middle of a round
      continue
    ids, ended = new_ids[token.request], token.finish is not None
    if token.id is not None:
      ids.append(token.id)
      if not ended and stop_when(ids):
        engine.cancel(token.request)
        ended = True
    if ended:
      del new_ids[token.request]
      yield numbers[token.request], ids
