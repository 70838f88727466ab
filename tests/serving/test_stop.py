# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command, from its first line to SIGTERM."""

import concurrent.futures
import json
import os
import re
import signal
import sys
import threading
import time

import openai
import pytest

from gpt_jax.__main__ import main
from gpt_jax.commands import convert
from gpt_jax.decoding.engine import Engine
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
  convert.from_hf(str(source), str(folder))
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
        url = re.search(r'http://\S+/v1$', capsys.readouterr().out, re.M)
      with openai.OpenAI(
        base_url=url[0], api_key='none', max_retries=0
      ) as client:
        return use_client(client)
    finally:
      gate.set()
      os.kill(os.getpid(), signal.SIGTERM)

  def run_both(use_client, *flags):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      found = pool.submit(use, use_client)
      argv = ['serve', f'--workdir={workdir}', '--port=0', *flags]
      assert main(argv) == 0
      return found.result()

  return run_both


def stop():
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0.3)  # uvicorn looks ten times a second


def test_what_is_open_is_finished(run, gate):
  def client(api):
    (only,) = api.models.list().data
    assert only.id == 'tiny'
    messages = [{'role': 'user', 'content': 'ab'}]
    stream = api.chat.completions.create(
      model='tiny', messages=messages, max_tokens=5, stream=True
    )
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


def test_without_its_library_it_says_what_to_install(
  workdir, capsys, monkeypatch
):
  for name in [*sys.modules]:
    if name.startswith('gpt_jax.serving'):
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  assert main(['serve', f'--workdir={workdir}']) == 2
  assert 'uvicorn is missing; run pip install' in capsys.readouterr().err


def test_a_bad_address_is_one_line(workdir, capsys):
  assert main(['serve', f'--workdir={workdir}', '--port=65536']) == 2
  flags = [f'--workdir={workdir}', '--host=192.0.2.1']
  assert main(['serve', *flags]) == 2
  *_, last = capsys.readouterr().err.splitlines()
  assert '--host=192.0.2.1 --port=8000: ' in last
