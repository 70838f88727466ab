# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parses requests with OpenAI's parameters, and encodes their prompts.

A parameter is supported or refused by name: none is ignored. Those of `NEUTRAL`
are accepted with a value that has no effect, which some clients send.
"""

import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import pydantic
import pydantic_core

from gpt_jax.core import ranges, spec
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.logprobs import NUM_TOP
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.texts import TextStream
from gpt_jax.serving.errors import ApiError

# OpenAI's own limits.
STOPS, CHOICES, METADATA = 4, 128, 16

# A possible beginning of a stop text is searched with every token.
STOP_CHARACTERS = 1000
# The most names of an object in a body: pydantic lists the errors of each.
_MOST_NAMES = 64

# OpenAI's defaults, which clients send, and values that ask for no more.
NEUTRAL: dict[str, tuple[Any, ...]] = {
  'echo': (False,),
  'frequency_penalty': (0, 0.0),
  'function_call': ('none', 'auto'),
  'functions': ([],),
  'logit_bias': ({},),
  'logprobs': (False,),
  'modalities': (['text'],),
  'parallel_tool_calls': (True, False),
  'presence_penalty': (0, 0.0),
  'prompt_cache_retention': ('in_memory', 'in-memory'),
  'reasoning_effort': ('none', 'medium'),
  'response_format': ({'type': 'text'},),
  'service_tier': ('auto', 'default'),
  'store': (False,),
  'suffix': ('',),
  'tool_choice': ('none', 'auto'),
  'tools': ([],),
  'top_logprobs': (0,),
  'verbosity': ('medium',),
}
# Of an answer that is sent back as a message.
NEUTRAL_OF_MESSAGE: dict[str, tuple[Any, ...]] = {'annotations': ([],), 'tool_calls': ([],)}


def _without_neutral(value: Any, neutral: dict[str, tuple[Any, ...]]) -> Any:
  """Drops what asks for nothing from an object."""
  if not isinstance(value, dict):
    return value
  # Of the same type: `logprobs: 0` is not False.
  return {
    name: x
    for name, x in value.items()
    if not any(type(x) is type(v) and x == v for v in neutral.get(name, ()))
  }


def _within(kind: Any) -> pydantic.AfterValidator:
  """Refuses numbers outside a range of `ranges`."""
  declared = ranges.declared(kind)

  def check(value: Any) -> Any:
    if problem := declared.problem(value):
      raise ValueError(problem)
    return value

  return pydantic.AfterValidator(check)


def _prompts(value: Any) -> list[Any]:
  """One prompt or several; each a text or ids."""
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
  """A text, or OpenAI's list of parts, each of which must be a text."""
  parts = [{'type': 'text', 'text': value}]
  parts = value if isinstance(value, list) else parts
  for part in parts:
    is_text = isinstance(part, dict) and part.get('type') == 'text'
    if not is_text or not isinstance(part.get('text'), str):
      raise ValueError("must be a text, or a list of parts of type 'text'")
  return ''.join(part['text'] for part in parts)


class _Strict(pydantic.BaseModel):
  """Without conversions and unknown names."""

  model_config = pydantic.ConfigDict(strict=True, extra='forbid')


class StreamOptions(_Strict):
  """Options of a stream."""

  include_usage: bool = False


class Body(_Strict):
  """What completions and chat completions share."""

  model: str | None = None
  max_tokens: Annotated[int, _within(ranges.Count)] | None = None
  temperature: Annotated[float, _within(ranges.NotNegative)] = 1.0
  top_p: Annotated[float, _within(ranges.Probability)] = 1.0
  top_k: Annotated[int, _within(ranges.Whole)] = 0
  min_p: Annotated[float, _within(ranges.Probability)] = 0.0
  repetition_penalty: Annotated[float, _within(ranges.Positive)] = 1.0
  n: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] = 1
  best_of: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] | None = None
  stop: Annotated[
    list[Annotated[str, pydantic.Field(min_length=1, max_length=STOP_CHARACTERS)]],
    pydantic.Field(max_length=STOPS, fail_fast=True),
    pydantic.BeforeValidator(lambda x: x if isinstance(x, list) else [x]),
  ] = []
  # Of 64 bits, signed or not; the engine's have 32.
  seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**64)] | None = None
  stream: bool = False
  stream_options: StreamOptions | None = None
  # Accepted without effect: nothing is stored here.
  user: str = ''
  safety_identifier: str = ''
  prompt_cache_key: str = ''
  metadata: Annotated[dict[str, str], pydantic.Field(max_length=METADATA)] = {}

  @pydantic.model_validator(mode='after')
  def _of_numbers(self) -> Self:
    if self.best_of is not None and self.best_of < self.n:
      raise ValueError(f'best_of must be at least n, which is {self.n}')
    return self

  @pydantic.model_validator(mode='after')
  def _of_streams(self) -> Self:
    if self.stream_options and not self.stream:
      raise ValueError("stream_options needs 'stream': true")
    return self


class Completion(Body):
  """The body of a request to /v1/completions."""

  prompt: Annotated[list[str | list[int]], pydantic.PlainValidator(_prompts)]
  max_tokens: Annotated[int, _within(ranges.Whole)] | None = None
  echo: bool = False
  usual: ClassVar[int | None] = 16  # OpenAI's default of max_tokens
  logprobs: Annotated[int, pydantic.Field(ge=0, le=NUM_TOP)] | None = None

  @pydantic.model_validator(mode='after')
  def _some_text(self) -> Self:
    if self.max_tokens == 0 and not self.echo:
      raise ValueError("max_tokens must be at least 1 without 'echo': true")
    return self

  @property
  def num_prompts(self) -> int:
    """The number of prompts."""
    return len(self.prompt)

  @property
  def limit(self) -> int | None:
    """The most tokens to sample; None: `usual`, or as the context has room."""
    return self.max_tokens

  @property
  def num_top(self) -> int | None:
    """Alternatives of each token; None: no log-probabilities."""
    return self.logprobs


class Message(_Strict):
  """A turn of a chat; the template knows the roles."""

  role: Annotated[str, pydantic.Field(min_length=1)]
  content: Annotated[str, pydantic.PlainValidator(_content)]
  name: str | None = None

  @pydantic.model_validator(mode='before')
  @classmethod
  def _as_sent_back(cls, value: Any) -> Any:
    return _without_neutral(value, NEUTRAL_OF_MESSAGE)


class ChatRequest(Body):
  """The body of a request to /v1/chat/completions."""

  messages: Annotated[list[Message], pydantic.Field(min_length=1, fail_fast=True)]
  max_completion_tokens: Annotated[int, _within(ranges.Count)] | None = None
  logprobs: bool = False
  top_logprobs: Annotated[int, pydantic.Field(ge=0, le=NUM_TOP)] | None = None
  echo: ClassVar[bool] = False
  usual: ClassVar[int | None] = None

  @pydantic.model_validator(mode='after')
  def _one_limit(self) -> Self:
    if self.max_tokens and self.max_completion_tokens:
      raise ValueError('give max_completion_tokens or max_tokens, not both')
    if self.top_logprobs is not None and not self.logprobs:
      raise ValueError("top_logprobs needs 'logprobs': true")
    return self

  @property
  def num_prompts(self) -> int:
    """The number of prompts."""
    return 1

  @property
  def limit(self) -> int | None:
    """The most tokens to sample; None: as the context has room."""
    return self.max_completion_tokens or self.max_tokens

  @property
  def num_top(self) -> int | None:
    """Alternatives of each token; None: no log-probabilities."""
    return (self.top_logprobs or 0) if self.logprobs else None


BodyT = TypeVar('BodyT', bound=Body)


def parse(kind: type[BodyT], body: bytes, *, max_prompts: int) -> BodyT:
  """Parses the body of a request.

  Checks stop at the first fault, so that refusing a body costs little more than
  parsing its JSON.

  Raises:
    ApiError: the body is malformed or has unsupported parameters.
  """
  try:
    value = pydantic_core.from_json(body, allow_inf_nan=False)
  except ValueError as e:
    raise ApiError(400, f'the body is not JSON: {e}') from e
  if not isinstance(value, dict):
    raise ApiError(400, 'the body is not a JSON object')
  value = _without_neutral(value, NEUTRAL)
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
  return ApiError(400, f'{spec.shown(field)[1:-1]}: is not supported; leave it out', param=field)


def _check_prompts(value: Any, most: int) -> None:
  """Checks the number of prompts before their contents."""
  several = isinstance(value, list) and value and type(value[0]) is not int
  if several and len(value) > most:
    raise ApiError(
      400,
      f'prompt: {len(value):,} are too many, and this server takes {most:,} at once; send fewer',
      param='prompt',
    )


def _without_null(value: Any) -> Any:
  """Drops nulls: as in OpenAI's API they stand for missing parameters."""
  if isinstance(value, dict):
    if len(value) > _MOST_NAMES:
      raise ApiError(400, f'the body has an object of {len(value):,} names; send fewer')
    return {k: _without_null(v) for k, v in value.items() if v is not None}
  if isinstance(value, list):
    return [_without_null(v) for v in value]
  return value


# From bodies to requests of the engine.


class ServedModel(NamedTuple):
  """The served model.

  Attributes:
    name: in requests.
    template: turns a chat into a prompt; None: there are no chats.
    context_length: of prompt and continuation together.
    max_tokens: the most tokens that a request may ask for.
    best_of: continuations of a prompt, of which the best are the choices,
      unless a request says otherwise.
    rank: orders texts that continue a prompt, which is a text or the messages
      of a chat: their numbers and scores, the best first. None: there is no
      reward model.
  """

  name: str
  tokenizer: Tokenizer
  template: ChatTemplate | None
  context_length: int
  max_tokens: int
  best_of: int = 1
  rank: Callable[[Any, Sequence[str]], list[tuple[int, float]]] | None = None


def num_candidates(served: ServedModel, body: Body) -> int:
  """How many continuations of each prompt are sampled; the best n are kept."""
  each = max(body.best_of or served.best_of, body.n)
  if each > body.n and served.rank is None:
    raise ApiError(
      400,
      f'best_of: {each} of n={body.n}: this server has no reward model to '
      'choose with; leave it out',
      param='best_of',
    )
  return each


def contents(served: ServedModel, body: Completion | ChatRequest) -> list[Any]:
  """The prompts as a reward model reads them: texts, or messages."""
  if isinstance(body, ChatRequest):
    return [[m.model_dump(exclude_none=True) for m in body.messages]]
  decode = served.tokenizer.decode
  return [x if isinstance(x, str) else decode(x) for x in body.prompt]


def plan(served: ServedModel, body: Completion | ChatRequest) -> tuple[list[TextStream], int]:
  """Encodes the prompts of a request.

  Returns:
    Its continuations, prompt by prompt; and the number of tokens of all
    prompts, each counted once.

  Raises:
    ApiError: a prompt cannot be encoded, or leaves no room for its answer.
  """
  check_name(served, body.model)
  sampler = Sampler(body.temperature, body.top_k, body.top_p, body.min_p, body.repetition_penalty)
  seed = secrets.randbits(32) if body.seed is None else body.seed % 2**32
  # Each prompt has the same seeds, whatever other prompts there are.
  seeds = seeds_of(seed, num_candidates(served, body))
  rows, prompt_tokens = [], 0
  try:
    for ids in _ids(served, body):
      limit = _room(served, body, len(ids))
      prompt_tokens += len(ids)
      for own in seeds:
        request = Request(
          ids=ids,
          max_tokens=limit,
          sampler=sampler,
          seed=own,
          stop_ids=served.tokenizer.special.stop_ids,
          num_top=body.num_top,
          scores_prompt=body.echo and body.num_top is not None,
        )
        rows.append(TextStream(served.tokenizer, request, body.stop))
  except UsageError as e:
    raise ApiError(400, str(e), param=_field(body)) from e
  return rows, prompt_tokens


def check_name(served: ServedModel, name: str | None) -> None:
  """Raises an ApiError if `name` is another model; None is this one."""
  if name not in (None, served.name):
    raise ApiError(
      404,
      f'model {spec.shown(name)} is not served here; this is {served.name!r}',
      param='model',
      code='model_not_found',
    )


def _ids(served: ServedModel, body: Completion | ChatRequest) -> Iterator[list[int]]:
  """Yields the ids of the prompts; refuses those that are far too long."""
  tokenizer = served.tokenizer

  def encoded(encode: Callable[[str], np.ndarray], text: str) -> np.ndarray:
    # Encodes growing beginnings of a text, to refuse one that does not fit
    # early. The rest of it changes only tokens near the cut, never half.
    size = 8 * served.context_length
    while size < len(text):
      length = len(encode(text[:size]))
      if length > 2 * served.context_length:
        raise _too_long(served, body, f'more than {length // 2}')
      size *= 4
    return encode(text)

  if isinstance(body, ChatRequest):
    if served.template is None:
      raise UsageError('this model has no chat template; send a prompt to /v1/completions')
    messages = [m.model_dump(exclude_none=True) for m in body.messages]
    encode = functools.partial(encoded, tokenizer.encode_special)
    yield served.template.ids(tokenizer, messages, encode=encode)
    return
  for prompt in body.prompt:
    if isinstance(prompt, str):
      yield tokenizer.special.prompt(encoded(tokenizer.encode, prompt))
      continue
    for i in prompt[: served.context_length]:
      if not 0 <= i < tokenizer.vocab_size:
        raise UsageError(
          f'token id {i} is not one of this model; they are 0 to {tokenizer.vocab_size - 1}'
        )
    yield prompt


def _field(body: Completion | ChatRequest) -> str:
  """The parameter with the text."""
  return 'messages' if isinstance(body, ChatRequest) else 'prompt'


def _too_long(
  served: ServedModel, body: Completion | ChatRequest, length: str, remedy: str = ''
) -> ApiError:
  """The error of a prompt that fills the context."""
  return ApiError(
    400,
    f'the prompt has {length} tokens, and the context holds '
    f'{served.context_length}; shorten it{remedy}',
    param=_field(body),
    code='context_length_exceeded',
  )


def _room(served: ServedModel, body: Completion | ChatRequest, length: int) -> int:
  """The most tokens to sample after a prompt of a length."""
  room, limit = served.context_length - length, body.limit
  least = 0 if limit == 0 else 1
  if room < least:
    raise _too_long(served, body, f'{length}', f' by {least - room}')
  if limit is None:
    return min(room, served.max_tokens, body.usual or room)
  if limit > served.max_tokens:
    raise ApiError(
      400,
      f'max_tokens: {limit} are too many, this server samples at most {served.max_tokens}',
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
