# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several hosts, one process on each, that start, stop and fail together.

Apart from arrays, they communicate through the key-value store of JAX's
coordination service, which runs in process 0.
"""

import atexit
import contextlib
import hmac
import itertools
import json
import os
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.core.runtime import jax_internals, preemption
from gpt_jax.core.runtime.log import log, program, say
from gpt_jax.core.spec import UsageError

# Roll call: checks that all processes of a job run before JAX connects them.
#
# JAX's own timeout ends in an abort that does not say which one is missing. So
# process 0 first listens on the coordinator's port itself, until all processes
# have called or the time is up, and sends everyone the result. Then JAX takes
# over the port.


# Whoever reaches the port could say that it is process 1. With a secret of the
# job in the environment, both sides prove that they know it: process 0 greets
# each caller with a random number, which is signed with the call, and signs the
# result for the caller's name. Without one anybody can sign.


# Starts each line of both sides, to tell our processes from other programs.
_HELLO = 'gpt_jax roll call'
_GREETING = re.compile(rf'{_HELLO}: ([0-9a-f]{{32}})\n')
_CALL = re.compile(rf'{_HELLO}: (\d{{1,9}}) of (\d{{1,9}}) by ([0-9a-f]{{16}}) ([0-9a-f]{{64}})')
_GO = 'go'
# The environment variable that holds the secret, the same on every host.
SECRET = 'GPT_JAX_JOB_SECRET'
# Seconds in which a caller must identify itself; other programs do not.
_PATIENCE = 5.0
# The longest line, and the most connections without identification.
_LONGEST, _MOST_SILENT = 4096, 256


def call(address: str, *, count: int, index: int, seconds: float) -> None:
  """Returns when all processes have called in.

  Args:
    address: host and port of process 0, as given to JAX.
    count: number of processes.
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
    _report(host.strip('[]'), int(port), count=count, index=index, seconds=seconds)


def _signed(*parts: object) -> str:
  """A proof that whoever says this knows the secret of the job."""
  key = os.environ.get(SECRET, '').encode()
  text = ' '.join(map(str, parts)).encode()
  return hmac.digest(key, text, 'sha256').hex()


class _Silent(NamedTuple):
  """A connection that has not identified its process yet."""

  until: float
  greeting: str
  heard: bytes = b''


class _Called(NamedTuple):
  """A connection from a known process."""

  index: int
  name: str


class _Listener:
  """Process 0's side: serves all connections at once, so that none blocks."""

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
    """Accepts calls until all processes have called or the time is up.

    Raises:
      RuntimeError: processes share an index, or disagree on the count.
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
    """Sends the verdict to all processes that called."""
    for caller, called in self._called.items():
      proof = _signed(called.name, verdict)
      with contextlib.suppress(OSError):  # it has ended: JAX will notice
        caller.settimeout(_PATIENCE)
        caller.sendall(f'{_HELLO}: {proof} {verdict}\n'.encode())

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
    silent = _Silent(time.monotonic() + _PATIENCE, os.urandom(16).hex())
    self._silent[caller] = silent
    self._selector.register(caller, selectors.EVENT_READ)
    with contextlib.suppress(OSError):  # it went away, which `_read` notices
      caller.send(f'{_HELLO}: {silent.greeting}\n'.encode())

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
    call = _CALL.fullmatch(line.decode('ascii', 'replace'))
    if not call:
      self._drop(caller)
      return
    index, count, name = int(call[1]), int(call[2]), call[3]
    proof = _signed(self._silent[caller].greeting, index, count, name)
    if not hmac.compare_digest(proof, call[4]):
      log.warning(
        'a caller that says it is process %d does not know the secret of this '
        'job, and is ignored; give all processes the same %s',
        index,
        SECRET,
      )
      self._drop(caller)
      return
    for old, called in [*self._called.items()]:
      # A process whose connection broke calls again with the same name.
      if called.index == index and called.name == name:
        self._drop(old)
    self._check(index, count)
    del self._silent[caller]
    self._called[caller] = _Called(index, name)

  def _check(self, index: int, count: int) -> None:
    if count != self._count:
      raise RuntimeError(
        f'a process joined as number {index} of {count}, but there are '
        f'{self._count}; give all the same JAX_NUM_PROCESSES'
      )
    if index in self.missing:
      return
    valid = 0 < index < count
    raise RuntimeError(
      f'a process joined as number {index} of {count}, which is '
      + ('taken' if valid else 'not one of them')
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
  with socket.create_server(('', port), family=family, dualstack_ipv6=both) as server:
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


def _report(host: str, port: int, *, count: int, index: int, seconds: float) -> None:
  deadline = time.monotonic() + seconds
  name = os.urandom(8).hex()
  while True:
    said, greeting = b'', None
    # Process 0 may not listen yet, or no longer, or it is another program.
    with (
      contextlib.suppress(OSError),
      socket.create_connection((host, port), timeout=_PATIENCE) as server,
    ):
      lines = server.makefile('rb')
      greeting = _GREETING.fullmatch(lines.readline(_LONGEST).decode('latin-1'))
      if greeting:
        proof = _signed(greeting[1], index, count, name)
        call = f'{_HELLO}: {index} of {count} by {name} {proof}\n'
        server.sendall(call.encode())
        server.settimeout(max(deadline - time.monotonic(), 0) + 2 * _PATIENCE)
        said = lines.readline(_LONGEST)
    hello, _, told = said.decode('utf-8', 'replace').partition(': ')
    proof, _, verdict = told.partition(' ')
    if hello == _HELLO and verdict.endswith('\n'):
      verdict = verdict.strip()
      if hmac.compare_digest(proof.encode(), _signed(name, verdict).encode()):
        break
    if time.monotonic() > deadline:
      problem = f'process 0 does not answer at {host}:{port}'
      if greeting:
        problem = f'process 0 drops our calls; {SECRET} may differ'
      raise RuntimeError(_late(problem, seconds))
    time.sleep(0.1)
  if verdict != _GO:
    raise RuntimeError(_late(verdict, seconds))


def _saw(missing: list[int], count: int) -> str:
  names = ', '.join(f'process {i}' for i in missing)
  return f'saw {count - len(missing)} of {count} processes; missing: {names}'


def _late(what: str, seconds: float) -> str:
  said = f'{what}, after hosts.join_seconds={seconds:g}; start the same command on every host'
  if 'JAX_NUM_PROCESSES' in os.environ:  # a TPU slice needs all of its hosts
    said += ', or on those that are there, with a smaller JAX_NUM_PROCESSES'
  return said


T = TypeVar('T')

_FAILED = 'gpt_jax/failed'
_ENDED = 'gpt_jax/ended'
_GONE = 'gpt_jax/gone'
# Key under which the service records that a process received SIGTERM.
_NOTICE = 'RECEIVED_PREEMPTION_NOTICE'
# Seconds that process 0, which runs the service, waits for others to leave.
_LINGER = 5.0


def initialize(*, join_seconds: float, heartbeat_seconds: int) -> None:
  """Joins the other hosts; call it before creating any array.

  On Cloud TPU JAX finds the hosts itself. Elsewhere it reads
  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

  Args:
    join_seconds: how long to wait for the last process.
    heartbeat_seconds: a process that is silent for longer counts as dead, and
      all others exit.

  Raises:
    UsageError: the other hosts are not configured.
    RuntimeError: some processes have not joined; names them.
  """
  num, index = (
    int(os.environ[name]) if name in os.environ else None
    for name in ('JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
  )
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  if None in (address, num, index):
    address, num, index = jax_internals.hosts(address, num, index, int(join_seconds))
  if address is None or num is None or index is None:
    raise UsageError(
      '--distributed: no hosts are known; set JAX_COORDINATOR_ADDRESS, '
      'JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave it out'
    )
  call(address, count=num, index=index, seconds=join_seconds)
  jax.distributed.initialize(
    address,
    num,
    index,
    initialization_timeout=int(join_seconds),
    heartbeat_timeout_seconds=heartbeat_seconds,
  )
  if num > 1:
    preemption.use_distributed()
    thread = threading.Thread(target=_watch, daemon=True)
    thread.start()
    # Runs before JAX's own handler: the last one registered runs first.
    atexit.register(_end_together, thread)


@contextlib.contextmanager
def together() -> Iterator[None]:
  """If this process fails, ends the others instead of letting them wait.

  They exit within seconds, with code 1 and this one's reason. JAX makes all
  processes wait for each other at exit; a failed process skips that.
  """
  try:
    yield
  except preemption.Preempted:
    raise
  except BaseException as e:
    if _client() is not None and jax_internals.num_processes() > 1:
      code = 2 if isinstance(e, UsageError) else 1
      _leaving.set()
      reason = ' '.join(str(e).split())[:500]
      with contextlib.suppress(RuntimeError):  # the service may have ended
        _client().key_value_set(f'{_FAILED}/{index()}', f'{type(e).__name__}: {reason}')
      atexit.register(_leave, code)
    raise


def first_process_first(function: Callable[[], T], name: str) -> T:
  """Runs `function` on process 0, and then on the others.

  The others then see the files that process 0 wrote to shared storage. They
  wait as long as it takes; `together` handles its failure.
  """
  if jax.process_count() == 1:
    return function()
  key = f'gpt_jax/done/{name}'
  if jax.process_index() == 0:
    result = function()
    _client().key_value_set(key, 'yes')
    return result
  while not _get(key):
    time.sleep(0.2)
  return function()


def broadcast_from_host0(value: T) -> T:
  """Returns the `value` of process 0 on every process; JSON types only.

  For decisions based on files, of which other hosts may see an older version.
  Every process must call it the same number of times.
  """
  if jax.process_count() == 1:
    return value
  key = f'gpt_jax/said/{next(_said)}'
  if jax.process_index() == 0:
    _client().key_value_set(key, json.dumps(value))
    return value
  while (said := _get(key)) is None:
    time.sleep(0.05)
  return json.loads(said)


def all_agree(yes: bool) -> bool:
  """Whether `yes` holds on every process, so that all take the same branch."""
  if jax.process_count() == 1:
    return yes
  return bool(np.all(multihost_utils.process_allgather(np.array(yes))))


def gather(value: T) -> list[T]:
  """The `value` of every process, in their order; JSON types only.

  A collective of the devices, so that thousands of processes do not all read
  from process 0.
  """
  if jax.process_count() == 1:
    return [value]
  text = json.dumps(value).encode()
  sizes = multihost_utils.process_allgather(np.array(len(text)))
  # A power of 2, since each size is compiled anew.
  padded = np.zeros(1 << int(max(sizes)).bit_length(), np.uint8)
  padded[: len(text)] = np.frombuffer(text, np.uint8)
  rows = multihost_utils.process_allgather(padded)
  return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def index() -> int:
  """Index of this process; does not initialise the devices."""
  return jax_internals.process_index()


_leaving = threading.Event()
_said = itertools.count()


def _client() -> Any:
  return jax_internals.client()


def _get(key: str) -> str | None:
  try:
    return _client().key_value_try_get(key)
  except RuntimeError as e:
    if 'NOT_FOUND' in str(e):
      return None
    raise


def _watch() -> None:
  """Ends this process when another one fails or receives SIGTERM."""
  noticed = False
  while not _leaving.wait(0.5):
    try:
      failed = _client().key_value_dir_get(_FAILED)
      if not noticed and _get(_NOTICE) is not None:
        noticed = True
        preemption.ask(_say_gone)
    except (AttributeError, RuntimeError):
      return  # the run has ended, or JAX ends the process
    if failed and not _leaving.wait(2):  # or it fails by itself in the meantime
      process, reason = failed[0]
      number = process.rpartition('/')[2]
      say(f'{program()}: failed: process {number} failed: {reason}')
      _leave(1)


def _end_together(watch: threading.Thread) -> None:
  """Waits until every process is about to exit, still watching for failures.

  At JAX's own barrier, which comes next, the watch is over: a process that
  fails there would abort the others without a reason.
  """
  with contextlib.suppress(RuntimeError):  # the service has ended
    _client().key_value_set(f'{_ENDED}/{index()}', 'yes')
    count = jax_internals.num_processes()
    while watch.is_alive() and len(_client().key_value_dir_get(_ENDED)) < count:
      time.sleep(0.05)
  _leaving.set()
  watch.join()


def _leave(code: int) -> None:
  """Ends the process without waiting for the others."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError):  # nothing may read it any more
      stream.flush()
  with contextlib.suppress(RuntimeError):
    _say_gone()
  os._exit(code)


def _say_gone() -> None:
  """Lets process 0 leave last: JAX aborts whoever outlives its service."""
  if index() != 0:
    _client().key_value_set(f'{_GONE}/{index()}', 'yes', allow_overwrite=True)
    return
  deadline = time.monotonic() + _LINGER
  others = jax_internals.num_processes() - 1
  while time.monotonic() < deadline:
    if len(_client().key_value_dir_get(_GONE)) >= others:
      time.sleep(0.2)  # between their notice and their exit
      return
    time.sleep(0.1)
