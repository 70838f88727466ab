# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Beam search for any number of texts, a batch of about equal length at a time.

What a text is given depends on no other in its batch. Those that are done leave
it, which then shrinks to a power of two of them; ids and caches grow by
buckets, as the engine's do.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.data.tokenizers.constraints import ANY, Constraints
from gpt_jax.decoding import beam as beam_lib
from gpt_jax.decoding import programs, requests
from gpt_jax.decoding.beam import Beam, State, Texts
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.reading import Reader, Reading
from gpt_jax.decoding.requests import Request, Row
from gpt_jax.nn import caches as caches_lib
from gpt_jax.nn.context import KVCache
from gpt_jax.nn.stack import Caches
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import FailedError


class Hypothesis(NamedTuple):
  """A continuation that was found.

  Attributes:
    ids: the new tokens, without the one that ended it.
    score: the sum of their log-probabilities, its end's among them, divided by
      what `Beam.penalty` says.
    finish: 'stop' or 'length'.
  """

  ids: list[int]
  score: float
  finish: str


def search(
  model: Transformer,
  params: Any,
  asked: Sequence[Request],
  beam: Beam,
  *,
  rows: int,
  in_row: InRow | None = None,
  never_V: np.ndarray | None = None,
  constraints: Constraints = ANY,
  count: Callable[[int], None] = lambda tokens: None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
  """The most probable continuations of each text, by beam search.

  Over several devices it is used inside `sharding.use`.

  Args:
    model: whose context is long enough for prompts and continuations.
    params: its parameters, as they are or from `in_place`.
    asked: the texts, with the same `stop_ids`; samplers and seeds say nothing.
    beam: how to search.
    rows: texts that are searched at a time.
    in_row: see `Engine`.
    never_V: see `sampler.never_drawn`.
    constraints: see `Engine`; those of `beam` come first.
    count: called after each step with how many texts got a token.

  Raises:
    FailedError: the next token of a text has no scores.

  Yields:
    The number of a text that is done, and at most `beam.size` hypotheses, best
    first; fewer where bans leave no more.
  """
  model, params = programs.in_place(model, params)
  waiting = [Row(i, one, list(one.ids)) for i, one in enumerate(asked)]
  for group in requests.alike(waiting, model.context_length):
    # Of about one length they end at about the same time.
    group.sort(key=lambda row: (len(row.request.source or ()), len(row.ids)))
    for i in range(0, len(group), rows):
      part = group[i : i + rows]
      running = Search(
        *(model, params, part, beam),
        slots=rows,
        in_row=in_row,
        never_V=never_V,
        constraints=constraints,
      )
      count(len(running.rows))
      while running.rows:
        yield from running.step()
        count(len(running.rows))


class Search:
  """A batch of texts that are searched together.

  Attributes:
    rows: those that are not done.
  """

  def __init__(
    self,
    model: Transformer,
    params: Any,
    rows: Sequence[Row],
    beam: Beam,
    *,
    slots: int,
    in_row: InRow | None = None,
    never_V: np.ndarray | None = None,
    constraints: Constraints = ANY,
  ):
    """Reads the prompts and sources; takes the first tokens.

    Args:
      model: of `programs.in_place`.
      params: its parameters.
      rows: of one group of `requests.alike`, with the same `stop_ids`.
      beam: how to search.
      slots: the most rows.
      in_row: see `Engine`.
      never_V: see `sampler.never_drawn`.
      constraints: see `search`.
    """
    self._model, self._params, self._beam = model, params, beam
    self._in_row = in_row
    self.rows = list(rows)
    self._slots = slots
    self._size = programs.num_rows(len(rows), slots)
    self._places = [*range(len(rows))]  # of the rows in the batch
    self._tokens = 0
    self._stop_ids = frozenset(rows[0].request.stop_ids)
    assert all(self._stop_ids == {*row.request.stop_ids} for row in rows)
    assert all(
      len(row.ids) + row.num_left <= model.context_length for row in rows
    )
    stop_ids = tuple(sorted(self._stop_ids))
    self._constraints = beam_lib.constrained(
      beam, constraints._replace(stop_ids=stop_ids)
    )
    self._rules = beam_lib.rules(beam, self._constraints, never_V)
    self._begin()

  @property
  def cache_bytes(self) -> int:
    """Size of the caches now."""
    return sum(x.nbytes for x in jax.tree.leaves(self._caches))

  def wait(self) -> None:
    """Waits until the newest token is chosen."""
    jax.block_until_ready(self._state)

  def step(self) -> list[tuple[int, list[Hypothesis]]]:
    """Takes a token more of each hypothesis; gives the texts that are done."""
    done = self._done()
    if self.rows:
      self._fit()
      logits_BNV, self._caches = beam_lib.advance(
        self._params,
        self._caches,
        self._state,
        self._texts,
        model=self._model,
        in_row=self._in_row,
      )
      self._choose(logits_BNV)
    return done

  def _begin(self) -> None:
    """Reads the prompts and sources, and takes the first tokens."""
    reading = Reading(
      self.rows,
      readers=[Reader(self._model, self._params, self._in_row)],
      slots=self._slots,
    )
    for _ in range(reading.num_blocks):
      reading.read()
    index_B = np.zeros(self._size, np.int32)
    index_B[: len(self.rows)] = reading.places()
    self._texts, self._length = self._asked(), self._needed(1)
    ids_BT = np.zeros((self._size, self._length), np.int32)
    for at, row in zip(self._places, self.rows, strict=True):
      ids_BT[at, : len(row.ids)] = row.ids
    self._state = beam_lib.initial(ids_BT, self._texts, self._beam)
    self._caches = self._taken(reading.caches, index_B, self._length, 1)
    logits_BNV = beam_lib.first(
      self._params,
      reading.last_BD,
      index_B,
      model=self._model,
      size=self._beam.size,
    )
    self._choose(logits_BNV)

  def _asked(self) -> Texts:
    """Of the rows as they are now."""
    fields = np.zeros((4, self._size), np.int32)
    for at, row in zip(self._places, self.rows, strict=True):
      one = row.request
      fields[:, at] = (
        *(len(one.ids), one.max_tokens, len(one.source or ())),
        one.num_source,
      )
    return Texts(*fields)

  def _needed(self, tokens: int) -> int:
    """Slots for so many new tokens of each row."""
    longest = max(len(row.request.ids) for row in self.rows) + tokens
    return programs.bucket(longest, self._model.context_length)

  def _choose(self, logits_BNV: jax.Array) -> None:
    self._state = beam_lib.choose(
      self._state,
      logits_BNV,
      self._texts,
      self._rules,
      constraints=self._constraints,
    )
    self._tokens += 1

  def _fit(self) -> None:
    """Takes the size for what is left, with room for one more token."""
    size = programs.num_rows(len(self.rows), self._size)
    length = max(self._needed(self._tokens + 1), self._length)
    if (size, length) == (self._size, self._length):
      return
    index_B = np.zeros(size, np.int32)
    index_B[: len(self.rows)] = self._places
    more = length - self._length
    self._state = beam_lib.take(self._state, index_B, more=more)
    self._caches = self._taken(self._caches, index_B, length, self._beam.size)
    self._size, self._length = size, length
    self._places = [*range(len(self.rows))]
    self._texts = self._asked()

  def _taken(
    self, caches: Caches, index_B: np.ndarray, length: int, each: int
  ) -> Caches:
    """Caches with a row for each hypothesis of some texts.

    Args:
      caches: with `each` rows for a text.
      index_B: the texts.
      length: slots.
      each: rows of a text, one or as many as there are hypotheses.
    """
    size, cache = self._beam.size, caches[0]
    assert isinstance(cache, KVCache)
    memory = 0 if cache.cross is None else cache.cross.num_slots
    index_BN = index_B[:, None] * each + np.arange(size)[None] % each
    return caches_lib.take_rows(
      caches, index_BN.reshape(-1), length, memory, index_of_memory=index_B
    )

  def _done(self) -> list[tuple[int, list[Hypothesis]]]:
    """Takes the texts that are done out of the rows."""
    active_B = np.asarray(self._state.active_B)
    done = [
      (at, row)
      for at, row in zip(self._places, self.rows, strict=True)
      if not active_B[at]
    ]
    if not done:
      return []
    state = jax.device_get(self._state)
    if any(state.broken_B[at] for at, _ in done):
      raise FailedError(requests.NOT_FINITE)
    out = [(row.number, self._found(state, at, row)) for at, row in done]
    left = [
      x for x in zip(self._places, self.rows, strict=True) if active_B[x[0]]
    ]
    self._places = [at for at, _ in left]
    self.rows = [row for _, row in left]
    return out

  def _found(self, state: State, at: int, row: Row) -> list[Hypothesis]:
    """The hypotheses of a text that have ended."""
    out, start = [], len(row.request.ids)
    for ids_T, size, score in zip(
      state.ended_BNT[at], state.sizes_BN[at], state.scores_BN[at], strict=True
    ):
      if score == -np.inf:
        continue
      ids = ids_T[start : start + size].tolist()
      stops = ids[-1] in self._stop_ids
      finish = 'stop' if stops else 'length'
      out.append(Hypothesis(ids[: len(ids) - stops], float(score), finish))
    return out
