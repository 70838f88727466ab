# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The roll call: who is missing is said by name, on every host."""

import concurrent.futures
import socket

import pytest

from gpt_jax.runtime import roll_call


@pytest.fixture
def address():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{s.getsockname()[1]}'


def call_all(address, count, *indices, seconds=0.5):
  """What each of the processes that are there is told; None: to go on."""
  with concurrent.futures.ThreadPoolExecutor() as pool:
    calls = [
      pool.submit(
        roll_call.call, address, count=count, index=index, seconds=seconds
      )
      for index in indices
    ]
    return [call.exception() and str(call.exception()) for call in calls]


def test_all_there(address):
  assert call_all(address, 3, 2, 0, 1, seconds=30) == [None] * 3


def test_one_process_calls_nobody(monkeypatch):
  asked = []
  for name in ('create_server', 'create_connection', 'socket'):
    monkeypatch.setattr(socket, name, lambda *_, **__: asked.append(1))
  roll_call.call('nowhere:1', count=1, index=0, seconds=0)
  assert not asked


def test_missing_ones_are_named_to_all_that_are_there(address):
  told = call_all(address, 4, 0, 2)
  assert (
    told
    == [
      'saw 2 of 4 processes; missing: process 1, process 3, after '
      'hosts.join_seconds=0.5; start the same command on every host'
    ]
    * 2
  )


def test_the_first_one_missing(address):
  (told,) = call_all(address, 2, 1)
  assert told.startswith(f'process 0 does not answer at {address}, after')


def test_two_of_the_same_number(address):
  told = call_all(address, 3, 0, 1, 1, seconds=2)
  assert told[0] == (
    'a process called as number 1 of 3, which is taken; give each its own '
    'JAX_PROCESS_ID'
  )


def test_strangers_are_ignored(address):
  """A port scanner connects, says nothing of sense, and goes."""
  host, port = address.split(':')
  with concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(roll_call.call, address, count=2, index=0, seconds=30)
    while True:
      try:
        with socket.create_connection((host, int(port))) as s:
          s.sendall(b'GET / HTTP/1.0\n')
        break
      except OSError:
        pass
    roll_call.call(address, count=2, index=1, seconds=30)
    assert first.exception() is None
