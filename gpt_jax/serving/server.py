# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The server's life: a socket, the engine's thread, and the end.

Told to stop (SIGTERM, or SIGINT), it takes no more connections, finishes what
is open for `drain_seconds`, refuses the rest with an error, and returns.
Clients that do not read what they are sent are not waited for.
"""

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from gpt_jax.runtime.log import log
from gpt_jax.serving.connections import Connection, Limits
from gpt_jax.serving.worker import Worker
from gpt_jax.spec import UsageError

# How long the engine's last step is waited for when all else has ended.
_STEP_SECONDS = 2


def bind(host: str, port: int) -> socket.socket:
  """Takes an address, without listening yet; port 0 is any that is free.

  Raises:
    UsageError: it cannot be had.
  """
  try:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      made.bind(address)
    except OSError:
      made.close()
      raise
    return made
  except OSError as e:
    raise UsageError(
      f'--host={host} --port={port}: {(e.strerror or str(e)).lower()}; give '
      'another address, or --port=0 for any free port'
    ) from e


def url(bound: socket.socket) -> str:
  """Where clients find a bound socket."""
  host, port = bound.getsockname()[:2]
  return f'http://[{host}]:{port}' if ':' in host else f'http://{host}:{port}'


class Server(uvicorn.Server):
  """Uvicorn with our log; it tells when it listens, and how it ends."""

  def __init__(
    self,
    app: ASGIApp,
    *,
    drain_seconds: int,
    limits: Limits,
    started: Callable[[], None] = lambda: None,
  ):
    """`started` is called when requests are taken."""
    # What uvicorn says of itself is less than we do; its warnings stay.
    logging.getLogger('uvicorn').handlers[:] = log.handlers
    super().__init__(
      uvicorn.Config(
        app,
        http=functools.partial(Connection, limits=limits),  # type: ignore
        ws='none',
        loop='asyncio',
        lifespan='off',
        log_config=None,
        log_level='warning',
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore
        timeout_graceful_shutdown=drain_seconds,
      )
    )
    self._on_start = started

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    """Listens."""
    await super().startup(sockets)
    self._on_start()

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """Ends what is open."""
    seconds = self.config.timeout_graceful_shutdown
    log.info('stopping; %s s for what is open', seconds)
    await super().shutdown(sockets)
    # Tasks that have not ended are cancelled by now, except by a second Ctrl-C,
    # and answer their clients: see `Guard`. Nothing can be sent to a client
    # that has not read what it was sent.
    if self.force_exit:
      for task in self.server_state.tasks:
        task.cancel()
    self._abort(only_stuck=True)
    await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
    while self.server_state.connections:
      self._abort(only_stuck=False)
      await asyncio.sleep(0)

  def _abort(self, *, only_stuck: bool) -> None:
    """Ends connections without waiting for their clients."""
    for connection in self.server_state.connections:
      assert isinstance(connection, Connection)
      if connection.is_stuck or not only_stuck:
        connection.transport.abort()


async def serve(server: Server, worker: Worker, bound: socket.socket) -> None:
  """Serves until the server is told to stop.

  Raises:
    RuntimeError: the engine's thread has ended, so the server did.
  """

  def lost() -> None:
    server.should_exit = True

  worker.start(lost)
  try:
    await server.serve(sockets=[bound])
    if not worker.alive:
      raise RuntimeError('the engine failed for good; the log says why')
  finally:
    await asyncio.to_thread(worker.stop, _STEP_SECONDS)
    if worker.is_running:
      log.warning('the engine is still in a step, which is given up')
      atexit.register(_leave, worker)


def _leave(worker: Worker) -> None:
  """Ends the process at once while a step of the engine goes on.

  Python's own end would tear the libraries down under the step's thread.
  """
  if worker.is_running:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(server: Server, worker: Worker, bound: socket.socket) -> None:
  """Serves until a signal says to stop; on the main thread."""
  with _signals_to(server):
    asyncio.run(serve(server, worker, bound))


@contextlib.contextmanager
def _signals_to(server: Server) -> Iterator[None]:
  """Signals stop the server, also before uvicorn takes them over.

  At its end uvicorn raises those that it took once more, which does nothing.
  """
  numbers = (signal.SIGTERM, signal.SIGINT)
  old = [signal.signal(number, server.handle_exit) for number in numbers]
  try:
    yield
  finally:
    for number, handler in zip(numbers, old, strict=True):
      signal.signal(number, handler)
