# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Beam search.

The rules are those of Hugging Face transformers 5; `PENALTIES` also has the one
of Wu et al. (2016, equation 14). B texts, N hypotheses each, R = B N rows of
the model with those of a text together; T slots of ids, C candidates.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn import caches as caches_lib
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.spec import FailedError
from gpt_jax.decoding import programs, requests, sampler
from gpt_jax.decoding.constraints import Constraints
from gpt_jax.decoding.programs import BatchArrays, Decoder
from gpt_jax.decoding.reading import PromptGroup
from gpt_jax.decoding.requests import Request, Slot
from gpt_jax.decoding.settings import PENALTIES, BeamSettings


class BeamRules(NamedTuple):
  """The traced part of `BeamSettings`, and the stop tokens."""

  length_penalty: np.floating
  offset: np.floating
  divisor: np.floating
  early_stopping: np.ndarray
  stop_ids: np.ndarray  # [E]
  never_V: np.ndarray | None  # see `constraints.never_drawn`

  def score(self, sums: jax.Array, tokens: jax.Array) -> jax.Array:
    """Scores of hypotheses with `tokens` new tokens."""
    length = (tokens + self.offset) / self.divisor
    return sums / length**self.length_penalty


class SearchState(NamedTuple):
  """The state of a search.

  Attributes:
    tokens: number of new tokens of each open hypothesis.
    ids_BNT: the open hypotheses with their prompts, best first.
    sums_BN: their log-probabilities; -inf if there is no such hypothesis.
    parents_BN: the index of each before its newest token.
    ended_BNT: the ended hypotheses, best first.
    sizes_BN: their numbers of new tokens, including the end.
    scores_BN: their scores; -inf if there is no such hypothesis.
    active_B: whether the search goes on.
    broken_B: whether it ended because scores were NaN or infinite.
  """

  tokens: jax.Array
  ids_BNT: jax.Array
  sums_BN: jax.Array
  parents_BN: jax.Array
  ended_BNT: jax.Array
  sizes_BN: jax.Array
  scores_BN: jax.Array
  active_B: jax.Array
  broken_B: jax.Array


def constrained(beam: BeamSettings, constraints: Constraints) -> Constraints:
  """The constraints of a search: those of the beam take precedence."""
  own = {
    name: value
    for name, value in beam._asdict().items()
    if name in Constraints._fields and value is not None
  }
  return constraints._replace(**own)


def rules(
  beam: BeamSettings, constraints: Constraints, never_V: np.ndarray | None = None
) -> BeamRules:
  """The traced rules of a search, from what `constrained` returned."""
  offset, divisor = PENALTIES[beam.penalty]
  penalty = constraints.length_penalty
  return BeamRules(
    np.float32(1 if penalty is None else penalty),
    np.float32(offset),
    np.float32(divisor),
    np.array(bool(constraints.early_stopping)),
    np.array(constraints.stop_ids, np.int32),
    never_V,
  )


def initial(ids_BT: np.ndarray, texts: BatchArrays, beam: BeamSettings) -> SearchState:
  """The state before the first token: one hypothesis of each text."""
  B = len(ids_BT)
  ids_BNT = np.repeat(ids_BT[:, None], beam.size, axis=1)
  none_BN = np.full((B, beam.size), -np.inf, np.float32)
  sums_BN = none_BN.copy()
  sums_BN[:, 0] = 0
  zeros_BN = np.zeros((B, beam.size), np.int32)
  fields = (
    np.int32(0),
    ids_BNT,
    sums_BN,
    zeros_BN,
    np.zeros_like(ids_BNT),
    zeros_BN,
    none_BN,
    texts.most_B > 0,
    np.zeros(B, bool),
  )
  return SearchState(*map(jnp.asarray, fields))


@functools.partial(jax.jit, static_argnames='more')
def take(state: SearchState, index_B: np.ndarray, *, more: int) -> SearchState:
  """The state of some texts, with `more` further slots of ids."""

  def part(x: jax.Array) -> jax.Array:
    if not x.ndim:
      return x
    wider = [(0, more if axis == 2 else 0) for axis in range(x.ndim)]
    return jnp.pad(x[index_B], wider)

  return SearchState(*map(part, state))


@functools.partial(jax.jit, static_argnames=('model', 'in_row'))
def advance(params, caches, state, texts, *, model, in_row):
  """Reads the newest token of each hypothesis.

  Args:
    caches: of R rows in the order of the parents, and of B encoded sources.
    state: from `choose`.

  Returns:
    Logits [B, N, V], and the caches.
  """
  B, N, T = state.ids_BNT.shape
  index_BN = jnp.arange(B)[:, None] * N + state.parents_BN
  # Not donated: rows are read and written in different orders, so XLA would
  # copy a donated array; new arrays are written in place.
  caches = caches_lib.reorder(caches, index_BN.reshape(-1))
  at_B = texts.start_B + state.tokens - 1
  # Finished searches run along, to no effect.
  at_B = jnp.minimum(at_B, T - 1)
  token_BN = jnp.take_along_axis(state.ids_BNT, at_B[:, None, None], 2)[..., 0]
  logits_RV, caches = programs.next_logits(
    params,
    caches,
    token_BN.reshape(-1),
    jnp.repeat(at_B, N),
    texts.num_memory_B,
    model=model,
    in_row=in_row,
  )
  return logits_RV.reshape(B, N, -1), caches


@functools.partial(jax.jit, static_argnames=('model', 'size'))
def first(params, last_XD, index_B, *, model, size):
  """The logits of the first token, [B, N, V].

  Args:
    last_XD: the last hidden states of prompts.
    index_B: the index of each text's prompt.
  """
  logits_XV = model.apply({'params': params}, last_XD, method='logits')
  B, V = len(index_B), logits_XV.shape[-1]
  return jnp.broadcast_to(logits_XV[index_B][:, None], (B, size, V))


@functools.partial(jax.jit, static_argnames='constraints', donate_argnames='state')
def choose(state, logits_BNV, texts, rules, *, constraints):
  """Adds a token to each open hypothesis.

  Of all N V candidates, the best N that do not end stay open. A candidate that
  ends is kept if it is among the best N of all, and dropped otherwise; at the
  limit of a text the best N end, whatever their last token is. The best N of
  all that have ended are kept.

  Args:
    state: donated.
    logits_BNV: of the next token.
    constraints: from `constrained`.
  """
  B, N, T = state.ids_BNT.shape
  tokens = state.tokens + 1
  at_B = texts.start_B + state.tokens
  sums_BC, parents_BC, token_BC = _candidates(state, logits_BNV, texts, rules, constraints)
  C = sums_BC.shape[1]
  ends_BC = jnp.any(token_BC[..., None] == rules.stop_ids[None, None], axis=-1)
  ids_BCT = jnp.where(
    jnp.arange(T)[None, None] == at_B[:, None, None],
    token_BC[..., None],
    _pick(state.ids_BNT, parents_BC),
  )
  broken_BN = sampler.broken(logits_BNV) & (state.sums_BN > -jnp.inf)
  broken_B = state.active_B & jnp.any(broken_BN, axis=1)
  # Hypotheses that end.
  full_B = tokens >= texts.most_B
  now_BC = (ends_BC | full_B[:, None]) & (jnp.arange(C)[None] < N)
  now_BC &= state.active_B[:, None] & (sums_BC > -jnp.inf)
  new_BC = jnp.where(now_BC, rules.score(sums_BC, tokens), -jnp.inf)
  # Among equal scores the older comes first.
  every = jnp.concatenate([state.scores_BN, new_BC], axis=1)
  scores_BN, best_BN = jax.lax.top_k(every, N)
  sizes_BC = jnp.broadcast_to(tokens, (B, C))
  sizes = jnp.concatenate([state.sizes_BN, sizes_BC], axis=1)
  ended = jnp.concatenate([state.ended_BNT, ids_BCT], axis=1)
  # Hypotheses that stay open.
  going_BC = jnp.where(ends_BC, -jnp.inf, sums_BC)
  sums_BN, going_BN = jax.lax.top_k(going_BC, N)
  filled_B = scores_BN[:, -1] > -jnp.inf
  beaten_B = rules.score(sums_BN[:, 0], tokens) <= scores_BN[:, -1]
  done_B = full_B | (filled_B & (rules.early_stopping | beaten_B))
  return SearchState(
    tokens,
    _pick(ids_BCT, going_BN),
    sums_BN,
    _pick(parents_BC, going_BN),
    _pick(ended, best_BN),
    _pick(sizes, best_BN),
    scores_BN,
    # Nothing more can come once no hypothesis is open.
    state.active_B & ~done_B & ~broken_B & (sums_BN[:, 0] > -jnp.inf),
    state.broken_B | broken_B,
  )


def _candidates(
  state: SearchState,
  logits_BNV: jax.Array,
  texts: BatchArrays,
  rules: BeamRules,
  constraints: Constraints,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The best candidates: their sums, hypotheses and tokens, [B, C].

  Enough that N of them do not end, whichever do.
  """
  B, N, V = logits_BNV.shape
  total_BN = jax.nn.logsumexp(logits_BNV, axis=-1)

  def each(x_B: Any) -> jax.Array:
    return jnp.repeat(jnp.asarray(x_B), N)

  # Not normalised again after constraints; a forced token has probability 1.
  scores_BNV = logits_BNV - total_BN[..., None]
  scores_RV = sampler.constrain(
    sampler.suppress(scores_BNV, rules.never_V).reshape(B * N, V),
    constraints,
    length_R=each(texts.start_B) + state.tokens,
    start_R=each(texts.start_B),
    most_R=each(texts.most_B),
    ids_RT=state.ids_BNT.reshape(B * N, -1),
    source_R=each(texts.num_source_B),
  )
  scores_BNV = scores_RV.reshape(B, N, V)
  C = (1 + rules.stop_ids.size) * N
  # The best of each hypothesis, then the best of those: faster than one search
  # among N V.
  most = min(C, V)
  best_BNC, token_BNC = jax.lax.top_k(scores_BNV, most)
  sums_BNC = state.sums_BN[..., None] + best_BNC
  sums_BC, index_BC = jax.lax.top_k(sums_BNC.reshape(B, -1), min(C, N * most))
  tokens_BX = token_BNC.reshape(B, -1)
  token_BC = jnp.take_along_axis(tokens_BX, index_BC, axis=1)
  return sums_BC, index_BC // most, token_BC


def _pick(x: jax.Array, index_BN: jax.Array) -> jax.Array:
  """x[b, index[b, n]]."""
  return x[jnp.arange(len(x))[:, None], index_BN]


# Any number of texts, searched in batches of about equal length.
#
# A text's hypotheses do not depend on the rest of its batch. Finished texts
# leave the batch, which shrinks to powers of two; ids and caches grow by
# buckets, as in the engine.


class Hypothesis(NamedTuple):
  """A continuation that was found.

  Attributes:
    ids: the new tokens, without a stop token.
    score: the sum of their log-probabilities, including the stop token's,
      divided by the length as `BeamSettings.penalty` says.
    finish: 'stop' or 'length'.
  """

  ids: list[int]
  score: float
  finish: str


def search(
  decoder: Decoder,
  texts: Sequence[Request],
  beam: BeamSettings,
  *,
  rows: int,
  count: Callable[[int], None] = lambda tokens: None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
  """The most probable continuations of each text, by beam search.

  On a mesh, use it inside `sharding.use`.

  Args:
    decoder: its context has room for prompts and continuations.
    texts: with the same `stop_ids`; samplers and seeds are ignored.
    beam: takes precedence over the decoder's constraints.
    rows: texts that are searched at a time.
    count: called after each step with the number of texts that got a token.

  Raises:
    FailedError: scores are NaN or infinite.

  Yields:
    The number of a finished text, and at most `beam.size` hypotheses, best
    first; fewer if constraints leave no more.
  """
  decoder = decoder.ready()
  waiting = [Slot(i, one, list(one.ids)) for i, one in enumerate(texts)]
  for group in requests.alike(waiting, decoder.model.context_length):
    # Texts of about equal length end at about the same time.
    group.sort(key=lambda row: (len(row.request.source or ()), len(row.ids)))
    for i in range(0, len(group), rows):
      running = Search(decoder, group[i : i + rows], beam, slots=rows)
      count(len(running.rows))
      while running.rows:
        yield from running.step()
        count(len(running.rows))


class Search:
  """A batch of texts that are searched together."""

  def __init__(self, decoder: Decoder, rows: Sequence[Slot], beam: BeamSettings, *, slots: int):
    """Reads the prompts and sources; chooses the first tokens.

    Args:
      decoder: `ready`.
      rows: a group of `requests.alike` with the same `stop_ids`.
      slots: the most rows.
    """
    self._decoder, self._model = decoder, decoder.model
    self._beam, self._slots = beam, slots
    self._batch, _ = requests.moved(rows, programs.num_rows(len(rows), slots))
    self._tokens = 0
    self._stop_ids = frozenset(rows[0].request.stop_ids)
    assert all(self._stop_ids == {*row.request.stop_ids} for row in rows)
    assert all(len(row.ids) + row.num_left <= self._model.context_length for row in rows)
    stop_ids = tuple(sorted(self._stop_ids))
    self._constraints = constrained(beam, decoder.constraints._replace(stop_ids=stop_ids))
    self._rules = rules(beam, self._constraints, decoder.never_V)
    self._begin()

  @property
  def rows(self) -> list[Slot]:
    """The unfinished texts."""
    return [row for row in self._batch if row is not None]

  @property
  def cache_bytes(self) -> int:
    """Present size of the caches."""
    return sum(x.nbytes for x in jax.tree.leaves(self._caches))

  def wait(self) -> None:
    """Waits for the newest tokens."""
    jax.block_until_ready(self._state)

  def step(self) -> list[tuple[int, list[Hypothesis]]]:
    """Adds a token to each hypothesis; returns the finished texts."""
    done = self._done()
    if self.rows:
      self._fit()
      logits_BNV, self._caches = advance(
        self._decoder.params,
        self._caches,
        self._state,
        self._rows,
        model=self._model,
        in_row=self._decoder.in_row,
      )
      self._choose(logits_BNV)
    return done

  def _begin(self) -> None:
    """Reads the prompts and sources, and chooses the first tokens."""
    reading = PromptGroup(self.rows, readers=[self._decoder], slots=self._slots)
    for _ in range(reading.num_blocks):
      reading.read()
    index_B = np.zeros(len(self._batch), np.int32)
    index_B[: len(self.rows)] = reading.places()
    self._rows, self._length = requests.rows_of(self._batch), self._needed(1)
    ids_BT = np.zeros((len(self._batch), self._length), np.int32)
    for ids_T, row in zip(ids_BT, self.rows, strict=False):
      ids_T[: len(row.ids)] = row.ids
    self._state = initial(ids_BT, self._rows, self._beam)
    self._caches = self._taken(reading.caches, index_B, self._length, 1)
    logits_BNV = first(
      self._decoder.params, reading.last_BD, index_B, model=self._model, size=self._beam.size
    )
    self._choose(logits_BNV)

  def _needed(self, tokens: int) -> int:
    """Cache slots for `tokens` new tokens of each row."""
    longest = max(len(row.request.ids) for row in self.rows) + tokens
    return programs.bucket(longest, self._model.context_length)

  def _choose(self, logits_BNV: jax.Array) -> None:
    self._state = choose(
      self._state, logits_BNV, self._rows, self._rules, constraints=self._constraints
    )
    self._tokens += 1

  def _fit(self) -> None:
    """Resizes the batch for the unfinished texts and one more token."""
    before = len(self._batch)
    size = programs.num_rows(len(self.rows), before)
    length = max(self._needed(self._tokens + 1), self._length)
    if (size, length) == (before, self._length):
      return
    self._batch, index_B = requests.moved(self._batch, size)
    more = length - self._length
    self._state = take(self._state, index_B, more=more)
    self._caches = self._taken(self._caches, index_B, length, self._beam.size)
    self._length, self._rows = length, requests.rows_of(self._batch)

  def _taken(self, caches: Caches, index_B: np.ndarray, length: int, each: int) -> Caches:
    """Caches of some texts with a row for each hypothesis.

    Args:
      caches: with `each` rows for a text: 1, or the size of the beam.
      length: slots.
    """
    size, memory = self._beam.size, caches_lib.num_memory(caches)
    index_BN = index_B[:, None] * each + np.arange(size)[None] % each
    return caches_lib.take_rows(
      caches, index_BN.reshape(-1), length, memory, index_of_memory=index_B
    )

  def _done(self) -> list[tuple[int, list[Hypothesis]]]:
    """Removes the finished texts, and returns their hypotheses."""
    active_B = np.asarray(self._state.active_B)
    done = [(at, row) for at, row in enumerate(self._batch) if row is not None and not active_B[at]]
    if not done:
      return []
    state = jax.device_get(self._state)
    if any(state.broken_B[at] for at, _ in done):
      raise FailedError(requests.NOT_FINITE)
    for at, _ in done:
      self._batch[at] = None
    return [(row.number, self._found(state, at, row)) for at, row in done]

  def _found(self, state: SearchState, at: int, row: Slot) -> list[Hypothesis]:
    """The ended hypotheses of a text."""
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
