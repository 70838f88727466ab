# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From prompts to requests, and from drawn tokens to text.

The one loop over an `Engine` is `decode`: commands and sessions read its
pieces, the server has a loop of its own thread.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.decoding.beam import Beam, Hypothesis, search
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.requests import FAILED, NOT_FINITE, Request, Token
from gpt_jax.decoding.sampler import Sampler, limits, seeds_of
from gpt_jax.nn.transformer import Transformer
from gpt_jax.rows import sides
from gpt_jax.spec import FailedError, UsageError
from gpt_jax.tokenizers.special import Special
from gpt_jax.tokenizers.tokenizer import Tokenizer

log = logging.getLogger('gpt_jax')

# From tokens to text as it is shown: piece by piece, ended by stop texts.


# What stands for bytes that are not UTF-8, or not yet.
_UNFINISHED = '\ufffd'
# A character has at most four bytes, so three may still become one. Decoders
# write one mark for all of them, or one for each.
_MOST_UNFINISHED = 3


class Stream:
  """The text of a continuation while its tokens arrive.

  All pieces together are what the tokenizer makes of prompt and continuation
  at once, without what it makes of the prompt. Nothing is shown that a later
  token would change: neither bytes of an unfinished character, nor a run of
  bytes that is decoded as a whole and may go on, nor what may be the beginning
  of a stop text.
  """

  def __init__(
    self, tokenizer: Tokenizer, request: Request, stop: Sequence[str] = ()
  ):
    """`stop` are the texts before the first of which the continuation ends.

    They are not looked for in the prompt.
    """
    self.request = request
    self._tokenizer = tokenizer
    self._stop = stop
    # Tokens are decoded after those before them, whose text is known: a space
    # between two is in neither of them alone.
    self._before = list(request.shown)
    self._known = tokenizer.decode(self._before)
    self._new: list[int] = []
    self._num_read = 0  # characters of the new tokens' text
    self._held = ''
    self._stopped = False

  @property
  def stopped(self) -> bool:
    """Whether a stop text was met: no more text comes."""
    return self._stopped

  def take(self, token: Token) -> tuple[str, str | None]:
    """Takes what the engine gives: the text to show now, and how it ended.

    Where it ended at a stop text, the engine does not know yet.

    Raises:
      FailedError: the next token has no scores.
    """
    if token.finish == FAILED:
      raise FailedError(NOT_FINITE)
    text = '' if token.id is None else self.push(token.id)
    if token.finish:
      text += self.finish()
    return text, 'stop' if self._stopped else token.finish

  def push(self, token: int) -> str:
    """Takes a token; returns the text that may be shown now."""
    self._new.append(int(token))
    ids = [*self._before, *self._new]
    text = self._tokenizer.decode(ids)
    num_closed = len(ids)
    while num_closed and ids[num_closed - 1] in self._tokenizer.run_ids:
      num_closed -= 1
    closed = num_closed == len(ids)
    final = text if closed else self._tokenizer.decode(ids[:num_closed])
    unfinished = _num_unfinished(final)
    self._find_stop(self._beyond(text[: len(text) - _num_unfinished(text)]))
    self._read(self._beyond(final[: len(final) - unfinished]))
    if closed and not unfinished and self._beyond(text):
      self._before, self._new, self._num_read = self._new, [], 0
      self._known = self._tokenizer.decode(self._before)
    return self._shown(self._num_beginning())

  def finish(self) -> str:
    """Returns the rest of the text, as no more tokens come."""
    text = self._tokenizer.decode([*self._before, *self._new])
    self._find_stop(self._beyond(text))
    self._read(self._beyond(text))
    return self._shown(0)

  def _beyond(self, text: str) -> str:
    """The text of the new tokens: what is not known yet.

    The known text may end with marks of bytes that the new tokens complete.
    """
    pairs = zip(text, self._known, strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return text[sum(1 for _ in same) :]

  def _find_stop(self, text: str) -> None:
    """Ends all before the first stop text in that of the new tokens."""
    if self._stopped:
      return
    all_ = self._held + text[self._num_read :]
    ends = [at for s in self._stop if (at := all_.find(s)) >= 0]
    if ends:
      self._stopped, self._held = True, all_[: min(ends)]

  def _read(self, text: str) -> None:
    """Takes the text of the new tokens, which no later one changes."""
    if not self._stopped:
      self._held += text[self._num_read :]
      self._num_read = max(self._num_read, len(text))

  def _num_beginning(self) -> int:
    """Length of the longest end of the held text that may begin a stop."""
    if self._stopped:
      return 0
    longest = max((len(s) - 1 for s in self._stop), default=0)
    for size in range(min(longest, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-size:]) for s in self._stop):
        return size
    return 0

  def _shown(self, num_kept: int) -> str:
    """All of the held text but the end."""
    at = len(self._held) - num_kept
    shown, self._held = self._held[:at], self._held[at:]
    return shown


def _num_unfinished(text: str) -> int:
  """How many marks at the end may still become a character."""
  return min(len(text) - len(text.rstrip(_UNFINISHED)), _MOST_UNFINISHED)


# The default of `max_tokens`, if the context has room for it.
USUAL = 100

# Requests that wait in the engine, to be read with others of similar length.
_AHEAD = 64


class Options(NamedTuple):
  """How prompts are continued.

  Attributes:
    max_tokens: drawn at most; None: `USUAL`, or what there is room for.
    sampler: draws them.
    seed: of the draws.
    num_samples: continuations of each prompt.
    stop: texts before which a continuation ends.
    truncate: 'none' refuses a prompt that is too long, 'left' drops its
      beginning.
  """

  max_tokens: int | None = None
  sampler: Sampler = Sampler()
  seed: int = 0
  num_samples: int = 1
  stop: Sequence[str] = ()
  truncate: str = 'none'

  def room(self, context_length: int) -> int:
    """Tokens that are kept free behind a prompt that is cut."""
    if self.max_tokens is not None:
      return self.max_tokens
    return min(USUAL, context_length // 2)


class Piece(NamedTuple):
  """New text of one of several continuations.

  Attributes:
    row: its place among them.
    text: may be empty.
    tokens: how many were drawn for it.
    finish: 'stop', 'length', or None while it goes on.
  """

  row: int
  text: str
  tokens: int
  finish: str | None


class Speed:
  """Tokens a second, without the first token of each batch of prompts.

  That one waits for its prompt to be read, and once for compilation.
  """

  def __init__(self):
    """Has counted nothing."""
    self.num_tokens = 0
    self._first: float | None = None  # seconds to the first of all tokens
    self._counted, self._seconds = 0, 0.0
    self._since, self._waits = 0.0, True

  def begin(self) -> None:
    """Starts the clock, for other prompts."""
    self._since, self._waits = time.monotonic(), True

  def count(self, num_tokens: int) -> None:
    """Counts tokens that have just come."""
    now = time.monotonic()
    passed, self._since = now - self._since, now
    self.num_tokens += num_tokens
    if not self._waits:
      self._counted += num_tokens
      self._seconds += passed
    elif self._first is None:
      self._first = passed
    self._waits = False

  @property
  def tokens_per_second(self) -> float | None:
    """None where there is no token but the first."""
    if not self._counted or self._seconds <= 0:
      return None
    return self._counted / self._seconds

  def __str__(self) -> str:
    text = f'{self.num_tokens:,} tokens'
    if self._first is not None:
      text += f', the first after {self._first:.2f} s'
    if self.tokens_per_second is not None:
      text += f', then {self.tokens_per_second:,.1f} a second'
    return text


def fitted(
  ids: Sequence[int],
  tokenizer: Tokenizer,
  options: Options,
  *,
  context_length: int,
  where: str = '--prompt',
  more: Sequence[str] | None = None,
) -> list[int]:
  """The prompt as it is given to the model: cut, where that is asked for.

  A prompt that loses its beginning keeps what stands before a text.

  Args:
    options: how it is continued.
    where: names the prompt in errors.
    more: what helps besides a shorter prompt; None: the flag, where it does.
  """
  room = context_length - len(ids)
  wanted = 1 if options.max_tokens is None else options.max_tokens
  if room >= wanted:
    return list(ids)
  start = tokenizer.special.prompt_start
  kept = context_length - options.room(context_length) - len(start)
  if options.truncate == 'left' and kept > 0:
    return [*start, *ids[len(ids) - kept :]]
  if more is None:
    cuts = options.truncate == 'none' and wanted < context_length
    more = ['give --truncate=left'] * cuts
  has = f'{where} has {len(ids)} token' + 's' * (len(ids) != 1)
  if room < 1:
    raise UsageError(
      f'{has}, and the context holds {context_length}, with one of the answer '
      f'at least: {1 - room} too many; {_either("shorten it", *more)}'
    )
  raise UsageError(
    f'--max_tokens={wanted}: {has}, and the context holds {context_length}, '
    f'with the answer; {_either(f"ask for at most {room}", *more)}'
  )


def _either(*remedies: str) -> str:
  *others, last = remedies
  return f'{", ".join(others)}, or {last}' if others else last


# Tokens that an answer may have more than its source, where nothing says so
# (Vaswani et al., 2017, section 6.1).
MORE_THAN_SOURCE = 50


def read_source(ids: Any, special: Special, room: int) -> tuple[list[int], int]:
  """A source as a model is given it, and how many tokens were cut.

  What does not fit into `room` loses its last tokens, as rows of pairs do in
  training; it keeps what stands before and after a source.
  """
  kept = max(room - len(sides.source_ids([], special)), 0)
  whole = sides.source_ids(ids[:kept], special).tolist()
  return whole, max(len(ids) - kept, 0)


def answer_limit(num_tokens: int) -> int:
  """The default of `max_tokens` for a source of so many tokens."""
  return num_tokens + MORE_THAN_SOURCE


def warn_of_cuts(cuts: Sequence[int], context_length: int) -> None:
  """Warns of sources that lost some tokens: `cuts` has how many, of each."""
  if number := sum(cut > 0 for cut in cuts):
    log.warning(
      '%d of %d sources do not fit model.context_length=%d and lose their last '
      'tokens, up to %d',
      *(number, len(cuts), context_length, max(cuts)),
    )


def ask(
  ids: Sequence[int],
  tokenizer: Tokenizer,
  options: Options,
  *,
  context_length: int,
  source: Sequence[int] | None = None,
  in_row: bool = False,
) -> Request:
  """What the engine is asked for a prompt that `fitted` returned.

  Of an encoder-decoder for a `source`; then `ids` are what the decoder starts
  with, which is no text. With `in_row` the source is read in the row of its
  answer, before `ids`: see `decoding.in_row`.
  """
  usual = USUAL if source is None else answer_limit(len(source))
  num_source = 0
  if in_row:
    assert source is not None
    ids, num_source, source = [*source, *ids], len(source), None
  return Request(
    ids=ids,
    max_tokens=min(options.max_tokens or usual, context_length - len(ids)),
    sampler=options.sampler,
    seed=options.seed,
    stop_ids=tokenizer.special.stop_ids,
    source=source,
    num_source=num_source,
  )


def decode(
  engine: Engine,
  streams: Iterable[Stream],
  *,
  speed: Speed | None = None,
  stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Piece]:
  """Decodes requests as the engine has room; pieces come as they are made.

  Args:
    engine: with no requests of others.
    streams: of the requests; read as far as there is room.
    speed: counts the tokens.
    stopping: asked before each step; True ends all as they are.

  Raises:
    FailedError: the next token of one has no scores.
  """
  if speed is not None:
    speed.begin()
  waiting = enumerate(streams)
  running: dict[int, tuple[int, Stream]] = {}
  more = True
  try:
    while not stopping():
      while more and engine.num_waiting < _AHEAD:
        number, stream = next(waiting, (0, None))
        more = stream is not None
        if stream is not None:
          running[engine.add(stream.request)] = number, stream
      if not running:
        return
      tokens = engine.step()
      if speed is not None:
        speed.count(sum(token.id is not None for token in tokens))
      for token in tokens:
        if token.request not in running:
          continue
        number, stream = running[token.request]
        text, finish = stream.take(token)
        if finish:
          del running[token.request]
          engine.cancel(token.request)
        yield Piece(number, text, int(token.id is not None), finish)
  finally:
    for request in running:
      engine.cancel(request)


class Continuation(NamedTuple):
  """A text that has ended.

  Attributes:
    text: what follows the prompt.
    tokens: how many were drawn.
    finish: 'stop' or 'length'.
    score: of a hypothesis of beam search; None: it was drawn.
  """

  text: str
  tokens: int
  finish: str
  score: float | None = None

  @property
  def fields(self) -> dict[str, Any]:
    """As a file of results has it."""
    return {k: v for k, v in self._asdict().items() if v is not None}


def complete(
  engine: Engine,
  tokenizer: Tokenizer,
  requests: Sequence[Request],
  options: Options,
  *,
  speed: Speed | None = None,
) -> Iterator[tuple[int, list[Continuation]]]:
  """Continues prompts, each as if it were the only one.

  Yields:
    The place of a request whose `num_samples` have all ended, and those.
  """
  each = options.num_samples
  pieces: dict[int, list[Piece]] = {}
  ended: dict[int, dict[int, Continuation]] = {}
  seeds = seeds_of(options.seed, each)
  streams = (
    Stream(tokenizer, request._replace(seed=seed), options.stop)
    for request in requests
    for seed in seeds
  )
  for piece in decode(engine, streams, speed=speed):
    pieces.setdefault(piece.row, []).append(piece)
    if piece.finish:
      number, sample = divmod(piece.row, each)
      own = pieces.pop(piece.row)
      samples = ended.setdefault(number, {})
      samples[sample] = Continuation(
        ''.join(x.text for x in own), sum(x.tokens for x in own), piece.finish
      )
      if len(samples) == each:
        yield number, [samples[i] for i in range(each)]
        del ended[number]


def continue_prompt(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompt: str,
  options: Options,
) -> list[str]:
  """Returns a prompt with each of its continuations."""
  length = model.context_length
  ids = tokenizer.special.prompt(tokenizer.encode(prompt))
  ids = fitted(ids, tokenizer, options, context_length=length)
  engine = Engine(
    *(model, params),
    slots=options.num_samples,
    **limits(tokenizer, model.vocab_size),
  )
  start = tokenizer.decode(ids)
  request = ask(ids, tokenizer, options, context_length=length)
  ((_, samples),) = complete(engine, tokenizer, [request], options)
  return [start + sample.text for sample in samples]


def complete_by_beam(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  requests: Sequence[Request],
  beam: Beam,
  *,
  num_samples: int,
  rows: int,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Continuation]]]:
  """As `complete`, by beam search: the best `num_samples` of each prompt.

  Args:
    requests: whose samplers and seeds say nothing.
    beam: how to search.
    num_samples: at most `beam.size`.
    rows: texts that are searched at a time.
    speed: counts a token of each text a step, however many hypotheses it has.
  """
  for number, every in hypotheses(
    *(model, params, tokenizer, requests, beam),
    rows=rows,
    in_row=in_row,
    speed=speed,
  ):
    found = []
    for ids, score, finish in every[:num_samples]:
      stream = Stream(tokenizer, requests[number])
      text = ''.join(map(stream.push, ids)) + stream.finish()
      found.append(Continuation(text, len(ids), finish, score))
    yield number, found


def hypotheses(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  requests: Sequence[Request],
  beam: Beam,
  *,
  rows: int,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Hypothesis]]]:
  """As `complete_by_beam`: all that was found of each prompt, in ids."""
  speed.begin()
  return search(
    *(model, params, requests, beam),
    rows=rows,
    in_row=in_row,
    count=speed.count,
    **limits(tokenizer, model.vocab_size),
  )
