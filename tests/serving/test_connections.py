# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Connections that would go on for ever end; each test waits for the end.

The limit under test is tiny and the others are a minute, which no test awaits.
"""

import contextlib
import itertools
import json
import logging
import resource
import socket
import struct
import time

import pytest

from gpt_jax.serving import server
from gpt_jax.serving.server import reserve_files
from tests.support.served import (
  HTTP,
  LIMITS,
  POST,
  Gate,
  Running,
  connect,
  expected,
  logged,
  make_engine,
  talk,
  whole,
)

SOON = 0.05
NOTHING = itertools.repeat(b'')
KEPT = b' HTTP/1.1\r\nHost: localhost\r\n'


@pytest.fixture
def serve(caplog):
  """Starts a server with some of the limits; it must leave no traceback."""
  caplog.set_level(logging.INFO)
  with contextlib.ExitStack() as stack:

    def start(**limits):
      running = Running(make_engine, limits=LIMITS._replace(**limits))
      stack.callback(running.stop)
      return running

    yield start
  assert 'Traceback' not in caplog.text
  assert 'Fatal' not in caplog.text


def until_closed(connection, sent=NOTHING):
  """What comes until the other side ends it, while this one sends on.

  A reset is an end, too.
  """
  parts = []
  with contextlib.suppress(ConnectionError):
    while True:
      connection.settimeout(SOON / 5)
      with contextlib.suppress(TimeoutError):
        part = connection.recv(65536)
        if not part:
          break
        parts.append(part)
      connection.settimeout(60)
      connection.sendall(next(sent))
  return b''.join(parts)


def open_connections(api):
  return len(api.server.server_state.connections)


def wait_for(condition):
  end = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.005)


def answer(connection):
  """Status and body of one answer, on a connection that goes on."""
  data = b''
  while b'\r\n\r\n' not in data:
    data += connection.recv(1)
  head = data.lower()
  length = int(head.partition(b'content-length: ')[2].split()[0])
  body = b''
  while len(body) < length:
    body += connection.recv(length - len(body))
  return int(data.split()[1]), json.loads(body)


@pytest.mark.parametrize('begin', [b'', b'P', POST, b'GET /health' + KEPT])
@pytest.mark.parametrize('trickle', [b'', b'x'])
def test_a_header_that_is_never_whole(serve, begin, trickle):
  api = serve(header_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(begin)
    # Of a whole header the server would read up to 16 KiB.
    sent = itertools.chain([b'X: '], itertools.repeat(trickle))
    assert until_closed(connection, sent if begin else NOTHING) == b''
  wait_for(lambda: not open_connections(api))


def test_a_second_header_that_is_never_whole(serve):
  api = serve(header_seconds=SOON)
  answered = False
  while not answered:
    with connect(api) as connection:
      # On a busy machine the first header may be too slow as well.
      connection.sendall(b'GET /health' + KEPT + b'\r\n')
      sent = itertools.chain([b''], itertools.repeat(b'E'))
      answered = until_closed(connection, sent).startswith(b'HTTP/1.1 200 ')


def test_an_idle_connection(serve):
  api = serve(idle_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(b'GET /health' + KEPT + b'\r\n')
    assert answer(connection)[0] == 200
    assert until_closed(connection) == b''


@pytest.mark.parametrize('trickle', [b'', b' '])
def test_a_body_that_does_not_come(serve, trickle):
  api = serve(body_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(POST + b'Content-Length: 30000\r\n\r\n{')
    found = until_closed(connection, itertools.repeat(trickle))
    assert found.startswith(b'HTTP/1.1 408 ')
    assert b'the body did not come within 0.05 seconds' in found


@pytest.mark.parametrize(
  'request_',
  [
    b'GET /health' + KEPT,
    b'POST /nowhere' + KEPT + b'Content-Type: application/json\r\n',
    b'POST /v1/completions' + KEPT,  # 415
  ],
)
def test_a_body_that_nobody_reads(serve, request_):
  """The answer comes before it; then it has some time, and then it ends."""
  api = serve(body_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(request_ + b'Content-Length: 30000\r\n\r\n')
    found = until_closed(connection, itertools.repeat(b'x'))
    assert found.startswith(b'HTTP/1.1 ') and b'content-length' in found


def test_after_an_unread_body_comes_the_next_request(serve):
  api = serve(idle_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(
      b'POST /nowhere' + KEPT + b'Content-Type: application/json\r\nContent-Length: 5\r\n\r\n12'
    )
    assert answer(connection)[0] == 404
    connection.sendall(b'345GET /health' + KEPT + b'\r\n')
    assert answer(connection)[0] == 200
    assert until_closed(connection) == b''


def test_a_body_too_long_is_read_to_its_end_by_nobody(serve):
  api = serve(body_seconds=SOON)
  with connect(api) as connection:
    connection.sendall(POST + b'Content-Length: 9999999\r\n\r\n')
    found = until_closed(connection, itertools.repeat(b'x'))
    assert found.startswith(b'HTTP/1.1 413 ')


@pytest.mark.parametrize('stream', [True, False])
def test_a_client_that_does_not_read(serve, stream, caplog):
  """What it does not take fills all buffers, here small ones."""
  api = serve(write_seconds=SOON)
  api.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
  with socket.socket() as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(api.address)
    # Answers of two kinds: one long one, and many short ones.
    body = {'prompt': 'a', 'max_tokens': 50, 'n': 9, 'stream': True}
    request = whole(POST, json.dumps(body).encode())
    if not stream:
      request = 400 * (b'GET /v1/models' + KEPT + b'\r\n')
    connection.sendall(request)
    logged(caplog, ' 200 ')
    wait_for(lambda: not open_connections(api))
    found = until_closed(connection)
  assert b'[DONE]' not in found
  api.idle()


def test_the_longest_wait_makes_room(serve):
  api = serve(connections=3)
  with contextlib.ExitStack() as stack:
    idle = []
    for i in range(3):
      idle.append(stack.enter_context(connect(api)))
      wait_for(lambda i=i: open_connections(api) == i + 1)
    idle[0].sendall(b'GET /health' + KEPT + b'\r\n')
    assert answer(idle[0])[0] == 200
    # The others have sent no request for longer.
    assert talk(api, b'GET /health' + HTTP)[0] == 200
    assert until_closed(idle[1]) == b''
    for connection in (idle[0], idle[2]):
      connection.sendall(b'GET /health' + KEPT + b'\r\n')
      assert answer(connection)[0] == 200


@pytest.mark.parametrize('trickle', [b'', b' '])
def test_slow_bodies_make_room(serve, trickle):
  """Many more than there may be; each polite client is answered at once."""
  api = serve(connections=5)
  body = b'{"prompt": "ab", "temperature": 0, "max_tokens": 3}'
  with contextlib.ExitStack() as stack:
    slow = []
    for i in range(12):
      slow.append(stack.enter_context(connect(api)))
      slow[-1].sendall(POST + b'Content-Length: 30000\r\n\r\n{' + trickle)
      wait_for(lambda i=i: open_connections(api) == min(i + 1, 5))
    for _ in range(3):
      assert talk(api, b'GET /health' + HTTP)[0] == 200
      status, found = talk(api, POST, body)
      (choice,) = json.loads(found)['choices']
      end = (choice['text'], choice['finish_reason'])
      assert status == 200 and [end] == expected(['ab'], max_tokens=3)
    for connection in slow[:8]:  # the oldest ones
      assert until_closed(connection) == b''


def test_a_body_in_time_is_answered_though_slow(serve):
  """One that need not go: there is room."""
  body = b'{"prompt": "ab", "temperature": 0, "max_tokens": 3}'
  api = serve(connections=2)
  with connect(api) as slow:
    start = POST + b'Content-Length: %d\r\n\r\n' % len(body)
    slow.sendall(start + body[:9])
    for _ in range(3):
      assert talk(api, b'GET /health' + HTTP)[0] == 200
      wait_for(lambda: open_connections(api) == 1)
    slow.sendall(body[9:])
    (choice,) = answer(slow)[1]['choices']
  found = (choice['text'], choice['finish_reason'])
  assert [found] == expected(['ab'], max_tokens=3)


def unread(api):
  """How many connections have waited for their reader for long."""
  return sum(
    connection.is_stuck and connection._awaited_since() is not None
    for connection in [*api.server.server_state.connections]
  )


def test_clients_that_do_not_read_make_room(serve, monkeypatch):
  monkeypatch.setattr(server, '_UNREAD_SECONDS', SOON)
  api = serve(connections=2)
  api.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
  with contextlib.ExitStack() as stack:
    for number in (1, 2):
      connection = stack.enter_context(socket.socket())
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
      connection.connect(api.address)
      connection.sendall(400 * (b'GET /v1/models' + KEPT + b'\r\n'))
      wait_for(lambda number=number: unread(api) == number)
    assert talk(api, b'GET /health' + HTTP)[0] == 200


def test_too_many_connections_at_work(serve, monkeypatch):
  api = serve(connections=2)
  gate = Gate(api.worker, monkeypatch)
  body = b'{"prompt": "ab", "temperature": 0, "max_tokens": 3}'
  with connect(api) as first, connect(api) as second:
    for connection in (first, second):
      connection.sendall(whole(POST, body))
    wait_for(lambda: len(api.worker._open) == 2)
    with connect(api) as third:
      head, _, rest = until_closed(third).partition(b'\r\n\r\n')
    assert head.startswith(b'HTTP/1.1 503 ') and b'retry-after: 1' in head
    error = json.loads(rest)['error']
    assert error['code'] == 'too_many_connections'
    assert error['type'] == 'server_error'
    gate.open.set()
    for connection in (first, second):
      (choice,) = answer(connection)[1]['choices']
      found = (choice['text'], choice['finish_reason'])
      assert [found] == expected(['ab'], max_tokens=3)


@pytest.mark.parametrize(
  'request_',
  [
    b'\x16\x03\x01 nonsense\r\n',
    b'GET /health HTTP/1.1\r\nHost: localhost\r\nX: ' + b'x' * 70_000,
    b'GET /health HTTP/1.1\r\n\r\n',
    POST + b'Content-Length: 1\r\nContent-Length: 2\r\n\r\n',
    POST + b'Transfer-Encoding: chunked\r\n\r\nno size\r\n',
  ],
)
def test_what_is_no_http_gets_an_error_of_openais_form(serve, request_):
  with connect(serve()) as connection:
    connection.sendall(request_)
    head, _, rest = until_closed(connection).partition(b'\r\n\r\n')
  assert head.startswith(b'HTTP/1.1 400 ')
  assert json.loads(rest)['error']['type'] == 'invalid_request_error'


def test_nonsense_after_an_early_answer(serve):
  with connect(serve()) as connection:
    chunked = b'Transfer-Encoding: chunked\r\n\r\n'
    connection.sendall(b'POST /v1/completions' + KEPT + chunked)
    assert answer(connection)[0] == 415
    connection.sendall(b'no size\r\n')
    assert until_closed(connection) == b''


def test_a_reset_connection(serve):
  api = serve()
  with connect(api) as connection:
    connection.sendall(POST)
    linger = struct.pack('ii', 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
  wait_for(lambda: not open_connections(api))


NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
  ('soft', 'hard', 'raised'),
  [
    (640, 640, None),
    (NO_LIMIT, NO_LIMIT, None),
    (256, 1024, 640),
    (256, NO_LIMIT, 640),
    (256, 639, 'give at most 511, or'),
  ],
)
def test_each_connection_is_an_open_file(monkeypatch, soft, hard, raised):
  set_to = []
  monkeypatch.setattr(resource, 'getrlimit', lambda kind: (soft, hard))
  monkeypatch.setattr(resource, 'setrlimit', lambda kind, both: set_to.append(both))
  if isinstance(raised, str):
    with pytest.raises(ValueError, match=f'--max_connections=512: .*{raised}'):
      reserve_files(LIMITS)
  else:
    reserve_files(LIMITS)
  assert set_to == ([(raised, hard)] if isinstance(raised, int) else [])
