# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: requests join and leave while others are decoded.

Requests wait in a queue. As soon as a row of the batch is free, the next prompt
is read into caches of its own, which then move into that row. A long prompt is
read block by block, between the decoding steps of the other rows.
"""

import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import malloc
from gpt_jax.core.nn import caches as caches_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import FailedError
from gpt_jax.decoding import programs, requests, speculative
from gpt_jax.decoding.logprobs import NUM_TOP, Logprobs
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.reading import PrefixCache, PromptGroup
from gpt_jax.decoding.requests import DecodingStep, Request, Slot, Token
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.speculative import Draft

# Caches of fewer slots, of all rows together, are not worth a malloc_trim.
_MANY_SLOTS = 4096


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
      ahead: tokens that a step may read beyond the end of a row.
    """
    self._model, self._slots, self._ahead = model, slots, ahead
    self.rows: list[Slot | None] = []
    self.caches: Caches = ()
    self._lengths = (0, 0)  # slots of the caches, and of the encoder's
    self._most_slots = _MANY_SLOTS  # of all rows, so far
    self._drawn: DecodingStep | None = None

  def running(self) -> list[Slot]:
    """The rows in use."""
    return [row for row in self.rows if row is not None]

  def drawn(self) -> DecodingStep:
    """The arguments of a step for the present rows."""
    if self._drawn is None:
      self._drawn = requests.step_of(self.rows, self._model.vocab_size)
    return self._drawn

  def step(self, caches: Caches, seen_BV: object) -> None:
    """Takes the results of a `programs.decode_step`."""
    self.caches, self._drawn = caches, self.drawn()._replace(seen_BV=seen_BV)

  def free(self, index: int) -> None:
    """Frees a row."""
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
    old, self.caches = self.caches, ()
    self.rows, index_B = requests.moved(self.rows, size)
    self._lengths, self._drawn = (length, memory), None
    if running:
      self.caches = self._empty(old)
      self._move(old, index_B[: len(running)], range(len(running)))
    if size * length > self._most_slots:
      # The holes of what was freed before are too small for the new caches.
      malloc.give_back()
      self._most_slots = size * length

  def insert(self, rows: Sequence[Slot | None], caches: Caches, index: Sequence[int]) -> None:
    """Puts rows into the free places that `fit` made.

    Args:
      rows: None is skipped.
      index: of each row's prompt.
    """
    free = [i for i, row in enumerate(self.rows) if row is None]
    going = [(row, i) for row, i in zip(rows, index, strict=True) if row]
    places = free[: len(going)]
    for place, (row, _) in zip(places, going, strict=True):
      self.rows[place] = row
    self._drawn = None
    if going and not self.caches:
      self.caches = self._empty(caches)
    self._move(caches, [i for _, i in going], places)

  def _empty(self, like: Caches) -> Caches:
    """Caches for the rows of the batch, of the kinds of others."""
    return caches_lib.empty(like, len(self.rows), *self._lengths)

  def _move(self, old: Caches, index: Iterable[int], places: Iterable[int]) -> None:
    """Copies rows of `old` to places of the batch, one at a time.

    For each number of rows and length, two programs are compiled: to take a row
    from a batch, and to put it into one. To move all at once there would be one
    for each pair of an old and a new size.
    """
    for i, place in zip(index, places, strict=True):
      row = caches_lib.take_row(old, i, *self._lengths)
      self.caches = caches_lib.put_row(self.caches, place, row)


class Engine:
  """Decodes up to `slots` requests at a time.

  The tokens of a request depend on its prompt, sampler and seed alone, not on
  the other requests. On a mesh, use it inside `sharding.use`; only one thread
  at a time may use it.
  """

  def __init__(self, decoder: Decoder, *, slots: int, draft: Draft | None = None, keep: int = 0):
    """Starts without requests.

    Args:
      slots: the most requests at a time.
      draft: proposes tokens; not for models that answer in the source's row.
      keep: how many ended rows keep their caches: a prompt that begins like
        one of them is read from there on. None do so of encoder-decoders and
        of recurrent models.
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
    # The state of a recurrent layer is that of a whole row, not of its start.
    recurrent = ModelChoices.of(self._model).recurrent
    if self._model.num_encoder_layers or recurrent:
      keep = 0
    self._prefixes = PrefixCache(keep)
    self._readings: list[PromptGroup] = []  # the first is read first
    self._readers = [self._decoder]
    if self._draft is not None:
      self._readers.append(Decoder(self._draft.model, self._draft.params))

  @property
  def slots(self) -> int:
    """The most requests at a time."""
    return self._slots

  @property
  def sizes(self) -> list[int]:
    """Numbers of rows that batches are padded to."""
    sizes = {programs.num_rows(n + 1, self._slots) for n in range(self._slots)}
    return sorted(sizes)

  @property
  def has_draft(self) -> bool:
    """Whether a draft proposes tokens."""
    return self._draft is not None

  @property
  def context_length(self) -> int:
    """The most tokens of a prompt and its continuation."""
    return self._model.context_length

  @property
  def vocab_size(self) -> int:
    """Rows of the model's table."""
    return self._model.vocab_size

  @property
  def num_waiting(self) -> int:
    """Requests in the queue."""
    return len(self._waiting)

  @property
  def num_running(self) -> int:
    """Requests that are being read or decoded."""
    reading = sum(len(reading.rows) for reading in self._readings)
    return reading + len(self._batch.running())

  @property
  def cache_bytes(self) -> int:
    """Present size of the caches, without those kept of ended rows."""
    caches = [reading.caches for reading in self._readings]
    return sum(x.nbytes for x in jax.tree.leaves([self._batch.caches, caches]))

  def empty_caches(self, num_rows: int, length: int) -> Caches:
    """Caches of a batch, without tokens."""
    models = (reader.model for reader in self._readers)
    caches = (caches_lib.init_caches(model, num_rows, length) for model in models)
    return sum(caches, ())

  def add(self, request: Request) -> int:
    """Queues a request and returns its number."""
    assert request.max_tokens >= 0 and len(request.ids) > 0
    assert not (request.scores_prompt and self._decoder.in_row)
    assert (request.num_top or 0) <= NUM_TOP
    length = len(request.ids) + request.max_tokens
    assert length <= self._model.context_length
    assert bool(request.source) == (self._model.num_encoder_layers > 0)
    self._next += 1
    self._waiting[self._next] = request
    return self._next

  def cancel(self, number: int) -> None:
    """Drops a waiting or running request; one that has ended is ignored."""
    self._waiting.pop(number, None)
    for reading in self._readings:
      reading.rows = [row for row in reading.rows if row.number != number]
    self._readings = [reading for reading in self._readings if reading.rows]
    self._free({number})

  def run(self) -> Iterator[Token]:
    """Steps until no request is left; requests may be added and cancelled.

    Raises:
      FailedError: a request's scores are NaN or infinite.
    """
    while self._waiting or self.num_running:
      for token in self.step():
        if token.finish == requests.FAILED:
          raise FailedError(requests.NOT_FINITE)
        yield token

  def step(self) -> list[Token]:
    """Decodes a token of each row and reads prompts of waiting requests.

    Prompts are read to their end if no row is being decoded, otherwise at most
    one block of them, so that the running rows do not wait. A request gets its
    first token in the step that ends its prompt. With a draft, a step gives one
    or more tokens of each row, in order; a request cancelled midway still
    yields the round's tokens.
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
      # The last token has not been read; nor, maybe, the one before by a draft.
      held = row.ids[: -1 if self._draft is None else -2]
      if self._prefixes.wants(held):
        length = programs.bucket(len(held), self._model.context_length)
        self._prefixes.add(held, caches_lib.take_rows(self._batch.caches, np.array([i]), length))
      self._batch.free(i)

  def _texts(self, rows: Sequence[Slot | None]) -> np.ndarray | None:
    """The tokens of rows, if constraints depend on them."""
    if not self._decoder.constraints.of_text:
      return None
    longest = max(len(row.ids) if row else 0 for row in rows)
    size = programs.bucket(longest, self._model.context_length)
    return requests.texts(rows, size)

  def _decode(self) -> list[Token]:
    """Decodes a token of each row."""
    rows, step = self._batch.rows, self._batch.drawn()
    last = [row.ids if row else [0] for row in rows]
    length_B = np.array([len(ids) for ids in last], np.int32)
    token_B = np.array([ids[-1] for ids in last], np.int32)
    logits_BV, caches = programs.decode_step(
      self._decoder.params,
      self._batch.caches,
      token_B,
      length_B - 1,
      step.rows.num_memory_B,
      model=self._model,
      in_row=self._decoder.in_row,
    )
    drawn, seen_BV, scores = self._draw(logits_BV, length_B, token_B, rows, step)
    self._batch.step(caches, seen_BV)
    return [row.append(drawn[i], _at(scores, i)) for i, row in enumerate(rows) if row is not None]

  def _draw(
    self,
    logits_BV: jax.Array,
    length_B: np.ndarray,
    token_B: np.ndarray,
    rows: Sequence[Slot | None],
    step: DecodingStep,
  ) -> tuple[list[int], Any, Any]:
    """Draws by `programs.draw`; waits for the tokens."""
    drawn_B, seen_BV, scores = programs.draw(
      logits_BV,
      length_B,
      token_B,
      step.seen_BV,
      self._decoder.never_V,
      self._texts(rows),
      step.rows,
      constraints=self._decoder.constraints,
    )
    return np.asarray(drawn_B).tolist(), seen_BV, jax.device_get(scores)

  def _speculate(self) -> list[Token]:
    """Decodes a round of proposals of each row."""
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
      greedy=step.greedy,
    )
    self._batch.step(drawn.caches, drawn.seen_BV)
    out: list[Token] = []
    tokens = np.asarray(drawn.ids_BN).tolist()
    accepted = np.asarray(drawn.accepted_B).tolist()
    scores = jax.device_get(drawn.scores_BN)
    for i, row in enumerate(rows):
      if row is None:
        continue
      own, count = tokens[i], accepted[i]
      usable = min(self._draft.num_tokens, row.num_left)
      self.proposals = self.proposals.more(usable, min(count, usable))
      for n, token in enumerate(own[: count + 1]):
        out.append(row.append(token, _at(scores, (i, n))))
        if out[-1].finish:
          break
    return out

  def _take_on(self) -> None:
    """Starts reading requests of the queue, as many as rows are free."""
    free = self._slots - self.num_running
    numbers = list(itertools.islice(self._waiting, free))
    chosen = [(number, self._waiting.pop(number)) for number in numbers]
    rows = [Slot(n, request, list(request.ids)) for n, request in chosen]
    make = functools.partial(PromptGroup, readers=self._readers, slots=self._slots)
    others: list[Slot] = []
    for _, group in itertools.groupby(rows, lambda row: row.prompt):
      same, prefix = list(group), None
      if not any(row.request.scores_prompt for row in same):
        prefix = self._prefixes.find(same[0].ids)
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
    """Reads prompts, as `step` says; admits rows whose prompts are read."""
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

  def _admit(self, reading: PromptGroup) -> list[Token]:
    """Draws the first tokens of rows that were read; inserts the rows."""
    group, places = reading.rows, reading.places()
    # As many as there may be: the programs depend on the prompts alone.
    index_B = np.zeros(self._slots, np.int32)
    index_B[: len(group)] = places
    rows = [*group, *[None] * (self._slots - len(group))]
    logits_BV = programs.first_logits(
      self._decoder.params, reading.last_BD, index_B, model=self._model
    )
    step = requests.step_of(rows, self._model.vocab_size)
    # All tokens are seen already: see `programs.draw`.
    token_B = np.full(len(rows), self._model.vocab_size, np.int32)
    drawn, _, scores = self._draw(logits_BV, step.rows.start_B, token_B, rows, step)
    prompts = reading.prompt_logprobs()
    out = [row.append(drawn[i], _at(scores, i), prompts[i]) for i, row in enumerate(group)]
    going = [None if token.finish else row for row, token in zip(group, out, strict=True)]
    self._batch.insert(going, reading.caches, places)
    return out


# What the programs of a batch depend on, besides its sizes: its rows are plain,
# or some need more (see `DecodingStep.seen_BV`); with a draft, all are greedy
# or not.
_PLAIN, _SCORED = {}, {'num_top': 0, 'scores_prompt': True}


def warm_up(engine: Engine, prompt: int, new: int) -> Iterator[int]:
  """Compiles what requests of `prompt` and `new` tokens run; `new` is above 1.

  Of each number of rows, whatever the requests' options are. The requests are
  dropped.

  Yields:
    The number of rows whose programs are compiled.
  """
  samplers = [Sampler()]
  if engine.has_draft:
    samplers.append(Sampler(temperature=0))
  ways = list(itertools.product(samplers, (_PLAIN, _SCORED)))
  for size in engine.sizes:
    for sampler, fields in ways:
      # Prompts of one first token would be read once.
      rows = ([row % engine.vocab_size] * prompt for row in range(size))
      requests = (Request(ids, new, sampler, **fields) for ids in rows)
      drawn = {engine.add(request): 0 for request in requests}
      # The second token of each comes from a decoding step.
      while engine.num_waiting + engine.num_running and min(drawn.values()) < 2:
        for token in engine.step():
          drawn[token.request] += 1
      for number in drawn:
        engine.cancel(number)
      engine.step()
    yield size


def warm_up_moves(engine: Engine, longest: int) -> None:
  """Compiles what moves rows between batches of up to `longest` slots."""
  lengths = programs.buckets(longest)
  for row, batch in itertools.product(lengths, lengths):
    if row <= batch:
      for size in engine.sizes:
        caches = engine.empty_caches(size, batch)
        taken = caches_lib.take_row(caches, 0, row)
        caches_lib.put_row(caches, 0, taken)


def warm_up_all(
  engine: Engine, seconds: float, report: Callable[[int, int], None] = lambda done, total: None
) -> bool:
  """Compiles what requests of every size run, the short ones first.

  A size is a number of rows of a length.

  Args:
    engine: to compile for.
    seconds: after these the sizes that are left are compiled as they come.
    report: called with the number of sizes compiled, and of all.

  Returns:
    Whether all are compiled.
  """
  end, moved = time.monotonic() + seconds, 0
  lengths = programs.lengths(engine.context_length)
  done, total = 0, len(lengths) * len(engine.sizes)
  report(done, total)
  for length in lengths:
    if programs.bucket(length, engine.context_length) != moved:
      moved = programs.bucket(length, engine.context_length)
      warm_up_moves(engine, moved)
    new = min(2, length - 1)
    for _ in warm_up(engine, length - new, new) if new else ():
      done += 1
      report(done, total)
      if time.monotonic() > end:
        return False
  return True


def _at(scores: Logprobs | None, index: Any) -> Logprobs | None:
  """The scores of one of the sampled tokens."""
  return None if scores is None else scores.at(index)


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
  # Then the last to run are short ones.
  order = sorted(range(len(requests)), key=lambda i: -len(requests[i].source or requests[i].ids))
  numbers = {engine.add(requests[i]): i for i in order}
  new_ids: dict[int, list[int]] = {number: [] for number in numbers}
  for token in engine.run():
    if token.request not in new_ids:  # ended in the middle of a round
      continue
    ids, ended = new_ids[token.request], token.finish is not None
    if token.id is not None:
      ids.append(token.id)
      if stop_when(ids) and not ended:
        engine.cancel(token.request)
        ended = True
    if ended:
      del new_ids[token.request]
      yield numbers[token.request], ids
