# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tiny model behind real connections, and what its answers must be."""

import asyncio
import functools
import json
import socket
import threading
import time

import openai

from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.serving import endpoints as app_lib
from gpt_jax.serving import server
from gpt_jax.serving.access import Access
from gpt_jax.serving.requests import ServedModel
from gpt_jax.serving.server import ConnectionLimits
from gpt_jax.serving.worker import Worker
from tests.support import tiny
from tests.support.decoding import GREEDY, generate

CONTEXT, SLOTS, MOST, BODY = 61, 2, 230, 40_000
TOKENIZER = Bytes()
TEMPLATE = ChatTemplate(
  "{% for m in messages %}{% if m.role == 'tool' %}"
  "{{ raise_exception('no tools') }}{% endif %}"
  '{{ m.role[0] }}:{{ m.content }};{% endfor %}a:',
  {},
)
# Of no test: those of `test_connections` take tiny ones.
LIMITS = ConnectionLimits(512, 60, 60, 60, 60)
ACCESS = Access()
SERVED = ServedModel('tiny', TOKENIZER, TEMPLATE, CONTEXT, CONTEXT)


@functools.cache
def model():
  return tiny.model(
    vocab_size=TOKENIZER.vocab_size, context_length=CONTEXT, num_layers=1, dropout='none'
  )


def make_engine():
  return Engine(Decoder(model(), tiny.params(model())), slots=SLOTS)


class Running:
  """A server on a thread of its own."""

  def __init__(self, make_engine, *, limits=LIMITS, access=ACCESS, drain=5, served=SERVED):
    self.bound = server.bind('127.0.0.1', 0)
    self.url = server.url(self.bound)
    self.address = self.bound.getsockname()
    self.worker = Worker(make_engine, max_rows=MOST, log_seconds=0.0)
    made = app_lib.build(
      served, self.worker, access=access, max_body_bytes=BODY, body_seconds=limits.body_seconds
    )
    ready = threading.Event()
    self.server = server.LoggingServer(made, drain_seconds=drain, limits=limits, started=ready.set)
    run = server.serve(self.server, self.worker, self.bound)
    self.failed = []
    self.thread = threading.Thread(target=self._run, args=(run,))
    self.thread.start()
    assert ready.wait(60)
    self.client = openai.OpenAI(
      base_url=f'{self.url}/v1', api_key='none', max_retries=0, timeout=120
    )

  def _run(self, serving):
    try:
      asyncio.run(serving)
    except RuntimeError as e:
      self.failed.append(e)

  def stop(self):
    self.client.close()
    self.server.should_exit = True
    self.thread.join()

  def load(self):
    """Rows that run and wait, as /health says."""
    _, body = talk(self, b'GET /health' + HTTP)
    health = json.loads(body)
    assert health['status'] == 'ok'
    return health['running'], health['waiting']

  def idle(self):
    """Waits until nothing runs, waits or is kept."""
    end = time.monotonic() + 60
    while self.load() != (0, 0) or self.worker._open or self.worker._running:
      assert time.monotonic() < end, self.load()
      time.sleep(0.01)


def expected(prompts, *, max_tokens, sampler=GREEDY, seeds=(0,)):
  """Text and finish of each, one at a time, by an engine of its own."""
  found = []
  for prompt in prompts:
    for seed in seeds:
      ids = TOKENIZER.encode(prompt).tolist()
      (new,) = generate(
        model(),
        tiny.params(model()),
        [ids],
        max_tokens=max_tokens,
        sampler=sampler,
        seed=seed,
        stop_ids=(TOKENIZER.eos_id,),
      )
      ended = 'length' if len(new) == max_tokens else 'stop'
      found.append((TOKENIZER.decode(new), ended))
  return found


def ends(answer):
  return [(choice.text, choice.finish_reason) for choice in answer.choices]


HTTP = b' HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
JSON = b'Content-Type: application/json\r\n'
POST = b'POST /v1/completions' + HTTP + JSON


def connect(api):
  return socket.create_connection(api.address, timeout=60)


def whole(request, body):
  return request + b'Content-Length: %d\r\n\r\n' % len(body) + body


def talk(api, request, body=b''):
  """Sends a request; returns status and body of the answer."""
  with connect(api) as connection:
    connection.sendall(whole(request, body))
    head, _, rest = received(connection).partition(b'\r\n\r\n')
    return int(head.split()[1]), rest


def received(connection):
  """All that comes until the other side closes."""
  return b''.join(iter(lambda: connection.recv(65536), b''))


class Gate:
  """Holds the engine before its steps while it is shut."""

  def __init__(self, worker, monkeypatch):
    self.open = threading.Event()
    step = worker.engine.step

    def gated():
      assert self.open.wait(60)
      return step()

    monkeypatch.setattr(worker.engine, 'step', gated)


def logged(caplog, text):
  """Waits for a line in the log."""
  end = time.monotonic() + 60
  while text not in caplog.text:
    assert time.monotonic() < end, caplog.text
    time.sleep(0.01)
