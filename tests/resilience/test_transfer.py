# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pieces arrive whole or not at all, and only those with the secret get any."""

import contextlib
import socket
import threading

import numpy as np
import pytest

from gpt_jax.resilience import transfer

PIECES = {'empty': b'', 'one': b'x', 'large': np.random.default_rng(0).bytes(7 << 20)}


@pytest.fixture
def server():
  with contextlib.closing(
    transfer.PieceServer('secret', lambda request: PIECES[request['name']])
  ) as opened:
    yield opened


@pytest.fixture
def connect():
  """Connects with a secret; closes all connections at the end."""
  with contextlib.ExitStack() as stack:

    def connected(address, secret='secret'):
      client = transfer.Client(address, secret)
      stack.callback(client.close)
      return client

    yield connected


def test_several_callers_get_their_pieces(server, connect):
  clients = [connect(server.address) for _ in range(3)]
  got = {}

  def ask(i):
    got[i] = {name: clients[i].fetch(name=name) for name in PIECES}

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert got == dict.fromkeys(range(3), PIECES)


def test_an_error_is_the_callers_and_the_connection_stays(server, connect):
  client = connect(server.address)
  with pytest.raises(OSError, match="KeyError: 'none'"):
    client.fetch(name='none')
  assert client.fetch(name='one') == b'x'


def test_without_the_secret_nothing_is_sent(server, connect):
  with pytest.raises(OSError):
    connect(server.address, 'another').fetch(name='one')


@pytest.mark.parametrize(
  'answer, why',
  [
    (b'', 'has ended'),
    (b'{"size": 3, "cr', 'has ended'),
    (b'{"size": 3, "crc": 891568578}\nab', 'cut or changed'),
    (b'{"size": 3, "crc": 891568578}\nabd', 'cut or changed'),
    (b'{"size": 3, "crc": 891568578}\nabc', None),
  ],
)
def test_what_was_cut_or_changed_is_refused(connect, answer, why):
  with socket.create_server(('127.0.0.1', 0)) as listener:
    client = connect(listener.getsockname())
    caller, _ = listener.accept()
    with caller:
      caller.sendall(answer)
      caller.shutdown(socket.SHUT_WR)
      if why is None:
        assert client.fetch(name='any') == b'abc'
        return
      with pytest.raises(OSError, match=why):
        client.fetch(name='any')
