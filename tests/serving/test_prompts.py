# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a request costs: texts are encoded no further than they may be long."""

import json
import re
import threading

import numpy as np
import pytest

from gpt_jax.serving import requests
from gpt_jax.serving.errors import ApiError
from tests.support.served import (
  CONTEXT,
  HTTP,
  POST,
  SERVED,
  TEMPLATE,
  TOKENIZER,
  Running,
  connect,
  make_engine,
  received,
  talk,
  whole,
)


class Watched:
  """Bytes, of which `dropped` are no tokens; it notes how much it encodes."""

  def __init__(self, dropped=''):
    self._dropped = dropped
    self.lengths = []

  def __getattr__(self, name):
    return getattr(TOKENIZER, name)

  def encode(self, text):
    self.lengths.append(len(text))
    kept = re.sub(f'[{self._dropped}]', '', text) if self._dropped else text
    return TOKENIZER.encode(kept)

  def encode_special(self, text):
    return self.encode(text)


def plan(tokenizer, **fields):
  kind = requests.ChatRequest if 'messages' in fields else requests.Completion
  return requests.plan(SERVED._replace(tokenizer=tokenizer), kind.model_validate(fields))


@pytest.mark.parametrize('chat', [False, True])
def test_a_text_that_is_much_too_long_is_not_encoded_as_a_whole(chat):
  tokenizer = Watched()
  text = 'x' * 10**6
  fields = {'messages': [{'role': 'user', 'content': text}]}
  with pytest.raises(ApiError, match='more than 244 tokens, and the con') as e:
    plan(tokenizer, **(fields if chat else {'prompt': text}))
  assert e.value.code == 'context_length_exceeded'
  assert e.value.param == ('messages' if chat else 'prompt')
  assert tokenizer.lengths == [8 * CONTEXT]


@pytest.mark.parametrize('length', [0, 1, 50, CONTEXT - 1])
def test_a_long_text_of_few_tokens_is_taken(length):
  """Such as one of spaces, for a tokenizer that drops them."""
  text = ('x' + ' ' * 3000) * length + ' ' * 9000
  for tokenizer in (Watched(' '), TOKENIZER):
    given = text if tokenizer is not TOKENIZER else 'x' * length
    (row,), num_read = plan(tokenizer, prompt=given, max_tokens=1)
    ids = TOKENIZER.encode('x' * length)
    np.testing.assert_array_equal(row.request.ids, TOKENIZER.special.prompt(ids))
    assert num_read == max(length, 1)


@pytest.mark.parametrize(
  'prompt', [['ab'] * 2 + ['x' * 10**5] + ['ab'] * 5, [[5]] * 3 + [[5] * 10**5]]
)
def test_nothing_after_a_prompt_that_is_too_long_is_encoded(prompt):
  tokenizer = Watched()
  with pytest.raises(ApiError, match='shorten it'):
    plan(tokenizer, prompt=prompt)
  assert len(tokenizer.lengths) <= 3


def test_a_chat_is_the_text_of_its_template():
  messages = [{'role': 'user', 'content': 'Hi'}]
  ((row,), _) = plan(TOKENIZER, messages=messages)
  assert row.request.ids == TEMPLATE.ids(TOKENIZER, messages)


@pytest.mark.parametrize('name', ['parse', 'plan'])
def test_others_are_served_while_requests_are_read(monkeypatch, name):
  """Two at a time; those after them wait for a reader."""
  work, shut = getattr(requests, name), threading.Event()
  begun = threading.Semaphore(0)
  together = []

  def reading(*args, **kwargs):
    begun.release()
    together.append(None)
    assert shut.wait(60)
    return work(*args, **kwargs)

  monkeypatch.setattr(requests, name, reading)
  api = Running(make_engine)
  body = b'{"prompt": "ab", "temperature": 0, "max_tokens": 2}'
  opened = [connect(api) for _ in range(5)]
  try:
    for connection in opened:
      connection.sendall(whole(POST, body))
    for _ in range(2):
      assert begun.acquire(timeout=60)
    for _ in range(3):
      status, health = talk(api, b'GET /health' + HTTP)
      assert status == 200 and json.loads(health)['status'] == 'ok'
    assert len(together) == 2
    shut.set()
    answers = [received(connection).partition(b'\r\n\r\n')[2] for connection in opened]
    assert len({json.loads(a)['choices'][0]['text'] for a in answers}) == 1
  finally:
    shut.set()
    for connection in opened:
      connection.close()
    api.stop()
