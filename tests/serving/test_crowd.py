# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two hundred clients at once, half of them rude.

The polite ones get what they get alone, and a rude one its own error at most.
"""

import concurrent.futures
import json
import logging
import random
import socket
import struct

import pytest

from gpt_jax.decoding.settings import Sampler
from tests.support.served import BODY, HTTP, POST, connect, expected, received, talk, whole

NUM_CLIENTS = 200
DRAWN = Sampler(temperature=1.0)
# Prompt, sampler, seed: what the polite ask for, again and again.
ASKED = [
  (chr(97 + i) * (1 + i % 5), DRAWN if i % 2 else Sampler(temperature=0), i) for i in range(20)
]
GOOD = b'{"prompt": "ab", "max_tokens": 3, "temperature": 0}'
LONG = json.dumps({'prompt': 'ab', 'max_tokens': 50, 'n': 2}).encode()
STREAM = json.dumps({'prompt': 'ab', 'max_tokens': 50, 'n': 2, 'stream': True}).encode()


def polite(api, asked, *, stream):
  """Text and finish of an answer; its status first if it has none."""
  prompt, sampler, seed = asked
  body = {
    'prompt': prompt,
    'max_tokens': 5,
    'temperature': sampler.temperature,
    'seed': seed,
    'stream': stream,
  }
  status, answer = talk(api, POST, json.dumps(body).encode())
  if status != 200:
    return status, answer
  if not stream:
    (choice,) = json.loads(answer)['choices']
    return choice['text'], choice['finish_reason']
  events = [
    line.removeprefix(b'data: ') for line in answer.split(b'\r\n') if line.startswith(b'data: ')
  ]
  *pieces, done = [event.strip() for event in events]
  assert done == b'[DONE]'
  choices = [json.loads(piece)['choices'][0] for piece in pieces]
  text = ''.join(choice['text'] for choice in choices)
  return text, choices[-1]['finish_reason']


def reset(connection):
  """Closes it so that the other side gets an error."""
  linger = struct.pack('ii', 1, 0)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def leave(data, *, read=0, how=lambda connection: None):
  """Sends this, reads a little, and goes."""

  def client(api):
    with connect(api) as connection:
      connection.sendall(data)
      if read:
        connection.recv(read)
      how(connection)

  return client


def refused(data, *statuses):
  """Sends this, and must be refused by one of these statuses."""

  def client(api):
    with connect(api) as connection:
      try:
        connection.sendall(data)
        answer = received(connection)
      except ConnectionError:  # it was closed while this one still sent
        return
    assert int(answer.split()[1]) in statuses, answer
    error = json.loads(answer.partition(b'\r\n\r\n')[2])['error']
    assert error['message'] and error['type'] == 'invalid_request_error'

  return client


def of(**fields):
  return whole(POST, json.dumps({'prompt': 'a', **fields}).encode())


FORM = POST.replace(b'application/json', b'text/plain')
RUDE = {
  'nothing': leave(b''),
  'nothing, reset': leave(b'', how=reset),
  'half a header': leave(POST[:30]),
  'half a header, reset': leave(POST[:30], how=reset),
  'half a body': leave(whole(POST, GOOD)[:-9]),
  'half a body, reset': leave(whole(POST, GOOD)[:-9], how=reset),
  'gone at once': leave(whole(POST, LONG)),
  'gone at once, reset': leave(whole(POST, LONG), how=reset),
  'cancelled stream': leave(whole(POST, STREAM), read=300),
  'cancelled stream, reset': leave(whole(POST, STREAM), read=300, how=reset),
  'no HTTP': refused(b'\x16\x03\x01\x02\x00 hello\r\n\r\n', 400),
  'no JSON': refused(whole(POST, b'{"prompt": '), 400),
  'another type': refused(whole(FORM, GOOD), 415),
  'a huge length': refused(POST + b'Content-Length: 99999999\r\n\r\n', 413),
  'a huge body': refused(whole(POST, b' ' * (BODY + 9)), 413),
  'many prompts': refused(of(prompt=[''] * 9000), 400),
  'a long text': refused(of(prompt='x' * (BODY - 100)), 400),
  'much to draw': refused(of(n=64, max_tokens=10**9), 400),
  'another path': refused(b'GET /../secret' + HTTP + b'\r\n', 404),
}


def test_the_polite_get_what_they_get_alone(api, caplog):
  caplog.set_level(logging.INFO)
  alone = [
    expected([prompt], max_tokens=5, sampler=sampler, seeds=[seed])[0]
    for prompt, sampler, seed in ASKED
  ]
  assert len({text for text, _ in alone}) > len(ASKED) // 2
  rude = [*RUDE.values()]
  clients = [(i, i % len(ASKED) if i % 2 else None) for i in range(NUM_CLIENTS)]
  random.Random(0).shuffle(clients)

  def run(client):
    i, polite_one = client
    if polite_one is None:
      return rude[i // 2 % len(rude)](api)
    return polite(api, ASKED[polite_one], stream=i % 3 == 0)

  # Those that leave take rows for a moment; nobody may be refused for it.
  with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
    for client, found in zip(clients, pool.map(run, clients), strict=True):
      wanted = None if client[1] is None else alone[client[1]]
      assert found == wanted, client
  api.idle()
  assert 'Traceback' not in caplog.text
  assert 'failed' not in caplog.text and ' 500 ' not in caplog.text


@pytest.mark.parametrize('kind', RUDE)
def test_a_rude_client_alone(api, kind, caplog):
  caplog.set_level(logging.INFO)
  RUDE[kind](api)
  api.idle()
  assert polite(api, ASKED[0], stream=False) == (expected([ASKED[0][0]], max_tokens=5)[0])
  assert 'Traceback' not in caplog.text
