# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The thread that owns the engine, and brings its text to the event loop.

The event loop hands requests over and gets pieces of text back; only the thread
touches the model. Public methods of `Worker` are called from the event loop.
"""

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from gpt_jax.core.runtime.log import log
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.requests import Token
from gpt_jax.decoding.texts import TextPiece, TextStream
from gpt_jax.serving import errors
from gpt_jax.serving.errors import ApiError

T = TypeVar('T')


class Ticket:
  """The rows of one request, from `Worker.open` to `close`."""

  def __init__(self, worker: 'Worker', rows: Sequence[TextStream]):
    """`rows` are all continuations of the request."""
    self.rows = rows
    self.unfinished = len(rows)
    self._worker = worker
    # None if the engine failed.
    self._pieces: asyncio.Queue[TextPiece | None] = asyncio.Queue()

  def put(self, piece: TextPiece) -> None:
    """Takes a piece from the thread."""
    self.unfinished -= piece.finish is not None
    self._pieces.put_nowait(piece)

  def fail(self) -> None:
    """Ends the ticket with an error, unless it is complete."""
    if self.unfinished:
      self._pieces.put_nowait(None)

  async def pieces(self) -> AsyncIterator[TextPiece]:
    """Yields the pieces of all rows as they arrive.

    Raises:
      ApiError: the engine failed.
    """
    while self.unfinished or not self._pieces.empty():
      piece = await self._pieces.get()
      if piece is None:
        raise errors.internal()
      yield piece

  async def aside(self, work: Callable[[], T]) -> T:
    """See `Worker.aside`."""
    return await self._worker.aside(work)

  def close(self) -> None:
    """Cancels unfinished rows; may be called again."""
    self._worker.release(self)


class _Running(NamedTuple):
  """A row of the engine."""

  ticket: Ticket
  row: int
  stream: TextStream


class Worker:
  """Runs an engine on a thread of its own."""

  def __init__(
    self,
    make_engine: Callable[[], Engine],
    *,
    within: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    max_rows: int,
    log_seconds: float,
  ):
    """Makes the engine; `start` starts the thread.

    Args:
      make_engine: called again if the engine fails.
      within: the context that the engine runs in, such as `sharding.use`.
      max_rows: the most running and waiting rows of all requests.
      log_seconds: of work, after which speed and load are logged.
    """
    self.engine = make_engine()
    self._make_engine = make_engine
    self._within = within
    self.max_rows = max_rows
    self._open: set[Ticket] = set()
    self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    self._running: dict[int, _Running] = {}
    self._meter = _Meter(log_seconds)
    self.alive = True  # until making an engine fails
    self._stopping = False
    # A daemon: the process may end during a step, see `stop`.
    self._thread = threading.Thread(target=self._work, name='engine', daemon=True)
    self._asides: set[threading.Thread] = set()

  def start(self, lost: Callable[[], None] = lambda: None) -> None:
    """Starts the thread for the running event loop.

    Args:
      lost: called on the event loop if the thread ends without `stop`: nothing
        more can be answered.
    """
    self._loop = asyncio.get_running_loop()
    self._lost = lost
    self._thread.start()

  @property
  def is_running(self) -> bool:
    """Whether a thread is alive: the engine's, or one `aside`."""
    return any(x.is_alive() for x in (self._thread, *self._asides))

  async def aside(self, work: Callable[[], T]) -> T:
    """Runs `work`, such as another model's, on a thread beside the engine.

    Unlike `asyncio.to_thread`, a server that stops does not wait for its end.
    """
    result: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
      try:
        result.set_result(work())
      except BaseException as e:  # panics of native code are no `Exception`s
        result.set_exception(e)
      self._asides.discard(thread)

    thread = threading.Thread(target=run, name='aside', daemon=True)
    self._asides.add(thread)
    result.set_running_or_notify_cancel()  # nothing cancels it any more
    thread.start()
    return await asyncio.wrap_future(result)

  def stop(self, seconds: float) -> None:
    """Ends the threads after a step; waits for at most `seconds`.

    A step that compiles may take minutes.
    """
    self._stopping = True
    self._inbox.put(None)
    end = time.monotonic() + seconds
    for thread in (self._thread, *self._asides):
      thread.join(max(end - time.monotonic(), 0))

  def check_room(self, num_rows: int) -> None:
    """Checks that more rows may be queued.

    Raises:
      ApiError: not now, or never.
    """
    if not self.alive:
      raise errors.internal()
    if num_rows > self.max_rows:
      raise ApiError(
        400,
        f'asks for {num_rows:,} continuations at once (prompts times n), and '
        f'this server takes {self.max_rows:,}; send fewer',
      )
    taken = sum(ticket.unfinished for ticket in self._open)
    if taken + num_rows > self.max_rows:
      raise ApiError(
        429,
        f'{taken:,} continuations are running or waiting, and this server '
        f'takes {self.max_rows:,}; try again in a moment',
        code='queue_full',
        retry_after=1,
      )

  def open(self, rows: Sequence[TextStream]) -> Ticket:
    """Queues the rows of a request; the ticket must be closed.

    Raises:
      ApiError: as `check_room` does.
    """
    self.check_room(len(rows))
    ticket = Ticket(self, rows)
    self._open.add(ticket)
    self._inbox.put(lambda: self._add(ticket))
    return ticket

  def release(self, ticket: Ticket) -> None:
    """Removes a ticket, and cancels its unfinished rows."""
    self._open.discard(ticket)
    if ticket.unfinished:
      self._inbox.put(lambda: self._cancel(ticket))

  def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
    """Calls on the event loop, which may be closed after `stop`."""
    if not self._stopping:
      self._loop.call_soon_threadsafe(call, *args)

  def _deliver(self, made: list[tuple[Ticket, TextPiece]]) -> None:
    for ticket, piece in made:
      if ticket in self._open:
        ticket.put(piece)

  def _fail_open(self) -> None:
    for ticket in self._open:
      ticket.fail()

  # Panics of native code, such as a tokenizer's, are no `Exception`s. So the
  # thread catches everything: otherwise it would end silently.

  def _work(self) -> None:
    """The thread."""
    try:
      with self._within():
        self._run()
    except BaseException:
      log.exception('no engine can be made any more; the server ends')
      self.alive = False  # first: later tickets are refused
      self._on_loop(self._fail_open)
      self._on_loop(self._lost)

  def _run(self) -> None:
    """Runs until `stop`; a failure ends only the open tickets."""
    while True:
      try:
        command = self._inbox.get(block=not self._running)
        if command is None:
          return
        action = command
      except queue.Empty:
        action = self._step
      try:
        action()
      except BaseException:
        log.exception('the engine failed; open requests are answered with 500')
        self._running.clear()
        self._on_loop(self._fail_open)
        self.engine = self._make_engine()

  def _step(self) -> None:
    """Draws a token of each running row."""
    start = time.monotonic()
    made, failed = [], []
    for token in self.engine.step():
      running = self._running.get(token.request)
      if running is None:
        continue
      try:
        made.append(self._take(token))
      except BaseException:
        failed.append(running.ticket)
        self._give_up(running.ticket)
    if made:
      self._on_loop(self._deliver, made)
    for ticket in failed:
      self._on_loop(ticket.fail)
    tokens = sum(piece.tokens for _, piece in made)
    self._meter.count(tokens, time.monotonic() - start, self.engine)

  def _take(self, token: Token) -> tuple[Ticket, TextPiece]:
    """Turns a token into text; ends the row at a stop text."""
    ticket, row, stream = self._running[token.request]
    text, finish = stream.take(token)
    if finish:
      self.engine.cancel(token.request)
      del self._running[token.request]
    scores = [*token.prompt, *([token.logprobs] if token.logprobs else ())]
    drawn = int(token.id is not None)
    return ticket, TextPiece(row, text, drawn, finish, scores)

  def _give_up(self, ticket: Ticket) -> None:
    log.exception('a request failed; it alone is answered with 500')
    self._cancel(ticket)

  def _add(self, ticket: Ticket) -> None:
    try:
      for i, stream in enumerate(ticket.rows):
        number = self.engine.add(stream.request)
        self._running[number] = _Running(ticket, i, stream)
    except BaseException:
      self._give_up(ticket)
      self._on_loop(ticket.fail)

  def _cancel(self, ticket: Ticket) -> None:
    for number, row in [*self._running.items()]:
      if row.ticket is ticket:
        del self._running[number]
        self.engine.cancel(number)


class _Meter:
  """Logs speed and load."""

  def __init__(self, every: float):
    """Logs after every `every` seconds of work."""
    self._every = every
    self._tokens = 0
    self._seconds = 0.0

  def count(self, tokens: int, seconds: float, engine: Engine) -> None:
    """Counts the tokens and seconds of a step."""
    self._tokens += tokens
    self._seconds += seconds
    if self._seconds >= self._every:
      rate = self._tokens / self._seconds
      load = (engine.num_running, engine.num_waiting)
      log.info('%.1f tokens/s, %d running, %d waiting', rate, *load)
      self._tokens, self._seconds = 0, 0.0
