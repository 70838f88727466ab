# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a client may ask for: OpenAI's parameters, checked.

A parameter is understood, or refused with its name: none is passed over. Those
of `NEUTRAL` are taken with the value that asks for nothing, as clients send it.
"""

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import numpy as np
import pydantic
import pydantic_core

from gpt_jax import ranges, spec
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.sampler import Sampler, seeds_of
from gpt_jax.decoding.texts import Stream
from gpt_jax.serving.errors import ApiError
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.tokenizer import Tokenizer

# OpenAI's own limits.
STOPS, CHOICES, METADATA = 4, 128, 16

# Text that may begin a stop text is looked through with every token.
STOP_CHARACTERS = 1000
# Of any object in a body; pydantic would list what is wrong with each.
_MOST_NAMES = 64

NEUTRAL: dict[str, tuple[Any, ...]] = {
  'best_of': (1,),
  'echo': (False,),
  'frequency_penalty': (0, 0.0),
  'logit_bias': ({},),
  'logprobs': (False,),
  'modalities': (['text'],),
  'presence_penalty': (0, 0.0),
  'response_format': ({'type': 'text'},),
  'store': (False,),
  'suffix': ('',),
  'tools': ([],),
}


def _within(kind: Any) -> pydantic.AfterValidator:
  """Refuses numbers outside of a range of `ranges`."""
  declared = ranges.declared(kind)

  def check(value: Any) -> Any:
    if problem := declared.problem(value):
      raise ValueError(problem)
    return value

  return pydantic.AfterValidator(check)


def _prompts(value: Any) -> list[Any]:
  """One prompt or several, each a text or ids."""
  several = value if isinstance(value, list) and value else [value]
  if isinstance(value, list) and _are_ids(value):
    several = [value]
  if not all(isinstance(p, str) or _are_ids(p) for p in several):
    raise ValueError(
      'must be a text, a list of texts, a list of token ids or a list of '
      'lists of token ids, and none of the lists empty'
    )
  return several


def _are_ids(value: Any) -> bool:
  return isinstance(value, list) and {*map(type, value)} == {int}


def _content(value: Any) -> str:
  """A text, or OpenAI's list of parts, of which each must be a text."""
  parts = [{'type': 'text', 'text': value}]
  parts = value if isinstance(value, list) else parts
  for part in parts:
    is_text = isinstance(part, dict) and part.get('type') == 'text'
    if not is_text or not isinstance(part.get('text'), str):
      raise ValueError("must be a text, or a list of parts of type 'text'")
  return ''.join(part['text'] for part in parts)


class _Strict(pydantic.BaseModel):
  """No conversions, no names that are not known."""

  model_config = pydantic.ConfigDict(strict=True, extra='forbid')


class StreamOptions(_Strict):
  """How a stream is sent."""

  include_usage: bool = False


class Asked(_Strict):
  """What completions and chat completions share."""

  model: str | None = None
  max_tokens: Annotated[int, _within(ranges.Count)] | None = None
  temperature: Annotated[float, _within(ranges.NotNegative)] = 1.0
  top_p: Annotated[float, _within(ranges.Probability)] = 1.0
  top_k: Annotated[int, _within(ranges.Whole)] = 0
  min_p: Annotated[float, _within(ranges.Probability)] = 0.0
  repetition_penalty: Annotated[float, _within(ranges.Positive)] = 1.0
  n: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] = 1
  stop: Annotated[
    list[
      Annotated[str, pydantic.Field(min_length=1, max_length=STOP_CHARACTERS)]
    ],
    pydantic.Field(max_length=STOPS, fail_fast=True),
    pydantic.BeforeValidator(lambda x: x if isinstance(x, list) else [x]),
  ] = []
  seed: Annotated[int, _within(ranges.Seed)] | None = None
  stream: bool = False
  stream_options: StreamOptions | None = None
  # Whom the request is for: nothing is kept here, so it makes no difference.
  user: str = ''
  metadata: Annotated[dict[str, str], pydantic.Field(max_length=METADATA)] = {}

  @pydantic.model_validator(mode='after')
  def _of_streams(self) -> Self:
    if self.stream_options and not self.stream:
      raise ValueError("stream_options needs 'stream': true")
    return self


class Completion(Asked):
  """The body of a request to /v1/completions."""

  prompt: Annotated[list[str | list[int]], pydantic.PlainValidator(_prompts)]

  @property
  def num_rows(self) -> int:
    """How many continuations it asks for."""
    return len(self.prompt) * self.n

  @property
  def limit(self) -> int | None:
    """The most tokens to draw; OpenAI's default."""
    return self.max_tokens or 16


class Message(_Strict):
  """One turn of a chat; the template says which roles there are."""

  role: Annotated[str, pydantic.Field(min_length=1)]
  content: Annotated[str, pydantic.PlainValidator(_content)]
  name: str | None = None


class Chat(Asked):
  """The body of a request to /v1/chat/completions."""

  messages: Annotated[
    list[Message], pydantic.Field(min_length=1, fail_fast=True)
  ]
  max_completion_tokens: Annotated[int, _within(ranges.Count)] | None = None

  @pydantic.model_validator(mode='after')
  def _one_limit(self) -> Self:
    if self.max_tokens and self.max_completion_tokens:
      raise ValueError('give max_completion_tokens or max_tokens, not both')
    return self

  @property
  def num_rows(self) -> int:
    """How many continuations it asks for."""
    return self.n

  @property
  def limit(self) -> int | None:
    """The most tokens to draw; None: what the context has room for."""
    return self.max_completion_tokens or self.max_tokens


AskedT = TypeVar('AskedT', bound=Asked)


def parse(kind: type[AskedT], body: bytes, *, max_prompts: int) -> AskedT:
  """Reads the body of a request.

  A value is checked no further than to the first fault: a body costs little
  more than its JSON before it is refused.

  Raises:
    ApiError: it is malformed, or asks for what there is not.
  """
  try:
    value = pydantic_core.from_json(body, allow_inf_nan=False)
  except ValueError as e:
    raise ApiError(400, f'the body is no JSON: {e}') from e
  if not isinstance(value, dict):
    raise ApiError(400, 'the body is no JSON object')
  for name, neutral in NEUTRAL.items():
    if any(_same(value.get(name), v) for v in neutral):
      del value[name]
  for name in value:
    if name not in kind.model_fields and value[name] is not None:
      raise _not_supported(name)
  _check_prompts(value.get('prompt'), max_prompts)
  value = _without_null(value)
  try:
    return kind.model_validate(value)
  except pydantic.ValidationError as e:
    first = e.errors(include_url=False, include_input=False)[0]
    field = '.'.join(str(part) for part in first['loc'])
    if first['type'] == 'extra_forbidden':
      raise _not_supported(field) from e
    why = first['msg'].removeprefix('Value error, ')
    if first['type'] == 'missing':
      why = 'is missing'
    said = f'{spec.shown(field)[1:-1]}: {why}' if field else why
    raise ApiError(400, said, param=field or None) from e


def _not_supported(field: str) -> ApiError:
  return ApiError(
    400,
    f'{spec.shown(field)[1:-1]}: is not supported; leave it out',
    param=field,
  )


def _check_prompts(value: Any, most: int) -> None:
  """Checks the number of prompts, before any of them is looked at."""
  several = isinstance(value, list) and value and type(value[0]) is not int
  if several and len(value) > most:
    raise ApiError(
      400,
      f'prompt: {len(value):,} are too many, and this server takes {most:,} '
      'at once; send fewer',
      param='prompt',
    )


def _without_null(value: Any) -> Any:
  """Null stands for a parameter that is not given, as in OpenAI's API."""
  if isinstance(value, dict):
    if len(value) > _MOST_NAMES:
      raise ApiError(
        400, f'the body has an object of {len(value):,} names; send fewer'
      )
    return {k: _without_null(v) for k, v in value.items() if v is not None}
  if isinstance(value, list):
    return [_without_null(v) for v in value]
  return value


def _same(a: Any, b: Any) -> bool:
  """Equal, and of one type: `logprobs: 0` asks for more than False does."""
  return type(a) is type(b) and a == b


# From a request of OpenAI's to rows of the engine.


class Served(NamedTuple):
  """The model as its clients know it.

  Attributes:
    name: what requests call it.
    tokenizer: its own.
    template: turns a chat into a prompt; None: it has no chats.
    context_length: of prompt and continuation together.
    max_tokens: the most that a continuation may ask for.
  """

  name: str
  tokenizer: Tokenizer
  template: ChatTemplate | None
  context_length: int
  max_tokens: int


def plan(served: Served, asked: Completion | Chat) -> tuple[list[Stream], int]:
  """Encodes the prompts of a request.

  Returns:
    Its choices, those of the first prompt, then of the next; and the number of
    tokens of all prompts, each counted once.

  Raises:
    ApiError: a prompt cannot be encoded, or leaves no room for its answer.
  """
  check_name(served, asked.model)
  sampler = Sampler(
    asked.temperature,
    asked.top_k,
    asked.top_p,
    asked.min_p,
    asked.repetition_penalty,
  )
  seed = secrets.randbits(32) if asked.seed is None else asked.seed
  # The choices of one prompt are those of another prompt with that seed.
  seeds = seeds_of(seed, asked.n)
  rows, prompt_tokens = [], 0
  try:
    for ids in _ids(served, asked):
      limit = _room(served, asked, len(ids))
      prompt_tokens += len(ids)
      for own in seeds:
        request = Request(
          ids=ids,
          max_tokens=limit,
          sampler=sampler,
          seed=own,
          stop_ids=served.tokenizer.special.stop_ids,
        )
        rows.append(Stream(served.tokenizer, request, asked.stop))
  except UsageError as e:
    raise ApiError(400, str(e), param=_field(asked)) from e
  return rows, prompt_tokens


def check_name(served: Served, name: str | None) -> None:
  """Checks which model is asked for; None: the one that is here.

  Raises:
    ApiError: another.
  """
  if name not in (None, served.name):
    raise ApiError(
      404,
      f'model {spec.shown(name)} is not served here; this is {served.name!r}',
      param='model',
      code='model_not_found',
    )


def _ids(served: Served, asked: Completion | Chat) -> Iterator[list[int]]:
  """The ids of one prompt after the other, none longer than it may be."""
  tokenizer = served.tokenizer

  def encoded(encode: Callable[[str], np.ndarray], text: str) -> np.ndarray:
    # What does not fit is told from its beginning. The rest of a text changes
    # the tokens near the cut alone, hardly half of all.
    size = 8 * served.context_length
    while size < len(text):
      length = len(encode(text[:size]))
      if length > 2 * served.context_length:
        raise _too_long(served, asked, f'more than {length // 2}')
      size *= 4
    return encode(text)

  if isinstance(asked, Chat):
    if served.template is None:
      raise UsageError(
        'this model has no chat template; send a prompt to /v1/completions'
      )
    messages = [m.model_dump(exclude_none=True) for m in asked.messages]
    encode = functools.partial(encoded, tokenizer.encode_special)
    yield served.template.ids(tokenizer, messages, encode=encode)
    return
  for prompt in asked.prompt:
    if isinstance(prompt, str):
      yield tokenizer.special.prompt(encoded(tokenizer.encode, prompt))
      continue
    for i in prompt[: served.context_length]:
      if not 0 <= i < tokenizer.vocab_size:
        raise UsageError(
          f'token id {i} is none of this model; they are 0 to '
          f'{tokenizer.vocab_size - 1}'
        )
    yield prompt


def _field(asked: Completion | Chat) -> str:
  """The parameter that holds a request's text."""
  return 'messages' if isinstance(asked, Chat) else 'prompt'


def _too_long(
  served: Served, asked: Completion | Chat, length: str, remedy: str = ''
) -> ApiError:
  """The error of a prompt that fills the context."""
  return ApiError(
    400,
    f'the prompt has {length} tokens, and the context holds '
    f'{served.context_length}; shorten it{remedy}',
    param=_field(asked),
    code='context_length_exceeded',
  )


def _room(served: Served, asked: Completion | Chat, length: int) -> int:
  """How many tokens are drawn at most after a prompt of a length."""
  room = served.context_length - length
  if room < 1:
    raise _too_long(served, asked, f'{length}', f' by {1 - room}')
  limit = asked.limit
  if limit is None:
    return min(room, served.max_tokens)
  if limit > served.max_tokens:
    raise ApiError(
      400,
      f'max_tokens: {limit} are too many, this server draws at most '
      f'{served.max_tokens}',
      param='max_tokens',
    )
  if limit > room:
    raise ApiError(
      400,
      f'max_tokens: the prompt has {length} tokens, and the context holds '
      f'{served.context_length}, which is {limit - room} too few for {limit} '
      f'more; ask for {room}',
      param='max_tokens',
      code='context_length_exceeded',
    )
  return limit
