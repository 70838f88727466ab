# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Continues a prompt: text in, text out."""

from collections.abc import Sequence
from typing import Any

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import sample
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError


def continue_prompt(
  model: Transformer,
  params: Any,
  tokenizer: Tokenizer,
  prompt: str,
  *,
  max_tokens: int | None,
  temperature: float,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  num_samples: int = 1,
  stop: Sequence[str] = (),
) -> list[str]:
  """Returns the prompt with each of its continuations.

  A continuation ends before the first of the texts `stop`, however it is cut
  into tokens: each new token is decoded with those before it.

  Raises:
    UsageError: the prompt, or prompt and continuation, exceed the context.
  """
  ids = tokenizer.special.prompt(tokenizer.encode(prompt))
  room = model.context_length - len(ids)
  if room < 1:
    raise UsageError(
      f'--prompt has {len(ids)} tokens, and the context holds '
      f'{model.context_length}; shorten it to {model.context_length - 1}'
    )
  if max_tokens is None:
    max_tokens = min(100, room)
  if max_tokens > room:
    raise UsageError(
      f'--max_tokens={max_tokens}: the prompt has {len(ids)} tokens and the '
      f'context holds {model.context_length}; at most {room}'
    )
  start = len(tokenizer.decode(ids))

  def text_of(new: list[int]) -> tuple[str, bool]:
    """The text up to the first stop, and whether there is one."""
    text = tokenizer.decode(ids + new)
    ends = [at for s in stop if (at := text.find(s, start)) >= 0]
    return text[: min(ends, default=None)], bool(ends)

  continuations = sample.generate(
    model,
    params,
    [ids] * num_samples,
    max_tokens=max_tokens,
    sampler=sample.Sampler(temperature, top_k, top_p),
    seed=seed,
    stop_ids=tokenizer.special.stop_ids,
    stop_when=(lambda new: text_of(new)[1]) if stop else None,
  )
  return [text_of(new)[0] for new in continuations]
