# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The JSON of OpenAI's answers: whole ones, and the events of a stream."""

import json
import time
import uuid
from typing import Any, NamedTuple

from gpt_jax.serving.worker import Piece


class Usage(NamedTuple):
  """How many tokens a request took.

  Attributes:
    prompt: of its prompts, each counted once.
    completion: drawn, over all choices; the one that ends a text is no part
      of it.
  """

  prompt: int
  completion: int

  def json(self) -> dict[str, int]:
    """OpenAI's names."""
    return {
      'prompt_tokens': self.prompt,
      'completion_tokens': self.completion,
      'total_tokens': self.prompt + self.completion,
    }


class Text:
  """Answers of /v1/completions."""

  def __init__(self, model: str):
    """`model` is the name that clients know."""
    self._fields = _fields('cmpl-', 'text_completion', model)

  def opening(self, num_choices: int) -> list[dict[str, Any]]:
    """Events before any text."""
    del num_choices
    return []

  def event(self, piece: Piece) -> dict[str, Any]:
    """An event of a stream."""
    choice = _text_choice(piece.row, piece.text, piece.finish)
    return self._fields | {'choices': [choice]}

  def usage_event(self, usage: Usage) -> dict[str, Any]:
    """The event after all text."""
    return self._fields | {'choices': [], 'usage': usage.json()}

  def whole(self, ends: list[tuple[str, str]], usage: Usage) -> dict[str, Any]:
    """The answer to a request that is not streamed: text and finish of each."""
    choices = [_text_choice(i, *end) for i, end in enumerate(ends)]
    return self._fields | {'choices': choices, 'usage': usage.json()}


class Chat:
  """Answers of /v1/chat/completions."""

  def __init__(self, model: str):
    """`model` is the name that clients know."""
    self._fields = _fields('chatcmpl-', 'chat.completion', model)
    self._of_stream = self._fields | {'object': 'chat.completion.chunk'}

  def opening(self, num_choices: int) -> list[dict[str, Any]]:
    """Events before any text: whose turn it is."""
    delta = {'role': 'assistant', 'content': ''}
    return [self._event(i, delta, None) for i in range(num_choices)]

  def event(self, piece: Piece) -> dict[str, Any]:
    """An event of a stream."""
    delta = {'content': piece.text} if piece.text else {}
    return self._event(piece.row, delta, piece.finish)

  def usage_event(self, usage: Usage) -> dict[str, Any]:
    """The event after all text."""
    return self._of_stream | {'choices': [], 'usage': usage.json()}

  def whole(self, ends: list[tuple[str, str]], usage: Usage) -> dict[str, Any]:
    """The answer to a request that is not streamed: text and finish of each."""
    choices = [
      {
        'index': i,
        'message': {'role': 'assistant', 'content': text, 'refusal': None},
        'logprobs': None,
        'finish_reason': finish,
      }
      for i, (text, finish) in enumerate(ends)
    ]
    return self._fields | {'choices': choices, 'usage': usage.json()}

  def _event(self, index: int, delta: dict[str, str], finish: str | None):
    choice = {'index': index, 'delta': delta, 'logprobs': None}
    return self._of_stream | {'choices': [choice | {'finish_reason': finish}]}


def server_sent(event: dict[str, Any]) -> str:
  """An event as the wire has it."""
  return f'data: {json.dumps(event, separators=(",", ":"))}\n\n'


# Ends a stream that is complete.
DONE = 'data: [DONE]\n\n'


def _fields(prefix: str, kind: str, model: str) -> dict[str, Any]:
  """What all parts of an answer begin with."""
  return {
    'id': prefix + uuid.uuid4().hex,
    'object': kind,
    'created': int(time.time()),
    'model': model,
  }


def _text_choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
  choice = {'index': index, 'text': text, 'logprobs': None}
  return choice | {'finish_reason': finish}
