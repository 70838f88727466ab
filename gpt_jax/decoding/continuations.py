# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continuations as text: of any number of prompts, each piece as it comes."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.decoding import requests, sourced
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.sampler import Sampler, never_drawn, seeds_of
from gpt_jax.decoding.text import Stream
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import FailedError, UsageError

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


def rows(
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
    for row in rows(
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
  """Returns a prompt with each of its continuations.

  Raises:
    UsageError: the prompt, or prompt and continuation, exceed the context.
  """
  length = model.context_length
  ids = tokenizer.special.prompt(tokenizer.encode(prompt))
  ids = fitted(ids, tokenizer, options, context_length=length)
  engine = Engine(
    *(model, params),
    slots=options.num_samples,
    never_V=never_drawn(tokenizer, model.vocab_size),
    constraints=constraints_lib.of(tokenizer),
  )
  start = tokenizer.decode(ids)
  found = complete(engine, tokenizer, [ids], options, context_length=length)
  return [start + sample.text for _, samples in found for sample in samples]
