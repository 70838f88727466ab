# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the server: its socket, connections, the engine's thread, the end.

On SIGTERM or SIGINT it accepts no more connections, lets open requests finish
within `drain_seconds`, answers the rest with an error, and returns. It does not
wait for clients that do not read their answer.
"""

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.serving.errors import ApiError
from gpt_jax.serving.worker import Worker

# Connections: those of uvicorn, with limits on their number and waits.
#
# Uvicorn limits the size of a header and the idle time after an answer. But it
# waits forever for the first header, for the rest of a header, for the rest of
# a body that nobody reads, and for a client that does not read its answer. Here
# each of these waits has a limit.

# A client that reads its answer more slowly than this is given up.
_LEAST_BYTES_PER_SECOND = 1000

# Open files of a server besides its connections, with some to spare.
_OTHER_FILES = 128


# What a connection waits for: a header; a body, with the application, which has
# a limit of its own; the rest of a body that was answered early; a request.
_Wait = Literal['header', 'body', 'rest', 'idle']

# A client that has not read its answer for so long counts as waited for.
_UNREAD_SECONDS = 1


class ConnectionLimits(NamedTuple):
  """Limits on the number of connections and on their waits.

  Attributes:
    connections: open at a time.
    header_seconds: for a whole header, from its beginning or the connection's.
    body_seconds: for a whole body, and for the rest of a body that was answered
      early.
    idle_seconds: between an answer and the next request. Longer than clients
      keep connections, which is 5 s for OpenAI's.
    write_seconds: for a client to read some of its answer.
  """

  connections: int = 512
  header_seconds: float = 10
  body_seconds: float = 30
  idle_seconds: float = 60
  write_seconds: float = 30


def reserve_files(limits: ConnectionLimits) -> None:
  """Raises the limit on open files to the number of connections."""
  needed = limits.connections + _OTHER_FILES
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft == resource.RLIM_INFINITY or soft >= needed:
    return
  if hard != resource.RLIM_INFINITY and hard < needed:
    raise UsageError(
      f'--max_connections={limits.connections}: each is an open file, and this '
      f'process may have {hard:,}; give at most {hard - _OTHER_FILES:,}, or '
      'raise the limit (ulimit -n)'
    )
  resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Connection(H11Protocol):
  """A connection with limits."""

  def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any):
    """The arguments are those of uvicorn, and the limits."""
    super().__init__(*args, **kwargs)
    self._limits = limits
    # When the server began to wait for the client; None while it works.
    self._waiting_since: float | None = None
    self._unread_since: float | None = None
    self._waits_for: _Wait | None = None
    self._read_timer: asyncio.TimerHandle | None = None
    self._write_timer: asyncio.TimerHandle | None = None
    self._num_unsent = 0

  @property
  def is_stuck(self) -> bool:
    """Whether the client has not read all it was sent."""
    return self._write_timer is not None

  def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore
    """Starts to wait for a request."""
    super().connection_made(transport)
    # `pause_writing` and `resume_writing` are called for any unsent data.
    transport.set_write_buffer_limits(0)
    if len(self.connections) > self._limits.connections:
      self._make_room()
    if not transport.is_closing():
      self._wait('header')

  def data_received(self, data: bytes) -> None:
    """Receives a part of a request."""
    super().data_received(data)
    self._watch()

  def on_response_complete(self) -> None:
    """Waits for the next request."""
    super().on_response_complete()
    self._watch()

  def connection_lost(self, exc: Exception | None) -> None:
    """Stops waiting."""
    super().connection_lost(exc)
    self._stop_waiting()
    self._stop_writing()

  def pause_writing(self) -> None:
    """Starts to wait for the client to read."""
    super().pause_writing()
    self._unread_since = self.loop.time()
    self._wait_for_reader()

  def resume_writing(self) -> None:
    """Stops waiting: the client has read everything."""
    super().resume_writing()
    self._stop_writing()

  def send_400_response(self, msg: str) -> None:
    """Answers data that is not HTTP."""
    self._refuse(ApiError(400, msg))

  def _watch(self) -> None:
    """Waits for the client unless the server is at work."""
    answered = self.cycle is None or self.cycle.response_complete
    awaits_body = self.conn.their_state is h11.SEND_BODY
    if self.transport.is_closing() or not (answered or awaits_body):
      self._stop_waiting()
      return
    received, _ = self.conn.trailing_data
    waits_for: _Wait = 'idle'
    if not answered:
      waits_for = 'body'
    elif self.conn.their_state is not h11.IDLE:
      waits_for = 'rest'
    elif received:
      waits_for = 'header'
    # Data that arrives bit by bit does not prolong the wait.
    if waits_for != self._waits_for:
      self._wait(waits_for)

  def _wait(self, waits_for: _Wait) -> None:
    self._stop_waiting()
    self._waits_for, self._waiting_since = waits_for, self.loop.time()
    if waits_for == 'body':
      return
    seconds = {
      'header': self._limits.header_seconds,
      'rest': self._limits.body_seconds,
      'idle': self._limits.idle_seconds,
    }[waits_for]
    self._read_timer = self.loop.call_later(seconds, self.transport.close)

  def _stop_waiting(self) -> None:
    self._waits_for = self._waiting_since = None
    if self._read_timer:
      self._read_timer.cancel()

  def _wait_for_reader(self) -> None:
    self._num_unsent = self.transport.get_write_buffer_size()
    self._write_timer = self.loop.call_later(self._limits.write_seconds, self._check_reader)

  def _check_reader(self) -> None:
    """Aborts if the client has read next to nothing."""
    num_read = self._num_unsent - self.transport.get_write_buffer_size()
    if num_read < _LEAST_BYTES_PER_SECOND * self._limits.write_seconds:
      self.transport.abort()
    else:
      self._wait_for_reader()

  def _stop_writing(self) -> None:
    if self._write_timer:
      self._write_timer.cancel()
    self._write_timer = self._unread_since = None

  def _awaited_since(self) -> float | None:
    """Since when the server waits for the client; None: it does not."""
    since = self._unread_since
    if since is not None and self.loop.time() - since >= _UNREAD_SECONDS:
      return since
    return self._waiting_since

  def _make_room(self) -> None:
    """Closes the connection that is awaited for longest, or else this one.

    So clients that only hold connections open, whether they send nothing, half
    a header or body, or do not read, keep nobody out.
    """
    awaited = [
      (since, connection)
      for connection in self.connections
      if isinstance(connection, Connection) and (since := connection._awaited_since()) is not None
    ]
    if awaited:
      _, longest = min(awaited, key=lambda pair: pair[0])
      longest._stop_waiting()
      longest._stop_writing()
      longest.transport.abort()
    else:
      self._refuse(
        ApiError(
          503,
          f'{self._limits.connections:,} connections are open, and this '
          'server takes no more; try again in a moment',
          code='too_many_connections',
          retry_after=1,
        )
      )

  def _refuse(self, error: ApiError) -> None:
    """Answers with an error, unless an answer has begun, and closes."""
    if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
      response = error.response()
      headers = [*response.raw_headers, (b'connection', b'close')]
      for event in (
        h11.Response(status_code=error.status, headers=headers),
        h11.Data(data=bytes(response.body)),
        h11.EndOfMessage(),
      ):
        self.transport.write(self.conn.send(event) or b'')
    if self.cycle is not None:
      # The application sends nothing more.
      self.cycle.disconnected = True
      self.cycle.message_event.set()
    self.transport.close()


# How long to wait for the engine's last step when all else has ended.
_STEP_SECONDS = 2


def bind(host: str, port: int) -> socket.socket:
  """Binds an address, without listening yet; port 0: any free one."""
  try:
    try:
      found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as e:  # of the encoding that names of hosts have
      raise OSError('is not the name of a host') from e
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
    raise _unusable(host, port, e) from e


def _unusable(host: str, port: int, error: OSError) -> UsageError:
  return UsageError(
    f'--host={host} --port={port}: {(error.strerror or str(error)).lower()}; '
    'give another address, or --port=0 for any free port'
  )


def url(bound: socket.socket) -> str:
  """The URL of a bound socket."""
  host, port = bound.getsockname()[:2]
  return f'http://[{host}]:{port}' if ':' in host else f'http://{host}:{port}'


class LoggingServer(uvicorn.Server):
  """Uvicorn with our log, a callback at the start, and another end."""

  def __init__(
    self,
    app: ASGIApp,
    *,
    drain_seconds: int,
    limits: ConnectionLimits,
    started: Callable[[], None] = lambda: None,
  ):
    """`started` is called when requests are accepted."""
    # Uvicorn's warnings go to our log alone: absl's handler at the root would
    # print them a second time.
    theirs = logging.getLogger('uvicorn')
    theirs.handlers[:], theirs.propagate = log.handlers, False
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
    """Starts to listen."""
    try:
      await super().startup(sockets)
    except OSError as e:
      # Another server has begun to listen since `bind`.
      assert sockets is not None
      host, port = sockets[0].getsockname()[:2]
      raise _unusable(host, port, e) from e
    self._on_start()

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """Ends all connections."""
    seconds = self.config.timeout_graceful_shutdown
    log.info('stopping; open requests have %s s', seconds)
    # From Python 3.12 on it waits for connections even after a second Ctrl-C.
    ending = asyncio.create_task(super().shutdown(sockets))
    while not (ending.done() or self.force_exit):
      await asyncio.sleep(0.1)
    # Tasks that have not ended are cancelled by now, unless by a second Ctrl-C,
    # and answer their clients: see `Guard`. Nothing more can be sent to clients
    # that do not read.
    if self.force_exit:
      for task in self.server_state.tasks:
        task.cancel()
    self._abort(only_stuck=True)
    await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
    while self.server_state.connections:
      self._abort(only_stuck=False)
      await asyncio.sleep(0)
    await ending

  def _abort(self, *, only_stuck: bool) -> None:
    """Aborts connections."""
    for connection in self.server_state.connections:
      assert isinstance(connection, Connection)
      if connection.is_stuck or not only_stuck:
        connection.transport.abort()


async def serve(server: LoggingServer, worker: Worker, bound: socket.socket) -> None:
  """Serves until the server is told to stop.

  Raises:
    RuntimeError: the server ended because the engine's thread did.
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
      log.warning('a model is still in a step, which is given up')
      atexit.register(_leave, worker)


def _leave(worker: Worker) -> None:
  """Ends the process at once if a model is still in a step.

  Python's own exit would tear the libraries down under its thread.
  """
  if worker.is_running:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(server: LoggingServer, worker: Worker, bound: socket.socket) -> None:
  """Serves until a signal; on the main thread."""
  with _signals_to(server):
    asyncio.run(serve(server, worker, bound))


@contextlib.contextmanager
def _signals_to(server: LoggingServer) -> Iterator[None]:
  """Lets signals stop the server, also before uvicorn handles them.

  At its end uvicorn raises the signals that it handled again, to no effect.
  """
  numbers = (signal.SIGTERM, signal.SIGINT)
  old = [signal.signal(number, server.handle_exit) for number in numbers]
  try:
    yield
  finally:
    for number, handler in zip(numbers, old, strict=True):
      signal.signal(number, handler)
