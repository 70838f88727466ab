# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The best of several continuations, by a reward that a test can compute."""

import concurrent.futures
import threading

import openai
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import Sampler
from gpt_jax.serving import server
from tests.support.served import SERVED, Running, ends, expected, make_engine

SEED, EACH, LENGTH = 5, 4, 7
PROMPTS = ['ab', 'cde']
SEEN = []


def score(text):
  return float(sum(map(ord, text)))


def rank(prompt, texts):
  SEEN.append(prompt)
  if prompt == 'too long':
    raise UsageError('a text to score is too long; shorten it')
  order = sorted(range(len(texts)), key=lambda i: -score(texts[i]))
  return [(i, score(texts[i])) for i in order]


@pytest.fixture(scope='module')
def api():
  running = Running(make_engine, served=SERVED._replace(best_of=2, rank=rank))
  yield running
  running.stop()


def best(prompt, each, n):
  """Text and finish of the best continuations, by an engine of its own."""
  found = expected([prompt], max_tokens=LENGTH, sampler=Sampler(2.0), seeds=seeds_of(SEED, each))
  return sorted(found, key=lambda end: -score(end[0]))[:n]


def ask(api, **more):
  fields = {'prompt': PROMPTS, 'temperature': 2.0, 'seed': SEED, 'model': 'tiny'}
  fields |= {'max_tokens': LENGTH} | more
  return api.client.completions.create(**fields)


def test_the_best_choices_of_each_prompt(api):
  answer = ask(api, n=2, best_of=EACH)
  assert ends(answer) == [x for p in PROMPTS for x in best(p, EACH, 2)]
  assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
  # All that was drawn is counted.
  assert answer.usage.completion_tokens > 4 * LENGTH
  # The server's own number, and none where as many are asked for.
  assert ends(ask(api)) == [x for p in PROMPTS for x in best(p, 2, 1)]
  SEEN.clear()
  assert len(ask(api, n=2).choices) == 4 and not SEEN


def test_a_stream_has_the_best_as_a_whole(api):
  events = list(ask(api, best_of=EACH, stream=True, echo=True, logprobs=0))
  choices = [event.choices[0] for event in events]
  found = [(choice.text, choice.finish_reason) for choice in choices]
  assert found == [
    (prompt + text, finish) for prompt in PROMPTS for text, finish in best(prompt, EACH, 1)
  ]
  assert choices[1].logprobs.tokens[:3] == [*'cde']


def test_a_chat_is_scored_as_messages(api):
  SEEN.clear()
  message = {'role': 'user', 'content': 'Hi'}
  answer = api.client.chat.completions.create(
    model='tiny', messages=[message], temperature=2.0, seed=SEED, max_tokens=LENGTH
  )
  ((text, _),) = best('u:Hi;a:', 2, 1)
  assert answer.choices[0].message.content == text
  assert SEEN[0] == [message] and len(SEEN) == 1


def test_what_cannot_be_scored_is_refused(api):
  with pytest.raises(openai.BadRequestError, match='too long; shorten it'):
    ask(api, prompt='too long')
  with pytest.raises(openai.APIError, match='too long; shorten it'):
    list(ask(api, prompt='too long', stream=True))


def test_a_server_that_stops_does_not_wait_for_a_reward_model(monkeypatch):
  """Its client is told so, whatever the model is at."""
  entered, done = threading.Event(), threading.Event()

  def never(prompt, texts):
    entered.set()
    assert done.wait(60)

  monkeypatch.setattr(server, '_STEP_SECONDS', 0.1)
  monkeypatch.setattr(server.atexit, 'register', lambda *_: None)
  slow = Running(make_engine, served=SERVED._replace(best_of=2, rank=never), drain=0)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    answer = pool.submit(ask, slow)
    assert entered.wait(60)
    stopping = threading.Thread(target=slow.stop)
    stopping.start()
    stopping.join(30)
    ended = not stopping.is_alive()
    done.set()
    assert ended
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
      answer.result()
