# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a client may ask for, and how it is told that it may not."""

import json

import pytest

from gpt_jax.serving import requests
from gpt_jax.serving.errors import ApiError
from tests.support.served import SERVED

MOST = 7  # prompts
MESSAGE = {'role': 'user', 'content': 'Hi'}


def completion(**fields):
  body = json.dumps({'prompt': 'Once', **fields}).encode()
  return requests.parse(requests.Completion, body, max_prompts=MOST)


def chat(**fields):
  body = json.dumps({'messages': [MESSAGE], **fields}).encode()
  return requests.parse(requests.ChatRequest, body, max_prompts=MOST)


def refusal(body, *, chat=False):
  kind = requests.ChatRequest if chat else requests.Completion
  with pytest.raises(ApiError) as e:
    requests.parse(kind, body, max_prompts=MOST)
  assert e.value.status == 400
  return e.value


def test_defaults_are_openais():
  asked = completion()
  assert (asked.temperature, asked.top_p, asked.n) == (1, 1, 1)
  assert (asked.limit, asked.usual) == (None, 16)
  assert (chat().limit, chat().usual) == (None, None)
  assert (asked.stop, asked.seed, asked.stream) == ([], None, False)


@pytest.mark.parametrize(
  ('given', 'prompts'),
  [
    ('a b', ['a b']),
    ('', ['']),
    (['a', ''], ['a', '']),
    ([3, 0, 7], [[3, 0, 7]]),
    ([[3, 0], [7]], [[3, 0], [7]]),
  ],
)
def test_prompts(given, prompts):
  assert completion(prompt=given).prompt == prompts
  assert completion(prompt=given, n=3).num_prompts == len(prompts)


@pytest.mark.parametrize('given', [[], [[]], 3, 1.5, {}, True, [1, 'a'], [[1.5]]])
def test_what_is_no_prompt(given):
  error = refusal(json.dumps({'prompt': given}).encode())
  assert error.param == 'prompt' and error.message.startswith('prompt: must')


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({str(i): 1 for i in range(90)}, 'is not supported'),
    ({'metadata': {str(i): 1 for i in range(90)}}, 'an object of 90 names'),
    ({'stream_options': {str(i): 1 for i in range(90)}}, 'an object of 90 names'),
    ({'prompt': [{str(i): 1 for i in range(90)}]}, 'an object of 90 names'),
  ],
)
def test_faults_are_not_all_listed(fields, why):
  body = json.dumps({'prompt': 'a'} | fields).encode()
  assert why in refusal(body).message


@pytest.mark.parametrize('others', ['a', 3.5, [1], [1.5], None])
def test_too_many_prompts_are_not_looked_at(others):
  error = refusal(json.dumps({'prompt': ['a', *[others] * MOST]}).encode())
  assert error.message.startswith('prompt: 8 are too many, and this server')
  assert len(completion(prompt=['a'] * MOST).prompt) == MOST
  assert completion(prompt=[1] * 99).prompt == [[1] * 99]


def test_a_message_of_parts():
  parts = [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]
  asked = chat(messages=[{'role': 'user', 'content': parts}])
  assert asked.messages[0].content == 'ab'


def test_an_answer_may_be_sent_back():
  """As OpenAI's client has it, with all that there is not."""
  message = {'role': 'assistant', 'content': 'Hi', 'refusal': None}
  for more in ({'tool_calls': None}, {'tool_calls': [], 'annotations': []}):
    asked = chat(messages=[MESSAGE, message | more])
    assert [m.role for m in asked.messages] == ['user', 'assistant']
  with pytest.raises(ApiError, match='tool_calls: is not supported'):
    chat(messages=[MESSAGE, message | {'tool_calls': [{'id': 'a'}]}])


def test_what_openais_client_may_send_is_taken():
  """Names and defaults of its reference, for a model without tools."""
  defaults = {
    **{'frequency_penalty': 0, 'presence_penalty': 0, 'logit_bias': {}},
    **{'n': 1, 'temperature': 1, 'top_p': 1, 'stop': None, 'stream': False},
    **{'seed': None, 'user': 'me', 'metadata': {'a': 'b'}, 'store': False},
    **{'service_tier': 'auto', 'response_format': {'type': 'text'}},
    **{'stream_options': None, 'audio': None, 'prediction': None},
  }
  of_chats = {
    **{'parallel_tool_calls': True, 'tools': [], 'tool_choice': 'none'},
    **{'modalities': ['text'], 'logprobs': False, 'top_logprobs': 0},
    **{'reasoning_effort': 'medium', 'verbosity': 'medium'},
    **{'safety_identifier': 'x', 'prompt_cache_key': 'y'},
  }
  assert chat(**defaults, **of_chats).messages == chat().messages
  of_texts = {'best_of': 1, 'echo': False, 'logprobs': None, 'suffix': None}
  assert completion(**defaults, **of_texts).prompt == ['Once']


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('service_tier', 'flex'),
    ('store', True),
    ('tool_choice', 'required'),
    ('reasoning_effort', 'high'),
    ('modalities', ['text', 'audio']),
    ('parallel_tool_calls', 1),
    ('verbosity', 'low'),
  ],
)
def test_what_asks_for_more_is_refused(name, value):
  body = json.dumps({'messages': [MESSAGE], name: value}).encode()
  assert refusal(body, chat=True).param == name


@pytest.mark.parametrize('seed', [0, 2**32, 2**62, 2**64 - 1, -1, -(2**63)])
def test_seeds_of_64_bits(seed):
  (row,), _ = requests.plan(SERVED, completion(prompt='ab', seed=seed))
  assert row.request.seed == seed % 2**32


@pytest.mark.parametrize(
  ('length', 'most', 'drawn'), [(1, 61, 16), (50, 61, 11), (60, 61, 1), (50, 3, 3), (1, 3, 3)]
)
def test_the_default_of_max_tokens_is_what_there_is_room_for(length, most, drawn):
  served = SERVED._replace(max_tokens=most)
  (row,), _ = requests.plan(served, completion(prompt='a' * length))
  assert row.request.max_tokens == drawn
  for asked in (drawn + 1, 16):
    if asked > drawn and drawn < 16:
      with pytest.raises(ApiError, match='max_tokens: '):
        requests.plan(served, completion(prompt='a' * length, max_tokens=asked))


@pytest.mark.parametrize('name', [*requests.NEUTRAL])
def test_what_asks_for_nothing_is_taken(name):
  for value in (None, *requests.NEUTRAL[name]):
    assert completion(**{name: value}) == completion()
    assert chat(**{name: value}) == chat()


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('frequency_penalty', 0.5),
    ('logit_bias', {'5': 100}),
    ('tools', [{'type': 'function'}]),
    ('response_format', {'type': 'json_object'}),
    ('tempreature', 0.5),
  ],
)
def test_what_there_is_not_is_refused(name, value):
  error = refusal(json.dumps({'prompt': 'a', name: value}).encode())
  assert error.message == f'{name}: is not supported; leave it out'
  assert error.param == name


@pytest.mark.parametrize(
  ('name', 'value', 'why'),
  [
    ('temperature', -0.1, 'must be at least 0'),
    ('temperature', '1', 'Input should be a valid number'),
    ('temperature', 1e-300, 'must be 0, or at least 1.2e-38'),
    ('top_p', 1.01, 'must be at most 1'),
    ('min_p', -1, 'must be at least 0'),
    ('top_k', 1.5, 'Input should be a valid integer'),
    ('repetition_penalty', 0, 'must be above 0'),
    ('max_tokens', -1, 'must be at least 0'),
    ('logprobs', True, 'Input should be a valid integer'),
    ('logprobs', 21, 'less than or equal to 20'),
    ('best_of', 129, 'less than or equal to 128'),
    ('max_tokens', True, 'Input should be a valid integer'),
    ('n', 0, 'greater than or equal to 1'),
    ('n', 10**9, 'less than or equal to 128'),
    ('seed', -(2**63) - 1, 'greater than or equal to -9223372036854775808'),
    ('seed', 2**64, 'less than 18446744073709551616'),
    ('stop', '', 'stop.0: String should have at least 1 character'),
    ('stop', ['a'] * 5, 'at most 4'),
    ('stop', ['a', 3], 'stop.1: Input should be a valid string'),
    ('stop', 'a' * 1001, 'at most 1000 characters'),
    ('metadata', {str(i): '' for i in range(17)}, 'at most 16'),
    ('stream', 'yes', 'Input should be a valid boolean'),
    ('model', 3, 'Input should be a valid string'),
  ],
)
def test_a_value_out_of_its_range(name, value, why):
  error = refusal(json.dumps({'prompt': 'a', name: value}).encode())
  assert error.param is not None and error.param.partition('.')[0] == name
  assert error.message.startswith(f'{error.param}: ') and why in error.message


@pytest.mark.parametrize(
  ('body', 'why'),
  [
    (b'', 'not JSON'),
    (b'{"prompt": "a"', 'not JSON'),
    (b'{"prompt": "a"} more', 'not JSON'),
    (b'\xff\xfe', 'not JSON'),
    (b'{"prompt": "\\ud800"}', 'not JSON'),
    (b'{"prompt": "\xed\xa0\x80"}', 'not JSON'),
    (b'[' * 100_000, 'not JSON'),
    (b'{"prompt": "a", "temperature": NaN}', 'not JSON'),
    (b'{"prompt": "a", "temperature": Infinity}', 'not JSON'),
    (b'{"prompt": "a", "seed": 1' + b'0' * 99 + b'}', 'seed: Input'),
    (b'{"prompt": "a", "seed": ' + b'9' * 5000 + b'}', 'out of range'),
    (b'["a"]', 'not a JSON object'),
    (b'{}', 'prompt: is missing'),
    (b'{"prompt": null}', 'prompt: is missing'),
    (
      b'{"prompt": "a", "stream_options": {"include_usage": true}}',
      "stream_options needs 'stream': true",
    ),
    (b'{"prompt": "a", "n": 3, "best_of": 2}', 'at least n, which is 3'),
    (b'{"prompt": "a", "max_tokens": 0}', "at least 1 without 'echo': true"),
  ],
)
def test_a_body_that_cannot_be_read(body, why):
  assert why in refusal(body).message


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'messages': []}, 'messages: '),
    ({'messages': [{'role': 'user'}]}, 'messages.0.content: is missing'),
    ({'messages': [{'content': 'Hi'}]}, 'messages.0.role: is missing'),
    ({'messages': [{'role': 'user', 'content': [{'type': 'image_url'}]}]}, "parts of type 'text'"),
    ({'messages': [MESSAGE], 'max_tokens': 3, 'max_completion_tokens': 5}, 'not both'),
    ({'messages': [MESSAGE], 'top_logprobs': 3}, "top_logprobs needs 'logprobs': true"),
    ({'messages': [MESSAGE], 'max_tokens': 0}, 'must be at least 1'),
  ],
)
def test_a_chat_that_cannot_be_read(fields, why):
  assert why in refusal(json.dumps(fields).encode(), chat=True).message


def test_a_long_name_is_cut():
  error = refusal(json.dumps({'prompt': 'a', 'x' * 10_000: 1}).encode())
  assert len(error.message) < 400
