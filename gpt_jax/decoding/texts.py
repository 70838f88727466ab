# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From prompts and sources to requests, and from tokens to text.

`TextGenerator` does both for commands and sessions, by the loop `decode`; the
server has a loop on a thread of its own.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from gpt_jax.core.rows import sides
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.beam import Hypothesis, search
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.files import Prompt, SourceEntry
from gpt_jax.decoding.logprobs import TokenLogprobs
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import FAILED, NOT_FINITE, Request, Token
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import BeamSettings, Sampler
from gpt_jax.decoding.speculative import Draft

log = logging.getLogger('gpt_jax')

# From tokens to text, piece by piece, up to a stop text.

# What a tokenizer decodes bytes to that are not (yet) UTF-8.
_UNFINISHED = '\ufffd'
# A character has at most four bytes, so up to three may still become one.
# Decoders write one mark for all of them, or one for each.
_MOST_UNFINISHED = 3


class TextStream:
  """The text of a continuation while its tokens arrive.

  The pieces add up to the decoded prompt and continuation, without the decoded
  prompt. Nothing is shown that a later token may change: bytes of an unfinished
  character, an open run of bytes that is decoded as a whole, or what may be the
  beginning of a stop text.
  """

  def __init__(self, tokenizer: Tokenizer, request: Request, stop: Sequence[str] = ()):
    """The continuation ends before the first of the texts `stop`.

    They are not looked for in the prompt.
    """
    self.request = request
    self._tokenizer = tokenizer
    self._stop = stop
    # Tokens are decoded together with those before them, whose text is known:
    # a space between two tokens belongs to neither alone.
    self._before = list(request.shown)
    self._known = tokenizer.decode(self._before)
    self._new: list[int] = []
    self._num_read = 0  # characters of the new tokens' text
    self._held = ''
    self._stopped = False

  @property
  def stopped(self) -> bool:
    """Whether a stop text was found: no more text comes."""
    return self._stopped

  def take(self, token: Token) -> tuple[str, str | None]:
    """Takes a token of the engine; returns the text to show and the finish.

    The finish is 'stop' at a stop text, of which the engine does not know.

    Raises:
      FailedError: the scores of the next token are NaN or infinite.
    """
    if token.finish == FAILED:
      raise FailedError(NOT_FINITE)
    text = '' if token.id is None else self.push(token.id)
    if token.finish:
      text += self.finish()
    return text, 'stop' if self._stopped else token.finish

  def push(self, token: int) -> str:
    """Takes a token id; returns the text that may be shown now."""
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
    """Returns the rest of the text, once no more tokens come."""
    text = self._tokenizer.decode([*self._before, *self._new])
    self._find_stop(self._beyond(text))
    self._read(self._beyond(text))
    return self._shown(0)

  def _beyond(self, text: str) -> str:
    """The part of `text` beyond the known text.

    The known text may end with marks of bytes that the new tokens complete.
    """
    pairs = zip(text, self._known, strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return text[sum(1 for _ in same) :]

  def _find_stop(self, text: str) -> None:
    """Cuts the text of the new tokens before the first stop text."""
    if self._stopped:
      return
    all_ = self._held + text[self._num_read :]
    ends = [at for s in self._stop if (at := all_.find(s)) >= 0]
    if ends:
      self._stopped, self._held = True, all_[: min(ends)]

  def _read(self, text: str) -> None:
    """Holds the text of the new tokens that no later token changes."""
    if not self._stopped:
      self._held += text[self._num_read :]
      self._num_read = max(self._num_read, len(text))

  def _num_beginning(self) -> int:
    """Length of the longest end of the held text that may begin a stop text."""
    if self._stopped:
      return 0
    longest = max((len(s) - 1 for s in self._stop), default=0)
    for size in range(min(longest, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-size:]) for s in self._stop):
        return size
    return 0

  def _shown(self, num_kept: int) -> str:
    """Releases the held text but its last `num_kept` characters."""
    at = len(self._held) - num_kept
    shown, self._held = self._held[:at], self._held[at:]
    return shown


def _num_unfinished(text: str) -> int:
  """How many marks at the end of a text may still become a character."""
  return min(len(text) - len(text.rstrip(_UNFINISHED)), _MOST_UNFINISHED)


# The default of `max_tokens`, as far as the context has room.
USUAL = 100

# Requests waiting in the engine, to be read with others of similar length.
_AHEAD = 64


class Options(NamedTuple):
  """How texts are generated.

  Attributes:
    max_tokens: the most tokens; None: `USUAL`, or what the context has room
      for.
    sampler: how a token is sampled.
    seed: texts of the same prompt, settings and seed are the same.
    num_samples: texts for each prompt or source.
    stop: texts before which a text ends.
    truncate: 'none' refuses a prompt that is too long, 'left' drops its
      beginning.
  """

  max_tokens: int | None = None
  sampler: Sampler = Sampler()
  seed: int = 0
  num_samples: int = 1
  stop: Sequence[str] = ()
  truncate: Literal['none', 'left'] = 'none'

  def room(self, context_length: int) -> int:
    """Tokens to keep free after a prompt that is cut."""
    if self.max_tokens is not None:
      return self.max_tokens
    return min(USUAL, context_length // 2)


class TextPiece(NamedTuple):
  """New text of one of several continuations.

  Attributes:
    row: the continuation's number.
    text: may be empty.
    tokens: how many were sampled for it.
    finish: 'stop' or 'length' with the last piece, else None.
    scores: log-probabilities of the prompt, then of the token, as far as the
      request asks for them.
  """

  row: int
  text: str
  tokens: int
  finish: str | None
  scores: Sequence[TokenLogprobs] = ()


class Speed:
  """Tokens per second, without the first token of each batch of prompts.

  The first waits for its prompt to be read, and once for compilation.
  """

  def __init__(self):
    """Starts at 0."""
    self.num_tokens = 0
    self._first: float | None = None  # seconds to the first of all tokens
    self._counted, self._seconds = 0, 0.0
    self._since, self._waits = 0.0, True

  def begin(self) -> None:
    """Starts the clock for a batch of prompts."""
    self._since, self._waits = time.monotonic(), True

  def count(self, num_tokens: int) -> None:
    """Counts tokens that have just been sampled."""
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
    """None if there is no token but the first."""
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
  """Fits a prompt into the context: cuts it if `options.truncate` allows.

  A prompt that loses its beginning keeps the special tokens before a text.

  Args:
    where: names the prompt in errors.
    more: remedies besides a shorter prompt; None: --truncate, if it would help.
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
      f'{has}, and the context holds {context_length}, with at least one of '
      f'the answer: {1 - room} too many; {_either("shorten it", *more)}'
    )
  raise UsageError(
    f'--max_tokens={wanted}: {has}, and the context holds {context_length}, '
    f'with the answer; {_either(f"ask for at most {room}", *more)}'
  )


def _either(*remedies: str) -> str:
  *others, last = remedies
  return f'{", ".join(others)}, or {last}' if others else last


# Tokens that an answer may have more than its source by default
# (Vaswani et al., 2017, section 6.1).
MORE_THAN_SOURCE = 50


class SourceFormat(NamedTuple):
  """How a model reads a source and starts its answer.

  Attributes:
    tokenizer: encodes sources.
    special: the special tokens around a source.
    start: ids that an answer starts with.
  """

  tokenizer: Tokenizer
  special: Special
  start: Sequence[int]

  def read(self, ids: Any, room: int) -> tuple[list[int], int]:
    """A source as the model reads it, and how many tokens were cut.

    A source longer than `room` loses its last tokens, as rows of pairs do in
    training; it keeps the special tokens around it.
    """
    kept = max(room - len(sides.source_ids([], self.special)), 0)
    whole = sides.source_ids(ids[:kept], self.special).tolist()
    return whole, max(len(ids) - kept, 0)

  def answer_limit(self, ids: Any) -> int:
    """The default of `max_tokens` for a source."""
    return len(sides.source_ids(ids, self.special)) + MORE_THAN_SOURCE


def warn_of_cuts(cuts: Sequence[int], context_length: int) -> None:
  """Warns of sources that lost tokens: `cuts` has how many, of each source."""
  if number := sum(cut > 0 for cut in cuts):
    log.warning(
      '%d of %d sources do not fit model.context_length=%d and lose their last tokens, up to %d',
      number,
      len(cuts),
      context_length,
      max(cuts),
    )


def source_request(
  ids: Any, decoder: Decoder, sources: SourceFormat, options: Options
) -> tuple[Request, int]:
  """The request for an answer, and how many tokens of the source were cut.

  An encoder-decoder reads the source with its encoder. A model with `in_row`
  reads it before its answer in the same row. Any other decoder reads it as a
  document, and writes the next one. Without `options.max_tokens` the answer
  gets `MORE_THAN_SOURCE`, but at most half of a row that also has its source.

  Args:
    ids: of the source's text.
  """
  special, start = sources.special, [*sources.start]
  length, most = decoder.model.context_length, options.max_tokens
  if decoder.model.num_encoder_layers:
    source, cut = sources.read(ids, length)
    prompt, num_source = start, 0
    if most is None:
      most = sources.answer_limit(ids)
  else:
    before = [] if decoder.in_row else list(special.before(first_scored=True))
    if most is None:
      most = min(sources.answer_limit(ids), length // 2)
    room = length - most - len(start) - len(before)
    if room < 1:
      raise UsageError(
        f'--max_tokens={most}: the context holds {length}, source and answer together; give fewer'
      )
    read, cut = sources.read(ids, room)
    prompt, source = [*before, *read, *start], None
    num_source = len(read) if decoder.in_row else 0
  request = Request(
    ids=prompt,
    max_tokens=min(most, length - len(prompt)),
    sampler=options.sampler,
    seed=options.seed,
    stop_ids=decoder.constraints.stop_ids,
    source=source,
    num_source=num_source,
  )
  return request, cut


def decode(
  engine: Engine,
  streams: Iterable[TextStream],
  *,
  speed: Speed | None = None,
  stopping: Callable[[], bool] = lambda: False,
) -> Iterator[TextPiece]:
  """Decodes requests as the engine has room, and yields their text in pieces.

  Args:
    engine: without other requests.
    streams: of the requests; consumed as far as there is room.
    speed: counts the tokens.
    stopping: called before each step; True ends all texts as they are.

  Raises:
    FailedError: the scores of a request are NaN or infinite.
  """
  if speed is not None:
    speed.begin()
  waiting = enumerate(streams)
  running: dict[int, tuple[int, TextStream]] = {}
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
        yield TextPiece(number, text, int(token.id is not None), finish)
  finally:
    for request in running:
      engine.cancel(request)


class Continuation(NamedTuple):
  """A generated text.

  Attributes:
    text: without the prompt.
    tokens: how many were sampled.
    finish: 'stop' or 'length'.
    score: of beam search, or of a reward model; None if there is neither.
  """

  text: str
  tokens: int
  finish: str
  score: float | None = None

  @property
  def fields(self) -> dict[str, Any]:
    """The fields of a line of results."""
    return {k: v for k, v in self._asdict().items() if v is not None}


class TextGenerator:
  """Continues prompts or answers sources, by sampling or beam search.

  Attributes:
    engine: samples.
    speed: of all that was generated.
  """

  def __init__(
    self,
    decoder: Decoder,
    tokenizer: Tokenizer,
    options: Options,
    *,
    rows: int,
    sources: SourceFormat | None = None,
    beam: BeamSettings | None = None,
    draft: Draft | None = None,
    keep: int = 0,
  ):
    """Takes a model.

    Args:
      decoder: of `Trained.decoder`.
      options: how texts are generated.
      rows: samples at a time; with a beam, texts.
      sources: how it reads sources; None: it is given prompts alone.
      beam: how to search; None: tokens are sampled.
      draft: proposes tokens.
      keep: see `Engine`.
    """
    self.decoder, self.tokenizer = decoder.ready(), tokenizer
    self.options, self.speed = options, Speed()
    self._sources, self._beam, self._rows = sources, beam, rows
    self.engine = Engine(self.decoder, slots=rows, draft=draft, keep=keep)

  @property
  def context_length(self) -> int:
    """The most tokens of prompt and continuation together."""
    return self.decoder.model.context_length

  def requests(
    self, texts: Sequence[Prompt | SourceEntry], template: ChatTemplate | None = None
  ) -> list[Request]:
    """The requests for texts; warns of sources that do not fit.

    Args:
      texts: prompts or sources.
      template: formats the messages of prompts; None: they have texts.

    Returns:
      A request for each text, for `complete` and `stream`.

    Raises:
      UsageError: a prompt exceeds the context, or is no UTF-8.
    """
    pairs = [self.request(text, template) for text in texts]
    warn_of_cuts([cut for _, cut in pairs], self.context_length)
    return [request for request, _ in pairs]

  def request(
    self, text: Prompt | SourceEntry, template: ChatTemplate | None = None
  ) -> tuple[Request, int]:
    """The request for a text, and how many tokens of it were cut."""
    if isinstance(text, Prompt):
      ids = text.ids(self.tokenizer, template)
      return self.prompt_request(self._fitted(ids, text.where)), 0
    assert self._sources is not None
    if self.decoder.model.num_encoder_layers:
      self._fitted(self._sources.start, 'what the decoder starts with')
    ids = text.encoded(self._sources.tokenizer)
    return source_request(ids, self.decoder, self._sources, self.options)

  def _fitted(self, ids: Sequence[int], where: str) -> list[int]:
    return fitted(
      ids, self.tokenizer, self.options, context_length=self.context_length, where=where
    )

  def prompt_request(self, ids: list[int], seed: int | None = None) -> Request:
    """The request for a prompt that `fitted` returned."""
    most = self.options.max_tokens or USUAL
    return Request(
      ids=ids,
      max_tokens=min(most, self.context_length - len(ids)),
      sampler=self.options.sampler,
      seed=self.options.seed if seed is None else seed,
      stop_ids=self.tokenizer.special.stop_ids,
    )

  def complete(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Continuation]]]:
    """Generates texts, each as if it were the only one.

    Args:
      requests: of `requests`.

    Yields:
      The number of a request that is done, and its `num_samples` texts.

    Raises:
      FailedError: the scores of a token are NaN or infinite.
    """
    each = self.options.num_samples
    if self._beam is not None:
      for number, hypotheses in self.search(requests):
        found = []
        for ids, score, finish in hypotheses[:each]:
          stream = TextStream(self.tokenizer, requests[number])
          text = ''.join(map(stream.push, ids)) + stream.finish()
          found.append(Continuation(text, len(ids), finish, score))
        yield number, found
      return
    pieces: dict[int, list[TextPiece]] = {}
    ended: dict[int, dict[int, Continuation]] = {}
    seeds = seeds_of(self.options.seed, each)
    streams = (
      TextStream(self.tokenizer, request._replace(seed=seed), self.options.stop)
      for request in requests
      for seed in seeds
    )
    for piece in decode(self.engine, streams, speed=self.speed):
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

  def search(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """All hypotheses of each request, in ids; its sampler and seed are ignored.

    The speed counts one token of each text a step, whatever the beam's size.
    """
    assert self._beam is not None
    self.speed.begin()
    return search(self.decoder, requests, self._beam, rows=self._rows, count=self.speed.count)

  def stream(self, request: Request, stopping: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yields one text in pieces as it is sampled.

    Args:
      request: of `requests`.
      stopping: called before each step; True ends the text as it is.

    Yields:
      The new text, maybe ''.

    Raises:
      FailedError: the scores of a token are NaN or infinite.
    """
    stream = TextStream(self.tokenizer, request, self.options.stop)
    for piece in decode(self.engine, [stream], speed=self.speed, stopping=stopping):
      yield piece.text
