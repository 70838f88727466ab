# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a request of OpenAI's to rows of the engine."""

import secrets
from typing import NamedTuple

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
  try:
    prompts = _ids(served, asked)
  except UsageError as e:
    field = 'messages' if isinstance(asked, Chat) else 'prompt'
    raise ApiError(400, str(e), param=field) from e
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
  rows = []
  for ids in prompts:
    limit = _room(served, asked, len(ids))
    for own in seeds:
      request = Request(
        ids=ids,
        max_tokens=limit,
        sampler=sampler,
        seed=own,
        stop_ids=served.tokenizer.special.stop_ids,
      )
      rows.append(Row(request, Stream(served.tokenizer, ids, asked.stop)))
  return Plan(rows, sum(map(len, prompts)))


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


def _ids(served: Served, asked: Completion | Chat) -> list[list[int]]:
  tokenizer = served.tokenizer
  if isinstance(asked, Chat):
    if served.template is None:
      raise UsageError(
        'this model has no chat template; send a prompt to /v1/completions'
      )
    messages = [m.model_dump(exclude_none=True) for m in asked.messages]
    return [served.template.ids(tokenizer, messages)]
  found = []
  for prompt in asked.prompt:
    if isinstance(prompt, str):
      found.append(tokenizer.special.prompt(tokenizer.encode(prompt)))
      continue
    for i in prompt:
      if not 0 <= i < tokenizer.vocab_size:
        raise UsageError(
          f'token id {i} is none of this model; they are 0 to '
          f'{tokenizer.vocab_size - 1}'
        )
    found.append(prompt)
  return found


def _room(served: Served, asked: Completion | Chat, length: int) -> int:
  """How many tokens are drawn at most after a prompt of a length."""
  room = served.context_length - length
  said = f'the prompt has {length} tokens, and the context holds '
  said += f'{served.context_length}'
  code = 'context_length_exceeded'
  if room < 1:
    raise ApiError(
      400,
      f'{said}; shorten it by {1 - room}',
      param='messages' if isinstance(asked, Chat) else 'prompt',
      code=code,
    )
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
      f'max_tokens: {said}, which is {limit - room} too few for {limit} more; '
      f'ask for {room}',
      param='max_tokens',
      code=code,
    )
  return limit
