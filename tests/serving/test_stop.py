# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command, from its first line to SIGTERM."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request

import openai
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.runtime.log import log
from gpt_jax.decoding.engine import Engine
from gpt_jax.opening import importing
from gpt_jax.serving import access, server
from tests.support.golden_io import ROOT, config

TEMPLATE = '{% for m in messages %}{{ m.content }}{% endfor %}'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """GPT-2 of the tiny fixture, with letters as its vocabulary."""
  source = tmp_path_factory.mktemp('hf')
  weights = (ROOT / 'gpt2_lm' / 'model.safetensors').read_bytes()
  (source / 'model.safetensors').write_bytes(weights)
  (source / 'config.json').write_text(json.dumps(config(ROOT / 'gpt2_lm')))
  tokens = [chr(i) for i in range(33, 127)] + ['Ġ', '<|endoftext|>']
  known = {token: i for i, token in enumerate(tokens)}
  (source / 'vocab.json').write_text(json.dumps(known))
  (source / 'merges.txt').write_text('#version: 0.2\n')
  chats = json.dumps({'chat_template': TEMPLATE})
  (source / 'tokenizer_config.json').write_text(chats)
  folder = tmp_path_factory.mktemp('run') / 'tiny'
  importing.from_hf(str(source), str(folder))
  return folder


@pytest.fixture
def gate(monkeypatch):
  """Holds every engine before its steps until it is set."""
  step, made = Engine.step, threading.Event()

  def gated(engine):
    assert made.wait(60)
    return step(engine)

  monkeypatch.setattr(Engine, 'step', gated)
  return made


@pytest.fixture
def run(workdir, capsys, gate):
  """Runs the command here, and a client of it on a thread.

  The client is called with OpenAI's client; whatever becomes of it, the server
  is told to stop. Returns what the client did.
  """

  def use(use_client):
    try:
      url, end = None, time.monotonic() + 60
      while url is None:
        assert time.monotonic() < end
        time.sleep(0.01)
        url = re.search(r'http://\S+/v1\b', capsys.readouterr().out)
      with openai.OpenAI(base_url=url[0], api_key='none', max_retries=0) as client:
        return use_client(client)
    finally:
      gate.set()
      os.kill(os.getpid(), signal.SIGTERM)

  def run_both(use_client, *flags):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      found = pool.submit(use, use_client)
      # The engine of a warm-up would wait at the gate.
      argv = ['serve', f'--workdir={workdir}', '--port=0', *flags]
      argv += ['--warm_up_seconds=0']
      assert main(argv) == 0
      return found.result()

  return run_both


def stop():
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.3)  # uvicorn looks ten times a second


def wait_for_load(api, is_loaded):
  """Until something runs or waits, or nothing does."""
  url = f'http://{api.base_url.host}:{api.base_url.port}/health'
  end = time.monotonic() + 60
  while True:
    with urllib.request.urlopen(url) as answer:
      health = json.load(answer)
    if (health['running'] + health['waiting'] > 0) == is_loaded:
      return
    assert time.monotonic() < end
    time.sleep(0.01)


def test_what_is_open_is_finished(run, gate):
  def client(api):
    (only,) = api.models.list().data
    assert only.id == 'tiny'
    messages = [{'role': 'user', 'content': 'ab'}]
    stream = api.chat.completions.create(model='tiny', messages=messages, max_tokens=5, stream=True)
    next(stream)
    stop()
    gate.set()
    return [event.choices[0].finish_reason for event in stream]

  *_, last = run(client)
  assert last in ('stop', 'length')


def test_what_does_not_end_in_time_is_refused(run, gate):
  def client(api):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      stream = api.completions.create(model='tiny', prompt='ab', stream=True)
      whole = pool.submit(api.completions.create, model='tiny', prompt='ab')
      time.sleep(0.3)
      stop()
      with pytest.raises(openai.APIError, match='the server is stopping'):
        list(stream)
      with pytest.raises(openai.InternalServerError, match='stopping') as e:
        whole.result()
      with pytest.raises(openai.APIConnectionError):
        api.models.list()
      return e.value.response

  response = run(client, '--drain_seconds=0')
  assert response.status_code == 503 and response.headers['retry-after']


def test_a_second_interrupt_ends_the_wait(run):
  def client(api):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      whole = pool.submit(api.completions.create, model='tiny', prompt='ab')
      wait_for_load(api, True)
      stop()
      os.kill(os.getpid(), signal.SIGINT)
      with pytest.raises(openai.InternalServerError, match='stopping'):
        whole.result()

  run(client, '--drain_seconds=600')


def test_a_stream_that_nobody_reads_is_not_waited_for(run, gate, monkeypatch, capsys, caplog):
  """No buffer holds it, as all are small; the others are answered."""

  def bind(host, port, bind=server.bind):
    bound = bind(host, port)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return bound

  monkeypatch.setattr(server, 'bind', bind)

  def client(api):
    body = {'prompt': 'a', 'max_tokens': 9, 'n': 40, 'stream': True}
    data = json.dumps(body)
    stuck.connect((api.base_url.host, api.base_url.port))
    stuck.sendall(
      b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
      b'Content-Type: application/json\r\n'
      b'Content-Length: %d\r\n\r\n%s' % (len(data), data.encode())
    )
    wait_for_load(api, True)
    gate.set()
    # All is drawn, and more than the buffers take.
    wait_for_load(api, False)
    gate.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      other = pool.submit(api.completions.create, model='tiny', prompt='ab')
      wait_for_load(api, True)
      stop()
      with pytest.raises(openai.InternalServerError, match='stopping'):
        other.result()

  with socket.socket() as stuck:
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    run(client, '--drain_seconds=1')
  written = caplog.text + capsys.readouterr().err
  assert 'Traceback' not in written and 'Exception' not in written


def test_without_its_library_it_says_what_to_install(workdir, capsys, monkeypatch):
  for name in [*sys.modules]:
    if name.startswith('gpt_jax.serving'):
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  assert main(['serve', f'--workdir={workdir}']) == 2
  assert 'uvicorn is missing; run pip install' in capsys.readouterr().err


@pytest.mark.parametrize(
  'host', ['192.0.2.1', 'a..b', '.', 'x' * 64, '[::1]', 'http://localhost', '-']
)
def test_a_bad_address_is_one_line(workdir, capsys, host):
  flags = [f'--workdir={workdir}', f'--host={host}']
  assert main(['serve', *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f'--host={host} --port=8000: ' in line and 'another address' in line


def test_a_busy_port_is_one_line(workdir, capsys):
  with socket.create_server(('127.0.0.1', 0)) as other:
    port = other.getsockname()[1]
    flags = [f'--workdir={workdir}', f'--port={port}']
    assert main(['serve', *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f'--host=127.0.0.1 --port={port}: address already in use; ' in line


def test_a_port_that_is_taken_while_the_model_loads(workdir, capsys, monkeypatch):
  """Two servers may bind a port; the second one to listen says so."""
  bind, others = server.bind, []

  def bound(host, port):
    mine = bind(host, port)
    others.append(bind(host, mine.getsockname()[1]))
    others[0].listen()
    return mine

  monkeypatch.setattr(server, 'bind', bound)
  flags = [f'--workdir={workdir}', '--port=0', '--warm_up_seconds=0']
  assert main(['serve', *flags]) == 2
  others[0].close()
  *_, line = capsys.readouterr().err.splitlines()
  assert '--host=127.0.0.1 --port=' in line and 'address already in' in line


@pytest.mark.parametrize(
  ('host', 'key', 'is_told'),
  [('0.0.0.0', None, True), ('0.0.0.0', 'none', False), ('::1', None, False)],
)
def test_whoever_reaches_a_server_without_a_key_may_use_it(run, monkeypatch, host, key, is_told):
  said = []
  monkeypatch.setattr(log, 'warning', lambda text, *args: said.append(text % args))
  if key is not None:  # the client's
    monkeypatch.setenv(access.KEY_VARIABLE, key)
  run(lambda api: api.models.list().data, f'--host={host}')
  warning = 'whoever can reach this address may use the model'
  assert any(f'{host}: {warning}' in text for text in said) == is_told
