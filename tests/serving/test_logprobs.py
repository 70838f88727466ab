# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities as OpenAI's client reads them."""

import jax
import numpy as np
import pytest

from gpt_jax.core.tokenizers.simple import Characters
from gpt_jax.decoding.logprobs import TokenLogprobs
from gpt_jax.serving.logprobs import Named, TokenNames, of_chat, of_completion
from tests.support import tiny
from tests.support.served import CONTEXT, TOKENIZER, expected, model


def log_softmax(text):
  """After each byte of a text, [L, V]."""
  params = {'params': tiny.params(model())}
  ids_1L = np.array([TOKENIZER.encode(text)])
  hidden = jax.jit(model().apply)(params, ids_1L).hidden_BLD
  logits = model().apply(params, hidden, method='logits')
  return np.asarray(jax.nn.log_softmax(logits))[0]


def own(text, start):
  """The log-probability of each character of an ASCII text from `start` on."""
  ids = TOKENIZER.encode(text)
  logprobs_LV = log_softmax(text)
  return [logprobs_LV[i - 1, ids[i]] for i in range(start, len(ids))]


PROMPTS = ['ab', 'cdefg']


def test_a_completion_with_its_prompt(api):
  answer = api.client.completions.create(
    model='tiny', prompt=PROMPTS, temperature=0, max_tokens=5, logprobs=2, echo=True
  )
  texts = expected(PROMPTS, max_tokens=5)
  for choice, prompt, (text, _) in zip(answer.choices, PROMPTS, texts, strict=True):
    assert choice.text == prompt + text
    found = choice.logprobs
    assert found.tokens[: len(prompt)] == [*prompt]
    assert found.text_offset[: len(prompt) + 1] == [*range(len(prompt) + 1)]
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    np.testing.assert_allclose(found.token_logprobs[1 : len(prompt)], own(prompt, 1), atol=1e-5)
    # Greedy: each new token is the most probable.
    new = found.top_logprobs[len(prompt) :]
    assert len(new) == 5 and all(2 <= len(top) <= 3 for top in new)
    for top, logprob in zip(new, found.token_logprobs[len(prompt) :], strict=True):
      assert max(top.values()) == logprob


def test_a_prompt_alone_is_scored(api):
  """What evaluation harnesses ask for, up to the whole context."""
  prompt = 'x' * CONTEXT
  answer = api.client.completions.create(
    model='tiny', prompt=prompt, max_tokens=0, logprobs=0, echo=True
  )
  (choice,) = answer.choices
  assert (choice.text, choice.finish_reason) == (prompt, 'length')
  assert answer.usage.completion_tokens == 0
  np.testing.assert_allclose(choice.logprobs.token_logprobs[1:], own(prompt, 1), atol=1e-5)


def test_echo_without_logprobs(api):
  ((text, _),) = expected(['ab'], max_tokens=3)
  answer = api.client.completions.create(
    model='tiny', prompt='ab', max_tokens=3, temperature=0, echo=True
  )
  assert answer.choices[0].text == 'ab' + text
  assert answer.choices[0].logprobs is None


ASK = {
  'model': 'tiny',
  'messages': [{'role': 'user', 'content': 'Hi'}],
  'temperature': 1.7,
  'seed': 3,
  'max_tokens': 7,
  'logprobs': True,
  'top_logprobs': 2,
}


def test_a_chat_and_its_stream(api):
  answer = api.client.chat.completions.create(**ASK)
  content = answer.choices[0].logprobs.content
  assert len(content) == answer.usage.completion_tokens
  first_V = log_softmax('u:Hi;a:')[-1]
  np.testing.assert_allclose(
    [x.logprob for x in content[0].top_logprobs], np.sort(first_V)[:-3:-1], atol=1e-5
  )
  for token in content:
    named = token.token.startswith('token_id:')
    assert token.bytes == (None if named else [*token.token.encode()])
  events = api.client.chat.completions.create(**ASK, stream=True)
  streamed = [
    token
    for event in events
    if event.choices[0].logprobs
    for token in event.choices[0].logprobs.content
  ]
  assert streamed == content


def test_a_stream_of_completions(api):
  ask = {'prompt': 'ab', 'max_tokens': 3, 'seed': 5, 'logprobs': 1}
  ask |= {'model': 'tiny', 'echo': True}
  whole = api.client.completions.create(**ask).choices[0]
  stream = api.client.completions.create(**ask, stream=True)
  events = [event.choices[0] for event in stream]
  assert ''.join(event.text for event in events) == whole.text
  for field in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset'):
    parts = [x for event in events for x in getattr(event.logprobs, field)]
    assert parts == getattr(whole.logprobs, field)


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('size', [1, 2, 3])
def test_tokens_of_a_stop_text_are_not_listed(api, size, stream):
  """Whether it ends the text, or only seems to begin before that."""
  ask = {'model': 'tiny', 'prompt': 'ab', 'temperature': 1.0, 'seed': 1}
  ask |= {'max_tokens': 9, 'logprobs': 0}
  whole = api.client.completions.create(**ask).choices[0]
  start = next(i for i in range(2, 9) if whole.text.find(whole.text[i : i + size]) == i)
  stop = whole.text[start : start + size]
  asked = api.client.completions.create(**ask, stop=[stop], stream=stream)
  choices = [x.choices[0] for x in asked] if stream else asked.choices
  assert ''.join(choice.text for choice in choices) == whole.text[:start]
  tokens = [x for choice in choices for x in choice.logprobs.tokens]
  offsets = [x for choice in choices for x in choice.logprobs.text_offset]
  num = sum(x < 2 + start for x in whole.logprobs.text_offset)
  assert tokens == whole.logprobs.tokens[:num]
  assert offsets == whole.logprobs.text_offset[:num]
  # One that never comes takes nothing away.
  asked = api.client.completions.create(**ask, stop=[stop + '\0'])
  assert asked.choices[0].logprobs == whole.logprobs


def of_bytes(data, start=0, top=()):
  """The tokens of bytes from `start` on."""
  names = TokenNames(TOKENIZER, [*data[:start]])
  return [names.take(TokenLogprobs(i, -1.0, top)) for i in data[start:]]


@pytest.mark.parametrize(
  'data',
  [
    b'\xffabc',
    b'a\xff\xfeb',
    b'\xc3a',
    b'\xf0\x9fa\x98\x80b',
    'aé\U0001f600b'.encode(),
    b'\x80\x80\x80\x80z',
    b'\xe2\x82x\xff',
    b'\xc3\xc3\xa9z',
    b'\xf0\x9f\x98\xf0\x9f\x98\x80!',
  ],
)
def test_offsets_are_those_of_the_text(data):
  """Also after bytes of no character, which the text has marks for."""
  text = TOKENIZER.decode([*data])
  for start in range(len(data)):
    for token in of_bytes(data, start):
      if not token.text.startswith('token_id:'):
        assert text[token.offset :].startswith(token.text), (start, token)
    offsets = [token.offset for token in of_bytes(data, start)]
    assert offsets == sorted(offsets) and offsets[-1] < len(text)


@pytest.mark.parametrize(
  ('data', 'offsets'),
  [
    (b'a\xff\xfeb', [0, 1, 2, 3]),
    (b'\xf0\x9f\x98\x80b', [0, 0, 0, 0, 1]),
    (b'\xf0\x9f\x98a', [0, 0, 0, 1]),
    (b'\xc3\xc3\xa9z', [0, 1, 1, 2]),
  ],
)
def test_offsets_of_bytes(data, offsets):
  assert [token.offset for token in of_bytes(data)] == offsets


def test_ids_that_the_tokenizer_lacks_are_named():
  """As a table with more rows than the tokenizer has may score them."""
  letters = Characters('abc')
  names = TokenNames(letters, [0])
  size = letters.vocab_size
  top = ((size, -0.1), (1, -0.5), (size + 70, -0.9))
  found = names.take(TokenLogprobs(2, -1.0, top))
  assert found.text == 'c' and found.offset == 1
  texts = [text for text, _ in found.top]
  assert texts == [f'token_id:{size}', 'b', f'token_id:{size + 70}']


def test_characters_of_several_tokens():
  """A token that only begins one has no text of its own."""
  first, second = 'é'.encode()
  names = TokenNames(TOKENIZER, [*b'ab'])
  top = ((first, -0.5), (ord('c'), -1.0))
  found = [
    names.take(TokenLogprobs(first, -0.5, top)),
    names.take(TokenLogprobs(second, -2.0)),
    names.take(TokenLogprobs(ord('z'), -3.0)),
  ]
  half = f'token_id:{first}'
  assert found == [
    Named(half, -0.5, 2, ((half, -0.5), ('c', -1.0))),
    Named('é', -2.0, 2, ()),
    Named('z', -3.0, 3, ()),
  ]
  assert of_completion(found) == {
    'tokens': [half, 'é', 'z'],
    'token_logprobs': [-0.5, -2.0, -3.0],
    'top_logprobs': [{half: -0.5, 'c': -1.0}, None, None],
    'text_offset': [2, 2, 3],
  }
  first, *_ = of_chat(found)['content']
  assert first == {
    'token': half,
    'logprob': -0.5,
    'bytes': None,
    'top_logprobs': [
      {'token': half, 'logprob': -0.5, 'bytes': None},
      {'token': 'c', 'logprob': -1.0, 'bytes': [99]},
    ],
  }
