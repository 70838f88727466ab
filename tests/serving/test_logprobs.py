# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities as OpenAI's client reads them."""

import jax
import numpy as np

from gpt_jax.decoding.logprobs import TokenLogprobs
from gpt_jax.serving.logprobs import Named, Names, of_chat, of_completion
from tests.support import tiny
from tests.support.served import (
  CONTEXT,
  TOKENIZER,
  expected,
  model,
)


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
    model='tiny',
    prompt=PROMPTS,
    temperature=0,
    max_tokens=5,
    logprobs=2,
    echo=True,
  )
  texts = expected(PROMPTS, max_tokens=5)
  for choice, prompt, (text, _) in zip(
    answer.choices, PROMPTS, texts, strict=True
  ):
    assert choice.text == prompt + text
    found = choice.logprobs
    assert found.tokens[: len(prompt)] == [*prompt]
    assert found.text_offset[: len(prompt) + 1] == [*range(len(prompt) + 1)]
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    np.testing.assert_allclose(
      found.token_logprobs[1 : len(prompt)], own(prompt, 1), atol=1e-5
    )
    # Greedy: each new token is the most probable.
    new = found.top_logprobs[len(prompt) :]
    assert len(new) == 5 and all(2 <= len(top) <= 3 for top in new)
    for top, logprob in zip(
      new, found.token_logprobs[len(prompt) :], strict=True
    ):
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
  np.testing.assert_allclose(
    choice.logprobs.token_logprobs[1:], own(prompt, 1), atol=1e-5
  )


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
    [x.logprob for x in content[0].top_logprobs],
    np.sort(first_V)[:-3:-1],
    atol=1e-5,
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


def test_characters_of_several_tokens():
  """A token that only begins one has no text of its own."""
  first, second = 'é'.encode()
  names = Names(TOKENIZER, [*b'ab'])
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
