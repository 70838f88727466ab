# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Worker processes, which end when this one does."""

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')


def count(given: int | None) -> int:
  """The number of workers; by default that of the cores we may use."""
  return given or len(os.sched_getaffinity(0))


def pool(
  num_workers: int, initializer: Callable, *args: Any
) -> concurrent.futures.ProcessPoolExecutor:
  """Starts processes, each of which calls `initializer(*args)` first."""
  return concurrent.futures.ProcessPoolExecutor(
    num_workers,
    multiprocessing.get_context('spawn'),  # forking breaks threads
    initializer=_start,
    initargs=(initializer, *args),
  )


def in_order(
  started: Iterator[tuple[_Item, Future[_Result]]], ahead: int
) -> Iterator[tuple[_Item, _Result]]:
  """Yields items with their results, in the order in which they were started.

  Args:
    started: each step of this iterator starts the work on one item.
    ahead: how many items are under way at most.
  """
  waiting = collections.deque()
  for item, future in started:
    waiting.append((item, future))
    if len(waiting) > ahead:
      item, future = waiting.popleft()
      yield item, future.result()
  while waiting:
    item, future = waiting.popleft()
    yield item, future.result()


def finished(result: _Result) -> Future[_Result]:
  """A future that is done."""
  future = Future()
  future.set_result(result)
  return future


def _start(initializer: Callable, *args: Any):
  initializer(*args)
  # Ctrl-C is for the process that started us, which then ends us.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
  """Ends a worker whose parent was killed, which would wait forever."""
  parent = multiprocessing.parent_process()
  assert parent is not None
  multiprocessing.connection.wait([parent.sentinel])
  os._exit(1)
