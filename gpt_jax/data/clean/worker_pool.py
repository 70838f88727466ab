# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processes that make the shards of `run`."""

import collections
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import NamedTuple

from gpt_jax.data import workers
from gpt_jax.data.clean import grouping, shards
from gpt_jax.data.clean.shards import Phase
from gpt_jax.data.clean.steps import Document


class Task(NamedTuple):
  """What a worker makes a shard of."""

  phase: int
  number: int
  key: str
  documents: list[Document] | None  # None: those of the phase before
  num_bytes: int
  first: int = 0  # place of the first of those
  stop: int = 0  # after that of the last


class WorkerPool:
  """Makes shards, in this process or in others."""

  def __init__(self, phases: list[Phase], folder: str, num_workers: int):
    """No process is started before one is needed."""
    self._args = phases, folder
    self._num_workers = num_workers
    self._pool = None
    _start(*self._args)  # for what is done in this process

  def made(self, tasks: Iterator[Task]) -> Iterator[Task]:
    """Makes the shards that are not done; yields their tasks, in order."""
    waiting: collections.deque[tuple[Task, Future | None]]
    waiting = collections.deque()
    some = [*itertools.islice(tasks, 2)]
    alone = self._num_workers == 1 or len(some) < 2
    for task in itertools.chain(some, tasks):
      noted = shards.done(phase_folder(self._args[1], task.phase), task.number)
      future = None
      if noted is None or noted['key'] != task.key:
        if alone:
          _make(task)
        else:
          future = self._others().submit(_make, task)
      waiting.append((task._replace(documents=None), future))
      if len(waiting) > 2 * self._num_workers:
        yield _result(*waiting.popleft())
    while waiting:
      yield _result(*waiting.popleft())

  def _others(self) -> ProcessPoolExecutor:
    if self._pool is None:
      self._pool = workers.pool(self._num_workers, _start, *self._args)
    return self._pool

  def close(self):
    """Ends the processes."""
    if self._pool:
      self._pool.shutdown(cancel_futures=True)


def phase_folder(folder: str, number: int) -> str:
  """The folder of a phase."""
  return os.path.join(folder, f'{number}')


def _result(task: Task, future: Future | None) -> Task:
  if future is not None:
    future.result()  # raises what the worker raised
  return task


_phases: list[Phase]  # of a worker
_folder: str


def _start(phases: list[Phase], folder: str):
  global _phases, _folder
  _phases, _folder = phases, folder


def _make(task: Task):
  phase, folder = _phases[task.phase], phase_folder(_folder, task.phase)
  documents, findings = task.documents, grouping.NONE
  if documents is None:
    before = phase_folder(_folder, task.phase - 1)
    documents = shards.read(before, task.number)
    findings = grouping.findings(before, task.first, task.stop)
  shards.write(phase, documents, findings, folder, task.number, task.key)
