# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a request of OpenAI's to rows of the engine."""

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax import spec
from gpt_jax.data.tokenizers.chat import ChatTemplate
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.engine import Request
from gpt_jax.decoding.sampler import Sampler, seeds_of
from gpt_jax.decoding.text import Stream
from gpt_jax.serving.errors import ApiError
from gpt_jax.serving.requests import Chat, Completion
from gpt_jax.serving.worker import Row
from gpt_jax.spec import UsageError


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


class Plan(NamedTuple):
  """What a request comes to.

  Attributes:
    rows: its choices: those of the first prompt, then of the next.
    prompt_tokens: of all prompts, each counted once.
  """

  rows: list[Row]
  prompt_tokens: int


def plan(served: Served, asked: Completion | Chat) -> Plan:
  """Encodes the prompts of a request.

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
        rows.append(Row(request, Stream(served.tokenizer, ids, asked.stop)))
  except UsageError as e:
    raise ApiError(400, str(e), param=_field(asked)) from e
  return Plan(rows, prompt_tokens)


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
