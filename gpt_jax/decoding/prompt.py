# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continues a prompt: text in, text out."""

from collections.abc import Sequence
from typing import Any

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.engine import Engine, Request
from gpt_jax.decoding.sampler import Sampler, seeds_of
from gpt_jax.decoding.text import Stream
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError


def continue_prompt(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompt: str,
  *,
  max_tokens: int | None,
  sampler: Sampler,
  seed: int = 0,
  num_samples: int = 1,
  stop: Sequence[str] = (),
) -> list[str]:
  """Returns the prompt with each of its continuations.

  A continuation ends before the first of the texts `stop`, however it is cut
  into tokens.

  Raises:
    UsageError: the prompt, or prompt and continuation, exceed the context.
  """
  ids = tokenizer.special.prompt(tokenizer.encode(prompt))
  max_tokens = num_new(len(ids), max_tokens, model.context_length)
  engine = Engine(model, params, slots=num_samples)
  stop_ids = tokenizer.special.stop_ids
  streams, texts = {}, {}
  for own in seeds_of(seed, num_samples):
    request = Request(ids, max_tokens, sampler, own, stop_ids)
    number = engine.add(request)
    streams[number] = Stream(tokenizer, ids, stop)
    texts[number] = tokenizer.decode(ids)
  for token in engine.run():
    stream = streams[token.request]
    if token.id is not None:
      texts[token.request] += stream.push(token.id)
    if stream.stopped:
      engine.cancel(token.request)
    elif token.finish:
      texts[token.request] += stream.finish()
  return list(texts.values())


def num_new(num_ids: int, max_tokens: int | None, context_length: int) -> int:
  """Tokens that a prompt may be continued by: 100 if nothing is asked for.

  Raises:
    UsageError: the context has no room for them.
  """
  room = context_length - num_ids
  if room < 1:
    raise UsageError(
      f'--prompt has {num_ids} tokens, and the context holds '
      f'{context_length}; shorten it to {context_length - 1}'
    )
  if max_tokens is None:
    return min(100, room)
  if max_tokens > room:
    raise UsageError(
      f'--max_tokens={max_tokens}: the prompt has {num_ids} tokens and the '
      f'context holds {context_length}; at most {room}'
    )
  return max_tokens
