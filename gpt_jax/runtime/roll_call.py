# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that all processes of a job have started, before JAX connects them.

JAX's own timeout ends in an abort that does not say who is missing. So process
0 first listens on the coordinator's port itself, until all processes have
called or the time is up, and tells everyone the result. Then JAX takes over the
port.
"""

import contextlib
import os
import re
import selectors
import socket
import time
from typing import NamedTuple

from gpt_jax.runtime.log import log

# Begins each line of both sides, so that no other program passes for a process.
_HELLO = 'gpt_jax roll call'
_CALL = re.compile(rf'{_HELLO}: (\d{{1,9}}) of (\d{{1,9}}) by ([0-9a-f]{{16}})')
_GO = 'go'
# Seconds in which a caller must say who it is; other programs do not.
_PATIENCE = 5.0
# The longest line, and how many connections may be open that said nothing yet.
_LONGEST, _MOST_SILENT = 4096, 256


def call(address: str, *, count: int, index: int, seconds: float) -> None:
  """Returns when all processes have called in.

  Args:
    address: host and port of process 0, as given to JAX.
    count: number of processes.
    index: of this process.
    seconds: how long to wait for the last one.

  Raises:
    RuntimeError: names the processes that are missing.
  """
  if count == 1:
    return
  host, _, port = address.rpartition(':')
  if index == 0:
    _listen(int(port), count, seconds)
  else:
    _report(
      *(host.strip('[]'), int(port)), count=count, index=index, seconds=seconds
    )


class _Silent(NamedTuple):
  """A connection that has not said yet which process it is."""

  until: float
  heard: bytes = b''


class _Called(NamedTuple):
  """That of a process."""

  index: int
  name: str


class _Listener:
  """Process 0's side: all connections at once, so that none holds up others."""

  def __init__(self, server: socket.socket, count: int):
    """Listens for `count` processes, this one included."""
    self._server, self._count = server, count
    self._selector = selectors.DefaultSelector()
    self._selector.register(server, selectors.EVENT_READ)
    self._silent: dict[socket.socket, _Silent] = {}
    self._called: dict[socket.socket, _Called] = {}

  @property
  def missing(self) -> list[int]:
    """Numbers of the processes that have not called."""
    here = {called.index for called in self._called.values()}
    return [i for i in range(1, self._count) if i not in here]

  def wait(self, seconds: float) -> None:
    """Takes what comes within so many seconds.

    Raises:
      RuntimeError: two processes have the same number, or other counts.
    """
    for key, _ in self._selector.select(seconds):
      if key.fileobj is self._server:
        self._accept()
      elif key.fileobj in self._silent or key.fileobj in self._called:
        assert isinstance(key.fileobj, socket.socket)
        self._read(key.fileobj)
    now = time.monotonic()
    late = [s for s, silent in self._silent.items() if silent.until < now]
    for stranger in late:
      self._drop(stranger)

  def tell(self, verdict: str) -> None:
    """Tells all processes that called."""
    for caller in self._called:
      with contextlib.suppress(OSError):  # it has ended: JAX will notice
        caller.settimeout(_PATIENCE)
        caller.sendall(f'{_HELLO}: {verdict}\n'.encode())

  def close(self) -> None:
    """Closes all connections."""
    for connection in [*self._silent, *self._called]:
      self._drop(connection)
    self._selector.close()

  def _accept(self) -> None:
    try:
      caller, _ = self._server.accept()
    except OSError:  # it went away, or this process has no more descriptors
      return
    caller.setblocking(False)
    if len(self._silent) == _MOST_SILENT:
      self._drop(next(iter(self._silent)))  # the oldest
    self._silent[caller] = _Silent(time.monotonic() + _PATIENCE)
    self._selector.register(caller, selectors.EVENT_READ)

  def _read(self, caller: socket.socket) -> None:
    try:
      heard = caller.recv(_LONGEST)
    except BlockingIOError:
      return
    except OSError:  # reset
      heard = b''
    if not heard:  # a process that ended is missing again
      self._drop(caller)
    elif caller in self._silent:
      self._hear(caller, self._silent[caller].heard + heard)

  def _hear(self, caller: socket.socket, heard: bytes) -> None:
    line, ended, _ = heard.partition(b'\n')
    if not ended and len(heard) <= _LONGEST:
      self._silent[caller] = self._silent[caller]._replace(heard=heard)
      return
    found = _CALL.fullmatch(line.decode('ascii', 'replace'))
    if not found:
      self._drop(caller)
      return
    index, count, name = int(found[1]), int(found[2]), found[3]
    for old, called in [*self._called.items()]:
      # A process whose connection broke calls again by the same name.
      if called.index == index and called.name == name:
        self._drop(old)
    self._check(index, count)
    del self._silent[caller]
    self._called[caller] = _Called(index, name)

  def _check(self, index: int, count: int) -> None:
    if count != self._count:
      raise RuntimeError(
        f'a process called as number {index} of {count}, and there are '
        f'{self._count}; give all the same JAX_NUM_PROCESSES'
      )
    if index in self.missing:
      return
    taken = 0 < index < count
    raise RuntimeError(
      f'a process called as number {index} of {count}, which is '
      + ('taken' if taken else 'none of them')
      + '; give each its own JAX_PROCESS_ID'
    )

  def _drop(self, connection: socket.socket) -> None:
    self._selector.unregister(connection)
    self._silent.pop(connection, None)
    self._called.pop(connection, None)
    connection.close()


def _listen(port: int, count: int, seconds: float) -> None:
  deadline = time.monotonic() + seconds
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  with socket.create_server(
    ('', port), family=family, dualstack_ipv6=both
  ) as server:
    server.setblocking(False)
    with contextlib.closing(_Listener(server, count)) as listener:
      told = time.monotonic()
      while listener.missing and (now := time.monotonic()) < deadline:
        listener.wait(min(1.0, deadline - now))
        if time.monotonic() - told > 10:
          told = time.monotonic()
          log.info('waiting: %s', _saw(listener.missing, count))
      missing = listener.missing
      listener.tell(_saw(missing, count) if missing else _GO)
  if missing:
    raise RuntimeError(_late(_saw(missing, count), seconds))


def _report(
  host: str, port: int, *, count: int, index: int, seconds: float
) -> None:
  deadline = time.monotonic() + seconds
  name = os.urandom(8).hex()
  while True:
    said = b''
    # It may not listen yet, or no longer, or be another program.
    with (
      contextlib.suppress(OSError),
      socket.create_connection((host, port), timeout=_PATIENCE) as server,
    ):
      server.sendall(f'{_HELLO}: {index} of {count} by {name}\n'.encode())
      server.settimeout(max(deadline - time.monotonic(), 0) + 2 * _PATIENCE)
      said = server.makefile('rb').readline(_LONGEST)
    hello, _, verdict = said.decode('utf-8', 'replace').partition(': ')
    if hello == _HELLO and verdict.endswith('\n'):
      break
    if time.monotonic() > deadline:
      raise RuntimeError(
        _late(f'process 0 does not answer at {host}:{port}', seconds)
      )
    time.sleep(0.1)
  if verdict.strip() != _GO:
    raise RuntimeError(_late(verdict.strip(), seconds))


def _saw(missing: list[int], count: int) -> str:
  names = ', '.join(f'process {i}' for i in missing)
  return f'saw {count - len(missing)} of {count} processes; missing: {names}'


def _late(what: str, seconds: float) -> str:
  return (
    f'{what}, after hosts.join_seconds={seconds:g}; start the same command on '
    'every host'
  )
