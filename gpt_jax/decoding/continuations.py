# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continuations as text: of any number of prompts, each piece as it comes."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.decoding import requests, sourced
from gpt_jax.decoding import sampler as constraints_lib
from gpt_jax.decoding.beam import Beam, Hypothesis, search
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.sampler import Sampler, never_drawn, seeds_of
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import FailedError, UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

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
    self,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    stop: Sequence[str] = (),
  ):
    """`stop` are the texts before the first of which the continuation ends.

    They are not looked for in the prompt.
    """
    self._tokenizer = tokenizer
    self._stop = stop
    # Tokens are decoded after those before them, whose text is known: a space
    # between two is in neither of them alone.
    self._before = list(prompt_ids)
    self._known = tokenizer.decode(self._before)
    self._new: list[int] = []
    self._num_read = 0  # characters of the new tokens' text
    self._held = ''
    self._stopped = False

  @property
  def stopped(self) -> bool:
    """Whether a stop text was met: no more text comes."""
    return self._stopped

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


# New tokens where nobody says how many, if the context has room for them.
USUAL = 100

# Rows that wait in the engine: it reads prompts of about one length together.
_AHEAD = 64


class Options(NamedTuple):
  """How prompts are continued.

  Attributes:
    max_tokens: drawn at most; None: `USUAL`, or what there is room for.
    sampler: draws them.
    seed: of the draws.
    num_samples: continuations of each prompt.
    stop: texts before which a continuation ends.
    truncate: what happens to a prompt that is too long: 'none' refuses it,
      'left' drops its beginning.
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


class Row(NamedTuple):
  """One continuation: what the engine is asked, and how ids become text."""

  request: Request
  stream: Stream


class Piece(NamedTuple):
  """What a row has got.

  Attributes:
    row: its place among the rows.
    text: what may be shown of it now; may be empty.
    num_tokens: drawn for it so far.
    finish: 'stop', 'length', or None while it goes on.
  """

  row: int
  text: str
  num_tokens: int
  finish: str | None


class Speed:
  """Tokens a second: of all but the first, which waits for its prompt.

  And, once, for compilation.
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
    ids: of the prompt.
    tokenizer: of the model.
    options: how it is continued.
    context_length: of the model.
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


def make_rows(
  ids: Sequence[int],
  tokenizer: Tokenizer,
  options: Options,
  *,
  context_length: int,
  source: Sequence[int] | None = None,
  in_row: bool = False,
) -> list[Row]:
  """The continuations of a prompt that `fitted` returned.

  Of an encoder-decoder the answers to a `source`; then `ids` are what the
  decoder starts with, which is no text. With `in_row` the source is read in the
  row of its answer, before `ids`: see
  `decoding.in_row`.
  """
  shown = ids if source is None else ()
  usual = USUAL if source is None else sourced.most(len(source))
  num_source = 0
  if in_row:
    assert source is not None
    ids, num_source, source = [*source, *ids], len(source), None
  room = context_length - len(ids)
  number = min(options.max_tokens or usual, room)
  return [
    Row(
      Request(
        ids=ids,
        max_tokens=number,
        sampler=options.sampler,
        seed=seed,
        stop_ids=tokenizer.special.stop_ids,
        source=source,
        num_source=num_source,
      ),
      Stream(tokenizer, shown, options.stop),
    )
    for seed in seeds_of(options.seed, options.num_samples)
  ]


def decode(
  engine: Engine,
  asked: Iterable[Row],
  *,
  speed: Speed | None = None,
  stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Piece]:
  """Decodes rows as the engine has room; pieces come as they are made.

  Args:
    engine: with no requests of others.
    asked: read as far as there is room.
    speed: counts the tokens.
    stopping: asked before each step; True ends all rows as they are.

  Raises:
    FailedError: the next token of a row has no scores.
  """
  if speed is not None:
    speed.begin()
  waiting = enumerate(asked)
  running: dict[int, tuple[int, Stream, int]] = {}
  more = True
  try:
    while not stopping():
      while more and engine.num_waiting < _AHEAD:
        number, row = next(waiting, (0, None))
        more = row is not None
        if row is not None:
          running[engine.add(row.request)] = number, row.stream, 0
      if not running:
        return
      tokens = engine.step()
      if speed is not None:
        speed.count(sum(token.id is not None for token in tokens))
      for token in tokens:
        if token.request not in running:
          continue
        if token.finish == requests.FAILED:
          raise FailedError(requests.NOT_FINITE)
        number, stream, count = running.pop(token.request)
        text, finish = '', token.finish
        if token.id is not None:
          count += 1
          text = stream.push(token.id)
        if stream.stopped:
          engine.cancel(token.request)
          finish = 'stop'
        elif finish:
          text += stream.finish()
          finish = 'stop' if stream.stopped else finish
        else:
          running[token.request] = number, stream, count
        yield Piece(number, text, count, finish)
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
  prompts: Sequence[Sequence[int]],
  options: Options,
  *,
  context_length: int,
  sources: Sequence[Sequence[int] | None] | None = None,
  speed: Speed | None = None,
) -> Iterator[tuple[int, list[Continuation]]]:
  """Continues prompts that `fitted` returned, each as if it were the only one.

  See `rows` about `sources`, as many as prompts.

  Yields:
    The place of a prompt whose continuations have all ended, and those.
  """
  each = options.num_samples
  texts: dict[int, list[str]] = {}
  ended: dict[int, dict[int, Continuation]] = {}
  asked = (
    row
    for ids, source in zip(
      prompts, sources or [None] * len(prompts), strict=True
    )
    for row in make_rows(
      ids,
      tokenizer,
      options,
      context_length=context_length,
      source=source,
      in_row=engine.in_row is not None,
    )
  )
  for piece in decode(engine, asked, speed=speed):
    texts.setdefault(piece.row, []).append(piece.text)
    if piece.finish:
      number, sample = divmod(piece.row, each)
      text = ''.join(texts.pop(piece.row))
      samples = ended.setdefault(number, {})
      samples[sample] = Continuation(text, piece.num_tokens, piece.finish)
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
    never_V=never_drawn(tokenizer, model.vocab_size),
    constraints=constraints_lib.constraints_of(tokenizer),
  )
  start = tokenizer.decode(ids)
  found = complete(engine, tokenizer, [ids], options, context_length=length)
  return [start + sample.text for _, samples in found for sample in samples]


# The most probable continuations as text, by beam search.


def complete_by_beam(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompts: Sequence[Sequence[int]],
  options: Options,
  beam: Beam,
  *,
  rows: int,
  sources: Sequence[Sequence[int] | None] | None = None,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Continuation]]]:
  """As `continuations.complete`: the best `num_samples` of each prompt.

  Args:
    model: searches.
    params: its parameters.
    tokenizer: its tokenizer.
    prompts: that `continuations.fitted` returned.
    options: whose sampler, seed and stop texts say nothing.
    beam: how to search.
    rows: texts that are searched at a time.
    sources: of an encoder-decoder, as many as prompts; or of `in_row`.
    in_row: see `Engine`.
    speed: counts a token of each text a step, however many hypotheses it has.
  """
  more: Any = {'rows': rows, 'sources': sources, 'in_row': in_row}
  for number, every in hypotheses(
    *(model, params, tokenizer, prompts, options, beam), **more, speed=speed
  ):
    source = sources[number] if sources else None
    shown = prompts[number] if source is None else ()
    found = []
    for ids, score, finish in every[: options.num_samples]:
      stream = Stream(tokenizer, shown)
      text = ''.join(map(stream.push, ids)) + stream.finish()
      found.append(Continuation(text, len(ids), finish, score))
    yield number, found


def hypotheses(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompts: Sequence[Sequence[int]],
  options: Options,
  beam: Beam,
  *,
  rows: int,
  sources: Sequence[Sequence[int] | None] | None = None,
  in_row: InRow | None = None,
  speed: Speed,
) -> Iterator[tuple[int, list[Hypothesis]]]:
  """As `complete`: all that was found of each prompt, in ids."""
  asked = []
  for ids, source in zip(
    prompts, sources or [None] * len(prompts), strict=True
  ):
    (row,) = make_rows(
      ids,
      tokenizer,
      options._replace(num_samples=1, stop=()),
      context_length=model.context_length,
      source=source,
      in_row=in_row is not None,
    )
    asked.append(row.request)
  speed.begin()
  return search(
    *(model, params, asked, beam),
    rows=rows,
    in_row=in_row,
    never_V=never_drawn(tokenizer, model.vocab_size),
    constraints=constraints_lib.constraints_of(tokenizer),
    count=speed.count,
  )
