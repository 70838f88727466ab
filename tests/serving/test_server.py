# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tiny model behind real connections: OpenAI's client, and bare sockets."""

import concurrent.futures
import functools
import json
import logging
import time

import openai
import pytest

from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.texts import TextStream
from gpt_jax.serving import requests, server
from gpt_jax.serving.errors import ApiError
from tests.support.served import (
  BODY,
  CONTEXT,
  HTTP,
  LIMITS,
  POST,
  SERVED,
  TOKENIZER,
  Gate,
  Running,
  connect,
  ends,
  expected,
  logged,
  make_engine,
  received,
  talk,
  whole,
)


@pytest.fixture(autouse=True)
def nothing_leaks(api):
  yield
  api.idle()


def post(api, body):
  status, answer = talk(api, POST, body)
  return status, json.loads(answer)['error']


def test_greedy_texts_are_those_of_generate(api):
  texts = ['a', 'bcd', 'efghijk']
  answer = api.client.completions.create(model='tiny', prompt=texts, temperature=0, max_tokens=7)
  assert ends(answer) == expected(texts, max_tokens=7)
  assert [choice.index for choice in answer.choices] == [0, 1, 2]
  assert answer.object == 'text_completion' and answer.model == 'tiny'
  usage = answer.usage
  assert (usage.prompt_tokens, usage.completion_tokens) == (1 + 3 + 7, 3 * 7)
  assert usage.total_tokens == 11 + 21
  of_ids = [TOKENIZER.encode(text).tolist() for text in texts]
  again = api.client.completions.create(model='tiny', prompt=of_ids, temperature=0, max_tokens=7)
  assert ends(again) == ends(answer)


def test_choices_end_with_the_document_or_at_the_limit(api):
  n, seed, sampler = 8, 5, Sampler(temperature=1.5)
  wanted = expected(['ab'], max_tokens=53, sampler=sampler, seeds=seeds_of(seed, n))
  assert {end for _, end in wanted} == {'stop', 'length'}
  answer = api.client.completions.create(
    model='tiny', prompt='ab', temperature=1.5, max_tokens=53, n=n, seed=seed
  )
  assert ends(answer) == wanted


def test_a_stop_text_ends_a_choice_and_is_no_part_of_it(api):
  ((text, _),) = expected(['ab'], max_tokens=17)
  stop = text[5:8]
  before = text[: text.index(stop)]
  answer = api.client.completions.create(
    model='tiny', prompt='ab', temperature=0, max_tokens=17, stop=['never there', stop]
  )
  assert ends(answer) == [(before, 'stop')]


def test_a_stream_is_the_text_in_pieces(api):
  wanted = expected(['ab', 'cde'], max_tokens=11)
  stream = api.client.completions.create(
    model='tiny',
    prompt=['ab', 'cde'],
    temperature=0,
    max_tokens=11,
    stream=True,
    stream_options={'include_usage': True},
  )
  *events, last = stream
  texts, finishes = ['', ''], [None, None]
  for event in events:
    (choice,) = event.choices
    assert event.usage is None and finishes[choice.index] is None
    texts[choice.index] += choice.text
    finishes[choice.index] = choice.finish_reason
  assert [*zip(texts, finishes, strict=True)] == wanted
  assert len(events) > 4
  assert last.choices == [] and last.usage.completion_tokens == 22


def test_one_seed_gives_one_text_in_any_company(api):
  ask = functools.partial(
    api.client.completions.create,
    model='tiny',
    prompt='once',
    max_tokens=23,
    seed=7,
    extra_body={'top_k': 50, 'min_p': 0.001, 'repetition_penalty': 1.1},
  )
  sampler = Sampler(1.0, 50, 1.0, 0.001, 1.1)
  alone = expected(['once'], max_tokens=23, sampler=sampler, seeds=[7])
  assert ends(ask()) == alone
  with concurrent.futures.ThreadPoolExecutor(21) as pool:
    others = [
      pool.submit(ask, prompt='x' * (1 + i), seed=i, temperature=1 + i / 10) for i in range(20)
    ]
    assert ends(pool.submit(ask).result()) == alone
    assert len({ends(other.result())[0] for other in others}) > 10


def test_models(api):
  (only,) = api.client.models.list().data
  assert (only.id, only.context_length) == ('tiny', CONTEXT)
  assert api.client.models.retrieve('tiny') == only
  with pytest.raises(openai.NotFoundError, match="this is 'tiny'"):
    api.client.models.retrieve('gpt-4/x')
  with pytest.raises(openai.NotFoundError) as e:
    api.client.completions.create(model='gpt-4', prompt='a')
  assert e.value.code == 'model_not_found'


MESSAGES = [
  {'role': 'system', 'content': 'go'},
  {'role': 'user', 'content': [{'type': 'text', 'text': 'Hi'}]},
]


def test_a_chat_is_the_completion_of_its_template(api):
  ((text, finish),) = expected(['s:go;u:Hi;a:'], max_tokens=11)
  ask = functools.partial(
    api.client.chat.completions.create, model='tiny', messages=MESSAGES, temperature=0
  )
  answer = ask(max_completion_tokens=11)
  (choice,) = answer.choices
  assert (choice.message.content, choice.finish_reason) == (text, finish)
  assert choice.message.role == 'assistant'
  assert answer.object == 'chat.completion'
  usage = answer.usage
  assert (usage.prompt_tokens, usage.completion_tokens) == (12, 11)
  # Without a limit: what the context has room for.
  assert ask().usage.total_tokens == CONTEXT


def test_a_chat_in_pieces(api):
  ((text, finish),) = expected(['s:go;u:Hi;a:'], max_tokens=11)
  first, *events = api.client.chat.completions.create(
    model='tiny', messages=MESSAGES, temperature=0, max_tokens=11, stream=True
  )
  assert first.choices[0].delta.role == 'assistant'
  assert first.object == 'chat.completion.chunk'
  parts = [event.choices[0].delta.content or '' for event in events]
  assert ''.join(parts) == text
  finishes = [event.choices[0].finish_reason for event in events]
  assert finishes == [None] * (len(events) - 1) + [finish]


def test_what_a_template_refuses(api):
  with pytest.raises(openai.BadRequestError, match='template fails: no') as e:
    api.client.chat.completions.create(model='tiny', messages=[{'role': 'tool', 'content': 'Hi'}])
  assert e.value.param == 'messages'


def test_a_model_without_a_template_has_no_chats():
  asked = requests.ChatRequest.model_validate({'messages': MESSAGES})
  with pytest.raises(ApiError, match='no chat template') as e:
    requests.plan(SERVED._replace(template=None), asked)
  assert e.value.status == 400 and e.value.param == 'messages'


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'prompt': 'x' * 70}, 'has 70 tokens, and the context holds 61; sho'),
    ({'prompt': 'x' * 70}, 'shorten it by 10'),
    ({'prompt': 'x' * 50, 'max_tokens': 13}, '2 too few for 13 more'),
    ({'prompt': 'a', 'max_tokens': 62}, 'samples at most 61'),
    ({'prompt': [5, 257]}, 'token id 257 is not one of this model'),
    ({'prompt': [-1]}, 'token id -1 is not one'),
    ({'prompt': ['a'] * 2, 'n': 128}, '256 continuations at once'),
    ({'prompt': [''] * 9000}, '9,000 are too many, and this server takes 230'),
    ({'prompt': 'a', 'best_of': 3}, 'no reward model'),
    ({'prompt': 'a', 'suffix': 'b'}, 'suffix: is not supported'),
  ],
)
def test_what_cannot_be_answered_is_refused(api, fields, why):
  status, error = post(api, json.dumps(fields).encode())
  assert status == 400 and why in error['message']
  assert error['type'] == 'invalid_request_error'


@pytest.mark.parametrize('body', [b'{', b'{"prompt": "a", "top_p": NaN}'])
def test_malformed_json(api, body):
  status, error = post(api, body)
  assert status == 400 and 'the body is not JSON' in error['message']


def test_an_empty_prompt_and_the_smallest_temperature(api):
  answer = api.client.completions.create(model='tiny', prompt='', temperature=1.2e-38, max_tokens=2)
  assert answer.usage.completion_tokens <= 2


@pytest.mark.parametrize(
  ('path', 'status'),
  [(b'GET /v1/completions', 405), (b'GET /secret', 404), (b'GET /%0a%1b[31m', 404)],
)
def test_other_paths(api, path, status):
  found, body = talk(api, path + HTTP)
  error = json.loads(body)['error']
  assert found == status and error['type'] == 'invalid_request_error'


def test_a_body_too_long(api):
  status, error = post(api, b' ' * (BODY + 1))
  assert status == 413 and '40,000 bytes' in error['message']
  for length in (b'9' * 20, b'9' * 5000, b'-1', b'x'):
    with connect(api) as connection:
      connection.sendall(POST + b'Content-Length: ' + length + b'\r\n\r\n')
      status = received(connection).split()[1]
      assert status in (b'400', b'413')
  # Of a length that is not said beforehand.
  chunk = b'%x\r\n%s\r\n' % (9000, b' ' * 9000)
  request = POST + b'Transfer-Encoding: chunked\r\n\r\n'
  with connect(api) as connection:
    connection.sendall(request + 5 * chunk + b'0\r\n\r\n')
    assert received(connection).startswith(b'HTTP/1.1 413 ')


@pytest.fixture
def gate(api, monkeypatch):
  made = Gate(api.worker, monkeypatch)
  yield made
  made.open.set()


@pytest.mark.parametrize('stream', [False, True])
def test_a_client_that_goes_frees_its_rows(api, gate, caplog, stream):
  caplog.set_level(logging.INFO, 'gpt_jax')
  body = {'prompt': 'a', 'max_tokens': 50, 'n': 9, 'stream': stream}
  with connect(api) as connection:
    connection.sendall(whole(POST, json.dumps(body).encode()))
    while not api.worker._open:
      time.sleep(0.01)
  status = 200 if stream else 499
  logged(caplog, f'POST /v1/completions {status}')
  assert not api.worker._open
  gate.open.set()
  api.idle()


def test_a_body_cut_short(api, caplog):
  caplog.set_level(logging.INFO, 'gpt_jax')
  with connect(api) as connection:
    connection.sendall(POST + b'Content-Length: 9\r\n\r\n{')
  logged(caplog, 'POST /v1/completions 499')


def test_a_full_queue_says_when_to_come_again(api, gate):
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    ask = functools.partial(
      api.client.completions.create, model='tiny', prompt='a', temperature=0, max_tokens=2
    )
    first = pool.submit(ask, n=128)
    while not api.worker._open:
      time.sleep(0.01)
    with pytest.raises(openai.RateLimitError) as e:
      ask(n=103)
    assert e.value.response.headers['retry-after'] == '1'
    assert e.value.code == 'queue_full'
    assert e.value.message.count('128') == 1
    second = pool.submit(ask, n=102)
    gate.open.set()
    assert {*ends(first.result()), *ends(second.result())} == {*expected(['a'], max_tokens=2)}


class Panic(BaseException):
  """As of pyo3: not an Exception."""


def failing(*args, kind=RuntimeError, **kwargs):
  raise kind('of /secret/place.py')


@pytest.mark.parametrize('stream', [False, True])
def test_an_engine_that_fails(api, monkeypatch, caplog, stream):
  """Answered, logged, and the next request goes on with a new engine."""
  before = api.worker.engine
  monkeypatch.setattr(before, 'step', failing)
  ask = functools.partial(api.client.completions.create, model='tiny', prompt='a', max_tokens=3)
  with pytest.raises(openai.APIError) as e:
    list(ask(stream=True)) if stream else ask()
  assert 'the server failed' in str(e.value)
  assert 'secret' not in str(e.value)
  assert 'of /secret/place.py' in caplog.text
  assert ends(ask(temperature=0)) == expected(['a'], max_tokens=3)
  assert api.worker.engine is not before


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('place', ['push', 'add'])
@pytest.mark.parametrize('kind', [IndexError, Panic])
def test_a_row_that_fails_ends_its_request_alone(
  api, gate, monkeypatch, caplog, kind, place, stream
):
  """Beside others, which get what they get alone, and with the same engine."""
  engine = api.worker.engine
  original = {'push': TextStream.push, 'add': engine.add}[place]
  bell = [7]
  if place == 'push':

    def push(self, token):
      if tuple(self._before[:1]) == tuple(bell):
        raise kind('at /secret/place.py')
      return original(self, token)

    monkeypatch.setattr(TextStream, 'push', push)
  else:

    def add(request):
      if list(request.ids[:1]) == bell:
        raise kind('at /secret/place.py')
      return original(request)

    monkeypatch.setattr(engine, 'add', add)
  texts = ['ab', 'c', 'def']

  def ask(text, **more):
    return api.client.completions.create(
      model='tiny', prompt=text, max_tokens=5, temperature=0, **more
    )

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    bad = pool.submit(lambda: list(ask('\x07', n=2, stream=stream)))
    good = [pool.submit(ask, text) for text in texts]
    gate.open.set()
    with pytest.raises(openai.APIError) as e:
      bad.result()
    for text, found in zip(texts, good, strict=True):
      assert ends(found.result()) == expected([text], max_tokens=5)
  assert 'the server failed' in str(e.value) and 'secret' not in str(e.value)
  logged(caplog, 'at /secret/place.py')
  assert api.worker.engine is engine and api.worker.alive


@pytest.mark.parametrize('kind', [RuntimeError, Panic])
def test_without_an_engine_the_server_ends(monkeypatch, caplog, kind):
  """It answers what is open, and fails, so that it can be started again."""

  def fails():
    raise kind('of /secret/place.py')

  engines = [make_engine()]
  monkeypatch.setattr(engines[0], 'step', fails)
  api = Running(engines.pop)
  with pytest.raises(openai.InternalServerError, match='the server failed'):
    api.client.completions.create(model='tiny', prompt='a')
  api.thread.join(60)
  assert not api.thread.is_alive() and not api.worker.alive
  assert 'of /secret/place.py' in caplog.text
  assert 'no engine can be made any more' in caplog.text
  (ended,) = api.failed
  assert 'the engine failed for good' in str(ended)
  api.client.close()


@pytest.mark.parametrize('kind', [RuntimeError, Panic])
def test_a_request_that_fails(api, monkeypatch, caplog, kind):
  with monkeypatch.context() as patch:
    patch.setattr(requests, 'plan', functools.partial(failing, kind=kind))
    with pytest.raises(openai.InternalServerError) as e:
      api.client.completions.create(model='tiny', prompt='a')
  assert e.value.type == 'server_error' and 'secret' not in str(e.value)
  logged(caplog, 'of /secret/place.py')


def test_a_step_that_goes_on_is_not_waited_for(monkeypatch, caplog):
  """Such as one that compiles; then the process ends without it."""
  at_exit, codes = [], []
  monkeypatch.setattr(server, '_STEP_SECONDS', 0.01)
  monkeypatch.setattr(server.atexit, 'register', lambda *call: at_exit.append(call))
  monkeypatch.setattr(server.os, '_exit', codes.append)
  api = Running(make_engine, drain=0)
  gate = Gate(api.worker, monkeypatch)
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    open_one = pool.submit(api.client.completions.create, model='tiny', prompt='a')
    while not api.worker._running:
      time.sleep(0.01)
    api.server.should_exit = True
    api.thread.join(60)
    with pytest.raises(openai.InternalServerError, match='stopping'):
      open_one.result()
  assert not api.thread.is_alive() and api.worker.is_running
  assert 'a model is still in a step, which is given up' in caplog.text
  ((leave, worker),) = at_exit
  leave(worker)
  assert codes == [0]
  gate.open.set()
  worker._thread.join(60)
  assert not worker.is_running
  leave(worker)
  assert codes == [0] and 'Traceback' not in caplog.text
  api.client.close()


def test_speed_and_load_are_logged(api, caplog):
  caplog.set_level(logging.INFO, 'gpt_jax')
  api.client.completions.create(model='tiny', prompt='a', temperature=0)
  logged(caplog, ' tokens/s, 1 running, 0 waiting')
  logged(caplog, 'POST /v1/completions 200 1+16 tokens')


def test_an_address_that_is_taken(api):
  host, port = api.address
  with pytest.raises(ValueError, match=f'--host={host} --port={port}: addr'):
    server.bind(host, port)


def test_an_address_that_is_none():
  with pytest.raises(ValueError, match=r'--host=192\.0\.2\.1'):
    server.bind('192.0.2.1', 0)


def test_an_error_of_uvicorn_is_logged_once(caplog, monkeypatch):
  """Absl has a handler at the root, as `caplog` has."""
  shown, records = logging.Handler(), []
  shown.emit = records.append
  monkeypatch.setattr(logging.getLogger('gpt_jax'), 'handlers', [shown])
  monkeypatch.setattr(logging.getLogger('uvicorn'), 'handlers', [])
  server.LoggingServer(None, drain_seconds=1, limits=LIMITS)
  logging.getLogger('uvicorn.error').error('no HTTP')
  assert [r.getMessage() for r in [*records, *caplog.records]] == ['no HTTP']
