# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several hosts, one process on each: they start, stop and fail together.

Besides arrays, they communicate through the key-value store of JAX's
coordination service, which runs in process 0.
"""

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import clusters
from jax._src import distributed as jax_distributed
from jax.experimental import multihost_utils

from gpt_jax.runtime import preemption, roll_call
from gpt_jax.runtime.log import program, say
from gpt_jax.spec import UsageError

T = TypeVar('T')

_FAILED = 'gpt_jax/failed'
_GONE = 'gpt_jax/gone'
# Key under which the service records that a process received SIGTERM.
_NOTICE = 'RECEIVED_PREEMPTION_NOTICE'
# How long process 0, and the service with it, waits for the others to leave.
_LINGER = 5.0


def initialize(*, join_seconds: float, heartbeat_seconds: int) -> None:
  """Joins the other hosts; call it before creating any array.

  On Cloud TPU JAX finds the hosts itself. Elsewhere it reads
  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

  Args:
    join_seconds: how long to wait for the last process.
    heartbeat_seconds: a process that is silent for longer counts as dead, and
      all others end.

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
    find = clusters.ClusterEnv.auto_detect_unset_distributed_params
    address, num, index, _ = find(
      address, num, index, None, None, int(join_seconds)
    )
  if address is None or num is None or index is None:
    raise UsageError(
      '--distributed: no hosts are known; set JAX_COORDINATOR_ADDRESS, '
      'JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave it out'
    )
  roll_call.call(address, count=num, index=index, seconds=join_seconds)
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
    atexit.register(lambda: (_leaving.set(), thread.join()))


@contextlib.contextmanager
def together() -> Iterator[None]:
  """If this process fails, ends the others instead of letting them wait.

  They end within seconds, with exit code 1 and this one's reason. JAX makes all
  processes wait for each other at exit; a failed one skips that.
  """
  try:
    yield
  except preemption.Preempted:
    raise
  except BaseException as e:
    if _client() is not None and jax_distributed.global_state.num_processes > 1:
      code = 2 if isinstance(e, UsageError) else 1
      _leaving.set()
      reason = ' '.join(str(e).split())[:500]
      with contextlib.suppress(RuntimeError):  # the service may have ended
        _client().key_value_set(
          f'{_FAILED}/{index()}', f'{type(e).__name__}: {reason}'
        )
      atexit.register(_leave, code)
    raise


def first_process_first(function: Callable[[], T], name: str) -> T:
  """Runs `function` on process 0, and then on the others.

  So the others find what process 0 wrote to shared storage. They wait for as
  long as it takes; `together` handles its failure.
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


def index() -> int:
  """Index of this process; does not initialise the devices."""
  return jax_distributed.global_state.process_id


_leaving = threading.Event()
_said = itertools.count()


def _client() -> Any:
  return jax_distributed.global_state.client


def _get(key: str) -> str | None:
  try:
    return _client().key_value_try_get(key)
  except RuntimeError as e:
    if 'NOT_FOUND' in str(e):
      return None
    raise


def _watch() -> None:
  """Ends this process when another one fails or is told to end."""
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
  others = jax_distributed.global_state.num_processes - 1
  while time.monotonic() < deadline:
    if len(_client().key_value_dir_get(_GONE)) >= others:
      time.sleep(0.2)  # between their notice and their exit
      return
    time.sleep(0.1)
