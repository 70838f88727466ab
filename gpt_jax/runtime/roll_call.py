# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that all processes of a job have started, before JAX connects them.

JAX's own timeout ends in an abort that does not say who is missing. So process
0 first listens on the coordinator's port itself, until all processes have
called or the time is up, and tells everyone the result. Then JAX takes over the
port.
"""

import contextlib
import socket
import time

from gpt_jax.runtime.log import log

_GO = b'go\n'
# Seconds in which a caller must send its number; other programs do not.
_PATIENCE = 5.0


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
  deadline = time.monotonic() + seconds
  if index == 0:
    _listen(int(port), count, deadline, seconds)
  else:
    _report(host.strip('[]'), int(port), index, deadline, seconds)


def _listen(port: int, count: int, deadline: float, seconds: float) -> None:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  callers: dict[int, socket.socket] = {}
  with contextlib.ExitStack() as stack:
    server = stack.enter_context(
      socket.create_server(('', port), family=family, dualstack_ipv6=both)
    )
    told = time.monotonic()
    while len(callers) < count - 1 and time.monotonic() < deadline:
      server.settimeout(min(1.0, max(deadline - time.monotonic(), 0.01)))
      with contextlib.suppress(TimeoutError, ValueError):
        caller = stack.enter_context(server.accept()[0])
        caller.settimeout(_PATIENCE)
        index = int(caller.makefile().readline())
        if index in callers or not 0 < index < count:
          raise RuntimeError(
            f'a process called as number {index} of {count}, which is '
            + ('taken' if index in callers else 'none of them')
            + '; give each its own JAX_PROCESS_ID'
          )
        callers[index] = caller
      if time.monotonic() - told > 10:
        told = time.monotonic()
        log.info('waiting: %s', _saw(callers, count))
    missing = len(callers) < count - 1
    verdict = f'{_saw(callers, count)}\n'.encode() if missing else _GO
    for caller in callers.values():
      with contextlib.suppress(OSError):  # it has ended: JAX will notice
        caller.sendall(verdict)
  if missing:
    raise RuntimeError(_late(_saw(callers, count), seconds))


def _report(
  host: str, port: int, index: int, deadline: float, seconds: float
) -> None:
  while True:
    try:
      with socket.create_connection((host, port), timeout=_PATIENCE) as server:
        server.sendall(f'{index}\n'.encode())
        server.settimeout(max(deadline - time.monotonic(), 0) + 2 * _PATIENCE)
        verdict = server.makefile('rb').readline()
      if verdict:
        break
    except OSError:
      pass  # not listening yet, or no longer
    if time.monotonic() > deadline:
      raise RuntimeError(
        _late(f'process 0 does not answer at {host}:{port}', seconds)
      )
    time.sleep(0.1)
  if verdict != _GO:
    raise RuntimeError(_late(verdict.decode().strip(), seconds))


def _saw(callers: dict[int, socket.socket], count: int) -> str:
  missing = [i for i in range(1, count) if i not in callers]
  names = ', '.join(f'process {i}' for i in missing)
  return f'saw {len(callers) + 1} of {count} processes; missing: {names}'


def _late(what: str, seconds: float) -> str:
  return (
    f'{what}, after hosts.join_seconds={seconds:g}; start the same command on '
    'every host'
  )
