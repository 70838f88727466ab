# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes a corpus through the steps of cleaning, on the processes of a machine.

This process reads, workers clean shard by shard, and each global step is one
more pass over what is left. It brings the rows of all documents together by
their keys: rows lie on the disk, sorted within each shard, and as many keys are
looked at together as fit into memory; findings are written to the disk. Memory
grows with the corpus only where a step says so.

A process that was killed leaves its shards; the next reads the documents again
to compare them with those, and cleans what is missing.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.files import files, progress, workers
from gpt_jax.files.document import Document as Raw
from gpt_jax.files.document import Source, encoded, utf8_size
from gpt_jax.text.clean import choices, report, shards
from gpt_jax.text.clean.shards import Phase
from gpt_jax.text.clean.steps import (
  PLACES,
  Document,
  Findings,
  Global,
  Sketches,
)

# Rows looked at together: 24 bytes each, and as much again for sorting.
_ROWS = 1 << 22
_SHARD = 1 << 22  # characters

_STATE = 'state.json'

NONE = np.empty((2, 0), np.uint64)


def decide(step: Global, folder: str, num_rows: Sequence[int]) -> str:
  """Writes the findings of a step about the shards of a folder.

  Args:
    step: whose rows the shards hold.
    folder: of the phase that wrote them.
    num_rows: of each shard.

  Returns:
    A hash of the findings.
  """
  for name in os.listdir(folder):
    if name.startswith('findings-'):  # of a process that was killed here
      os.unlink(os.path.join(folder, name))
  sketches = _sketches(step, folder, len(num_rows))
  num_ranges = -(-sum(num_rows) // _ROWS) or 1
  edges = [(i << 64) // num_ranges for i in range(1, num_ranges)]
  tables = [
    np.load(shards.path(folder, i, shards.ROWS), mmap_mode='r')
    for i in range(len(num_rows))
  ]
  cuts = [
    [0, *np.searchsorted(table[0], np.array(edges, np.uint64)), table.shape[1]]
    for table in tables
  ]
  parts = []
  for i in range(num_ranges):
    some = [t[:, c[i] : c[i + 1]] for t, c in zip(tables, cuts, strict=True)]
    rows = np.concatenate([np.empty((3, 0), np.uint64), *some], axis=1)
    rows = rows[:, np.lexsort(rows[::-1])]
    found = step.judge(rows[0], rows[1], rows[2], sketches)
    if step.concludes:
      parts.append(found)
    else:
      _save(folder, i, found)
  if step.concludes:
    num_ranges = 1
    joined = (np.concatenate(column) for column in zip(*parts, strict=True))
    _save(folder, 0, step.conclude(Findings(*joined)))
  digest = hashlib.sha256()
  for i in range(num_ranges):
    with open(_path(folder, i), 'rb') as file:
      digest.update(hashlib.file_digest(file, 'sha256').digest())
  return digest.hexdigest()


def grouped_findings(folder: str, first: int, stop: int) -> np.ndarray:
  """The findings about the places of an interval; uint64 [2, N], sorted."""
  parts, i = [NONE], 0
  while os.path.exists(_path(folder, i)):
    table = np.load(_path(folder, i), mmap_mode='r')
    start, end = np.searchsorted(table[0], np.array([first, stop], np.uint64))
    parts.append(table[:, start:end])
    i += 1
  table = np.concatenate(parts, axis=1)
  return table[:, np.lexsort(table[::-1])]


def _save(folder: str, number: int, found: Findings):
  table = np.stack(found)
  np.save(_path(folder, number), table[:, np.lexsort(table[::-1])])


def _path(folder: str, number: int) -> str:
  return os.path.join(folder, f'findings-{number:05}.npy')


def _sketches(step: Global, folder: str, num_shards: int) -> Sketches:
  """Looks sketches up, which stay on the disk; places are in memory."""
  empty = np.empty((0, step.sketch_size), np.uint32)
  if not step.sketch_size:
    return lambda places: empty
  shard_places = [
    np.load(shards.path(folder, i, shards.PLACES)) for i in range(num_shards)
  ]
  places = np.concatenate([np.empty(0, np.uint64), *shard_places])
  path = os.path.join(folder, 'sketches.npy')
  together = np.lib.format.open_memmap(
    path, 'w+', np.uint32, (len(places), step.sketch_size)
  )
  start = 0
  for i, part in enumerate(shard_places):
    together[start : start + len(part)] = np.load(
      shards.path(folder, i, shards.SKETCHES)
    )
    start += len(part)
  # Shards ascend by place, and so do all together.
  return lambda wanted: together[np.searchsorted(places, wanted)]


class Task(NamedTuple):
  """What a worker makes a shard of."""

  phase: int
  number: int
  key: str
  documents: list[Document] | None  # None: those of the phase before
  num_bytes: int
  first: int = 0  # place of the first of those
  stop: int = 0  # after that of the last


def phase_folder(folder: str, number: int) -> str:
  """The folder of a phase."""
  return os.path.join(folder, f'{number}')


_phases: list[Phase]  # of a worker
_folder: str


def _start(phases: list[Phase], folder: str):
  global _phases, _folder
  _phases, _folder = phases, folder


def _make(task: Task) -> None:
  phase, folder = _phases[task.phase], phase_folder(_folder, task.phase)
  documents, findings = task.documents, NONE
  if documents is None:
    before = phase_folder(_folder, task.phase - 1)
    documents = shards.read(before, task.number)
    findings = grouped_findings(before, task.first, task.stop)
  shards.write(phase, documents, findings, folder, task.number, task.key)


class Cleaned(NamedTuple):
  """A corpus that was cleaned."""

  source: Source  # streams what is left
  entries: list[dict[str, Any]]  # see `report`


def clean(
  corpus: Source,
  text: str,
  folder: str,
  wanted: Any,
  *,
  in_mixture: bool,
  num_workers: int,
  show: progress.Report,
) -> Cleaned:
  """Cleans a corpus, or goes on where an earlier process was.

  Args:
    folder: a local path, for nothing else.
    wanted: all else that the result depends on, as JSON: what an earlier
      process left is used if it is the same.
    in_mixture: whether names begin with a source.
  """
  run = _Run(corpus, text, folder, wanted, num_workers, show)
  run.go(in_mixture)
  state = run.state
  phase, count = state['phase'] - 1, len(state['shards'])

  def documents() -> Iterator[Raw]:
    for number in range(count):
      for document in shards.read(run.path(phase), number):
        yield Raw(document.name, document.text)

  num_bytes = sum(shard['num_bytes'] for shard in state['shards'])
  source = Source(
    *(documents, num_bytes, corpus.files),
    skipped=lambda: dict(state['skipped']),
  )
  return Cleaned(source, state['entries'])


class _Run:
  """The work of `clean`."""

  def __init__(
    self,
    corpus: Source,
    text: str,
    folder: str,
    wanted: Any,
    num_workers: int,
    show: progress.Report,
  ):
    self._corpus, self._folder = corpus, folder
    self._num_workers, self._show = num_workers, show
    self._pool: ProcessPoolExecutor | None = None
    self._steps = choices.load(text)
    self._phases = shards.phases(self._steps)
    wanted = json.loads(json.dumps([text, wanted, choices.versions()]))
    self.state = {
      'wanted': wanted,
      'phase': 0,  # the first that is not done
      'shards': [],  # what was noted of those of the phase before
      'skipped': {},
      'entries': [],
    }
    # What waits here is believed when a process goes on with it.
    files.make_own_folder(folder)
    state = self._read_state()
    if state and state.get('wanted') == wanted:
      self.state = state
    else:
      shutil.rmtree(folder, ignore_errors=True)
      files.make_own_folder(folder)
      self._write_state()

  def path(self, phase: int) -> str:
    """The folder of a phase."""
    return phase_folder(self._folder, phase)

  def go(self, in_mixture: bool):
    """Goes through the phases that are not done."""
    if self.state['phase'] == len(self._phases):
      return
    self._steps = choices.ready(self._steps)
    self._phases = shards.phases(self._steps)
    _start(self._phases, self._folder)  # for what is done in this process
    with contextlib.ExitStack() as stack:
      for number in range(self.state['phase'], len(self._phases)):
        os.makedirs(self.path(number), exist_ok=True)
        tasks = self._again(number) if number else self._first(in_mixture)
        total = self._corpus.num_bytes
        if number:
          total = sum(shard['num_bytes'] for shard in self.state['shards'])
        self._pass(number, self._made(tasks, stack), total)
        if number:
          shutil.rmtree(self.path(number - 1))

  def _pass(self, number: int, made_tasks: Iterator[Task], total: int | None):
    phase, folder = self._phases[number], self.path(number)
    stage = f'cleaning, pass {number + 1} of {len(self._phases)}'
    num_bytes = 0
    made: list[Any] = []
    counts: report.Sums = []
    for task in made_tasks:
      num_bytes += task.num_bytes
      self._show(stage, num_bytes, total)
      noted = shards.done(folder, task.number)
      assert noted is not None
      of_shard = report.sums(task.number, noted.pop('counts'))
      counts = report.merge([counts, of_shard])
      made.append(noted)
    entries = report.entries(phase.names, counts)
    self._name_likes(number, entries)
    if not number:
      self.state['skipped'] = self._corpus.skipped()
    self.state['shards'] = made
    self.state['entries'] += entries
    if phase.last is not None:
      self._show(f'comparing: {phase.last.name}', 0, None)
      rows = [shard['num_rows'] for shard in made]
      self.state['findings'] = decide(phase.last, folder, rows)
    self.state['phase'] = number + 1
    self._write_state()

  def _made(
    self, tasks: Iterator[Task], stack: contextlib.ExitStack
  ) -> Iterator[Task]:
    """Makes the shards that are not done; yields their tasks, in order.

    Processes are started when the first is needed, and end with `stack`.
    """
    some = [*itertools.islice(tasks, 2)]
    alone = self._num_workers == 1 or len(some) < 2

    def start(task: Task) -> tuple[Task, Future]:
      noted = shards.done(self.path(task.phase), task.number)
      rest = task._replace(documents=None)
      if noted is not None and noted['key'] == task.key:
        return rest, workers.finished(None)
      if alone:
        return rest, workers.finished(_make(task))
      if self._pool is None:
        args = self._phases, self._folder
        self._pool = workers.pool(self._num_workers, _start, *args)
        stack.callback(self._pool.shutdown, cancel_futures=True)
      return rest, self._pool.submit(_make, task)

    started = map(start, itertools.chain(some, tasks))
    for task, _ in workers.in_order(started, 2 * self._num_workers):
      yield task

  def _first(self, in_mixture: bool) -> Iterator[Task]:
    """Shards of the corpus."""
    batch, size, number = [], 0, 0
    for i, (name, text) in enumerate(self._corpus.documents()):
      source = name.partition('/')[0] if in_mixture else ''
      batch.append(Document(i * PLACES, source, name, text))
      size += len(text)
      if size >= _SHARD:
        yield _task(number, batch)
        batch, size, number = [], 0, number + 1
    if batch:
      yield _task(number, batch)

  def _again(self, phase: int) -> Iterator[Task]:
    """Shards of what the phase before left."""
    for number, shard in enumerate(self.state['shards']):
      key = hashlib.sha256(
        f'{shard["key"]}\0{phase}\0{self.state["findings"]}'.encode()
      ).hexdigest()
      yield Task(
        *(phase, number, key, None),
        *(shard['num_bytes'], shard['first'], shard['stop']),
      )

  def _name_likes(self, phase: int, entries: list[dict]):
    """Puts names for places into the examples."""
    wanted = {e['like'] for e in report.examples(entries) if 'like' in e}
    names = {}
    for number, shard in enumerate(self.state['shards']):
      if any(shard['first'] <= place < shard['stop'] for place in wanted):
        for document in shards.read(self.path(phase - 1), number):
          if document.place in wanted:
            names[document.place] = document.name
    for example in report.examples(entries):
      if 'like' in example:
        example['like'] = names[example['like']]

  def _read_state(self) -> dict[str, Any] | None:
    try:
      with open(os.path.join(self._folder, _STATE), encoding='utf-8') as file:
        found = json.load(file)
    except (FileNotFoundError, ValueError):  # none, or damaged
      return None
    return found if isinstance(found, dict) else None

  def _write_state(self):
    path = os.path.join(self._folder, _STATE)
    with open(f'{path}.partial', 'w', encoding='utf-8') as file:
      json.dump(self.state, file)
    os.replace(f'{path}.partial', path)


def _task(number: int, documents: list[Document]) -> Task:
  digest, num_bytes = hashlib.sha256(f'{documents[0].place}'.encode()), 0
  for document in documents:
    size = utf8_size(document.text)
    digest.update(f'{document.name}\0{size}\0'.encode())
    for block in encoded(document.text):
      digest.update(block)
    num_bytes += size
  return Task(0, number, digest.hexdigest(), documents, num_bytes)
