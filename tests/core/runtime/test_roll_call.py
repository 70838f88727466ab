# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The roll call: who is missing is said by name, on every host."""

import concurrent.futures
import contextlib
import hashlib
import hmac
import socket
import struct
import threading

import pytest

from gpt_jax.core.runtime import hosts


@pytest.fixture
def address():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{s.getsockname()[1]}'


def call_all(address, count, *indices, seconds=0.5):
  """What each of the processes that are there is told; None: to go on."""
  with concurrent.futures.ThreadPoolExecutor() as pool:
    calls = [
      pool.submit(hosts.call, address, count=count, index=index, seconds=seconds)
      for index in indices
    ]
    return [call.exception() and str(call.exception()) for call in calls]


def test_all_there(address):
  assert call_all(address, 3, 2, 0, 1, seconds=30) == [None] * 3


def test_one_process_calls_nobody(monkeypatch):
  asked = []
  for name in ('create_server', 'create_connection', 'socket'):
    monkeypatch.setattr(socket, name, lambda *_, **__: asked.append(1))
  hosts.call('nowhere:1', count=1, index=0, seconds=0)
  assert not asked


def test_missing_ones_are_named_to_all_that_are_there(address, monkeypatch):
  monkeypatch.delenv('JAX_NUM_PROCESSES', raising=False)
  told = call_all(address, 4, 0, 2)
  assert (
    told
    == [
      'saw 2 of 4 processes; missing: process 1, process 3, after '
      'hosts.join_seconds=0.5; start the same command on every host'
    ]
    * 2
  )


def test_the_first_one_missing(address, monkeypatch):
  """Where processes are counted by hand, fewer may go on."""
  monkeypatch.setenv('JAX_NUM_PROCESSES', '2')
  (told,) = call_all(address, 2, 1)
  assert told.startswith(f'process 0 does not answer at {address}, after')
  assert told.endswith(
    'on every host, or on those that are there, with a smaller JAX_NUM_PROCESSES'
  )


def test_two_of_the_same_number(address):
  told = call_all(address, 3, 0, 1, 1, seconds=2)
  assert told[0] == (
    'a process joined as number 1 of 3, which is taken; give each its own JAX_PROCESS_ID'
  )


def test_other_counts_are_told(address):
  with concurrent.futures.ThreadPoolExecutor() as pool:
    calls = [
      pool.submit(hosts.call, address, count=n, index=i, seconds=2) for i, n in ((0, 3), (1, 4))
    ]
    assert str(calls[0].exception()) == (
      'a process joined as number 1 of 4, but there are 3; give all the same JAX_NUM_PROCESSES'
    )


def connected(address):
  """A connection, once somebody listens."""
  host, port = address.split(':')
  while True:
    try:
      return socket.create_connection((host, int(port)))
    except ConnectionRefusedError:
      pass


def resets(address, stack):
  """Connects, and goes without a word; also after half of one."""
  for said in (b'', b'gpt_jax roll'):
    with connected(address) as s:
      s.sendall(said)
      s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))


def speaks(line):
  def stranger(address, stack):
    stack.enter_context(connected(address)).sendall(line)

  return stranger


def trickles(address, stack):
  """Sends a byte now and then for as long as the roll call lasts."""
  s, over = stack.enter_context(connected(address)), threading.Event()

  def send():
    with contextlib.suppress(OSError):
      while not over.wait(0.05):
        s.sendall(b'g')

  thread = threading.Thread(target=send)
  thread.start()
  stack.callback(thread.join)
  stack.callback(over.set)


def crowds(address, stack):
  """More connections than may be silent at once."""
  for _ in range(300):
    stack.enter_context(connected(address))


@pytest.mark.parametrize(
  'stranger',
  [
    resets,
    trickles,
    crowds,
    speaks(b'1\n'),
    speaks(b'2\n'),
    speaks(b'-7\n'),
    speaks(b'GET / HTTP/1.0\r\n\r\n'),
    speaks(b'\xff\xfe\x00\n'),
    speaks('gpt_jax roll call: \u0661 of 2 by 0123456789abcdef\n'.encode()),
    speaks(b'x' * 100_000),
  ],
)
def test_strangers_are_ignored(address, stranger):
  """A port scanner, a web browser, or whatever else finds the port."""
  with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(hosts.call, address, count=2, index=0, seconds=60)
    stranger(address, stack)
    hosts.call(address, count=2, index=1, seconds=60)
    assert first.exception() is None


NAME = '0123456789abcdef'


def signed(text, secret=b''):
  return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def hello(address, index, name, count=3, secret=b''):
  s = connected(address)
  greeting = s.makefile().readline().removeprefix('gpt_jax roll call: ').strip()
  proof = signed(f'{greeting} {index} {count} {name}', secret)
  call = f'gpt_jax roll call: {index} of {count} by {name} {proof}\n'
  s.sendall(call.encode())
  return s


def test_a_process_that_goes_is_missing_again(address):
  """Its connection broke: it calls again, or is not there when all start."""
  name = NAME
  with concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(hosts.call, address, count=3, index=0, seconds=60)
    with hello(address, 1, name), hello(address, 1, name) as again:
      hosts.call(address, count=3, index=2, seconds=60)
      told = f'gpt_jax roll call: {signed(f"{name} go")} go\n'
      assert again.makefile().readline() == told
    assert first.exception() is None


def test_another_program_on_the_port_is_no_process(address):
  """Before process 0 listens something else answers there."""
  host, port = address.split(':')
  with concurrent.futures.ThreadPoolExecutor() as pool:
    with socket.create_server((host, int(port))) as other:
      second = pool.submit(hosts.call, address, count=2, index=1, seconds=60)
      for said in (b'HTTP/1.0 400 Bad Request\r\n', b'go\n', b'\xff\n', b''):
        with other.accept()[0] as caller:
          caller.sendall(said)
    hosts.call(address, count=2, index=0, seconds=60)
    assert second.exception() is None


@pytest.fixture
def secret(monkeypatch):
  monkeypatch.setenv('GPT_JAX_JOB_SECRET', 'kept')
  return b'kept'


def test_all_know_the_secret(address, secret):
  assert call_all(address, 3, 2, 0, 1, seconds=30) == [None] * 3


@pytest.mark.parametrize('other', [b'', b'guessed'])
def test_a_stranger_without_the_secret_is_no_process(address, secret, other):
  """It says all that process 1 says; then process 1 comes, and is the one."""
  with concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(hosts.call, address, count=2, index=0, seconds=60)
    with hello(address, 1, NAME, count=2, secret=other) as stranger:
      assert stranger.makefile().read() == ''
    hosts.call(address, count=2, index=1, seconds=60)
    assert first.exception() is None


def test_a_process_whose_calls_are_dropped_is_told(address, secret):
  host, port = address.split(':')
  with (
    concurrent.futures.ThreadPoolExecutor() as pool,
    socket.create_server((host, int(port))) as other,
  ):
    second = pool.submit(hosts.call, address, count=2, index=1, seconds=0)
    with other.accept()[0] as caller:
      caller.sendall(f'gpt_jax roll call: {"0" * 32}\n'.encode())
      caller.makefile().readline()
    assert 'GPT_JAX_JOB_SECRET may differ' in str(second.exception())


def test_what_was_heard_before_proves_nothing(address, secret):
  """A call that was good once, as somebody in the network may repeat it."""
  lines = []
  with concurrent.futures.ThreadPoolExecutor() as pool:
    first = pool.submit(hosts.call, address, count=3, index=0, seconds=1)
    with connected(address) as s:
      greeting = s.makefile().readline().split()[-1]
      proof = signed(f'{greeting} 1 3 {NAME}', secret)
      lines.append(f'gpt_jax roll call: 1 of 3 by {NAME} {proof}\n'.encode())
      s.sendall(lines[0])
      said = s.makefile().readline()
      assert 'saw 2 of 3' in said
    assert 'missing: process 2' in str(first.exception())
    first = pool.submit(hosts.call, address, count=3, index=0, seconds=0.5)
    with connected(address) as s:
      s.sendall(lines[0])
      s.makefile().read()
    assert 'saw 1 of 3' in str(first.exception())


def test_a_stranger_in_place_of_process_0_is_not_believed(address, secret):
  host, port = address.split(':')
  with concurrent.futures.ThreadPoolExecutor() as pool:
    with socket.create_server((host, int(port))) as other:
      second = pool.submit(hosts.call, address, count=2, index=1, seconds=60)
      with other.accept()[0] as caller:
        caller.sendall(f'gpt_jax roll call: {"0" * 32}\n'.encode())
        name = caller.makefile().readline().split()[-2]
        told = f'gpt_jax roll call: {signed(f"{name} go")} go\n'
        caller.sendall(told.encode())
    hosts.call(address, count=2, index=0, seconds=60)
    assert second.exception() is None
