# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of cleaning on the processes of this machine.

This process reads, workers clean shard by shard. Rows and findings stay on the
disk, and as many keys are compared at a time as fit into memory, which grows
with the corpus only where a step says so. Beside each shard's documents lie

  PHASE/SHARD.rows.npy      uint64 [3, num_rows]: key, place, value; sorted
  PHASE/SHARD.places.npy, SHARD.sketches.npy    of each document
  PHASE/SHARD.json          written last: the shard is done
  PHASE/findings-RANGE.npy  uint64 [2, num_findings]: place, value; sorted

A process that is killed leaves its shards. The next one reads the documents
again, compares them with these shards, and cleans the missing ones, and those
with a file that is damaged: JSON and documents are sealed (`stages`), and the JSON
has the sha256 of each array. Where the phase before is damaged it starts over.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.files import files, progress, workers
from gpt_jax.core.files.document import Source, encoded, utf8_size
from gpt_jax.core.text.clean import choices, report, stages
from gpt_jax.core.text.clean.stages import DamagedError, Phase, Result
from gpt_jax.core.text.clean.steps import Document, Global, Sketches

# Rows compared at a time: 24 bytes each, and as much again for sorting.
_ROWS = 1 << 22

# Names the place of the folder; that of a store in a bucket is temporary.
_FIELD = 'data.store (--out), or for a store in a bucket by TMPDIR'
_STATE, _FINDINGS = 'state.json', 'findings-'
# Of a shard, where its documents are compared.
_ARRAYS = ('rows', 'places', 'sketches')

log = logging.getLogger('gpt_jax')


class _Task(NamedTuple):
  """The work on one shard."""

  phase: int
  shard: int
  key: str  # hash of the input
  documents: list[Document] | None  # None: the phase before left them on disk
  num_bytes: int


def _path(folder: str, phase: int, name: int | str, kind: str) -> str:
  name = name if isinstance(name, str) else f'{name:011x}'
  return os.path.join(folder, f'{phase}', f'{name}.{kind}')


def _sha256(*paths: str) -> str:
  """Of files, of which some may be missing."""
  digest = hashlib.sha256()
  for path in paths:
    if os.path.exists(path):
      with open(path, 'rb') as file:
        digest.update(hashlib.file_digest(file, 'sha256').digest())
  return digest.hexdigest()


_phases: list[Phase]  # of a worker
_folder: str


def _start(phases: list[Phase], folder: str):
  global _phases, _folder
  _phases, _folder = phases, folder


def _clean(task: _Task) -> None:
  """Cleans a shard, in a worker."""
  documents, findings = task.documents, stages.merged([])
  if documents is None:
    documents = stages.read(_folder, task.phase - 1, task.shard)
    findings = _findings(_folder, task.phase - 1, task.shard)
  done = stages.clean_shard(_phases[task.phase], documents, findings)
  name = stages.shard_name(task.phase, task.shard)
  stages.write_sealed(_folder, name, done.documents)
  arrays = {}
  if _phases[task.phase].last is not None:
    for kind in _ARRAYS:
      path = _path(_folder, task.phase, task.shard, f'{kind}.npy')
      np.save(path, getattr(done, kind))
      arrays[kind] = _sha256(path)
  noted = {
    'shard': task.shard,
    'key': task.key,
    'num_bytes': done.num_bytes,
    'arrays': arrays,
    'counts': report.to_json(done.counts),
  }
  stages.write_sealed(_folder, _noted_name(task), json.dumps(noted).encode())


def _noted_name(task: _Task) -> str:
  return f'{task.phase}/{task.shard:011x}.json'


def _findings(folder: str, phase: int, shard: int) -> np.ndarray:
  """The findings about a shard; uint64 [2, N], sorted."""
  return stages.merged(
    stages.of_shard(np.load(path, mmap_mode='r'), shard) for path in _findings_files(folder, phase)
  )


def _findings_files(folder: str, phase: int) -> list[str]:
  below = os.path.join(folder, f'{phase}')
  return [os.path.join(below, x) for x in sorted(os.listdir(below)) if x.startswith(_FINDINGS)]


def _compare(step: Global, folder: str, phase: int, shards: Sequence[int]) -> str:
  """Writes a step's findings about a phase's shards; returns their hash."""
  for path in _findings_files(folder, phase):  # of a process that was killed here
    os.unlink(path)
  sketches = _sketches(step, folder, phase, shards)
  tables = [np.load(_path(folder, phase, i, 'rows.npy'), mmap_mode='r') for i in shards]
  num_ranges = -(-sum(t.shape[1] for t in tables) // _ROWS) or 1
  cuts = [[0, *stages.key_cuts(rows[0], num_ranges), rows.shape[1]] for rows in tables]
  judged = (
    stages.judge(step, [t[:, c[i] : c[i + 1]] for t, c in zip(tables, cuts, strict=True)], sketches)
    for i in range(num_ranges)
  )
  found = [stages.conclude(step, judged)] if step.concludes else judged
  for i, part in enumerate(found):
    np.save(_path(folder, phase, f'{_FINDINGS}{i:05}', 'npy'), part)
  return _sha256(*_findings_files(folder, phase))


def _sketches(step: Global, folder: str, phase: int, shards: Sequence[int]) -> Sketches:
  """Looks sketches up, which stay on the disk; places are in memory."""
  empty = np.empty((0, step.sketch_size), np.uint32)
  if not step.sketch_size:
    return lambda places: empty
  shard_places = [np.load(_path(folder, phase, i, 'places.npy')) for i in shards]
  places = np.concatenate([np.empty(0, np.uint64), *shard_places])
  together = np.lib.format.open_memmap(
    _path(folder, phase, 'sketches', 'npy'), 'w+', np.uint32, (len(places), step.sketch_size)
  )
  start = 0
  for shard, part in zip(shards, shard_places, strict=True):
    together[start : start + len(part)] = np.load(_path(folder, phase, shard, 'sketches.npy'))
    start += len(part)
  # Shards ascend by place, and so do all together.
  return lambda wanted: together[np.searchsorted(places, wanted)]


def clean(
  corpus: Source,
  text: str,
  folder: str,
  wanted: Any,
  *,
  in_mixture: bool,
  num_workers: int,
  show: progress.Report,
) -> Result:
  """Cleans a corpus, or resumes where an earlier process died.

  Args:
    text: the steps, as in `data.clean`.
    folder: a local path, for nothing else.
    wanted: all else that the result depends on, as JSON: the shards of an
      earlier process are used if it is the same.
    in_mixture: whether names begin with a source.
  """
  run = _Run(corpus, text, folder, wanted, num_workers, show)
  try:
    run.go(in_mixture)
  except DamagedError as e:
    log.warning('cleaning starts over: %s', str(e).partition(';')[0])
    shutil.rmtree(folder)
    run = _Run(corpus, text, folder, wanted, num_workers, show)
    run.go(in_mixture)
  state = run.state
  return Result(
    state['phase'] - 1,
    [shard['shard'] for shard in state['shards']],
    state['skipped'],
    state['entries'],
  )


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
    wanted = [text, wanted, choices.versions(), stages.FORMAT]
    wanted = json.loads(json.dumps(wanted))
    self.state = {
      'wanted': wanted,
      'phase': 0,  # the first that is not done
      'shards': [],  # of the phase before: number, key and bytes of each
      'skipped': {},
      'entries': [],
    }
    # A process that resumes trusts what it finds here.
    files.make_own_folder(folder, _FIELD)
    state = None
    with contextlib.suppress(DamagedError):  # or there is none
      state = json.loads(stages.read_sealed(folder, _STATE))
    if state and state['wanted'] == wanted:
      self.state = state
    else:
      shutil.rmtree(folder, ignore_errors=True)
      files.make_own_folder(folder, _FIELD)
      self._write_state()

  def go(self, in_mixture: bool):
    """Goes through the phases that are not done."""
    self._phases = stages.phases(self._steps)
    self._check_before()
    if self.state['phase'] == len(self._phases):
      return
    self._phases = stages.phases(choices.ready(self._steps))
    _start(self._phases, self._folder)  # for shards cleaned in this process
    with contextlib.ExitStack() as stack:
      for number in range(self.state['phase'], len(self._phases)):
        os.makedirs(os.path.join(self._folder, f'{number}'), exist_ok=True)
        tasks = self._again(number) if number else self._first(in_mixture)
        total = self._corpus.num_bytes
        if number:
          total = sum(shard['num_bytes'] for shard in self.state['shards'])
        self._pass(number, self._done(tasks, stack), total)
        if number:
          shutil.rmtree(os.path.join(self._folder, f'{number - 1}'))

  def _check_before(self):
    """Raises if what the last phase left is not what it wrote."""
    before = self.state['phase'] - 1
    for shard in self.state['shards']:
      stages.read_sealed(self._folder, stages.shard_name(before, shard['shard']))
    if 0 <= before < len(self._phases) - 1:
      found = _findings_files(self._folder, before)
      if _sha256(*found) != self.state['findings']:
        raise DamagedError(self._folder, f'{before}/{_FINDINGS}*.npy')

  def _pass(self, number: int, tasks: Iterator[_Task], total: int | None):
    phase = self._phases[number]
    stage = f'cleaning, pass {number + 1} of {len(self._phases)}'
    num_bytes = 0
    shards: list[Any] = []
    counts: report.Counts = {}
    for task in tasks:
      num_bytes += task.num_bytes
      self._show(stage, num_bytes, total)
      noted = self._noted(task)
      of_shard = report.of_json(noted.pop('counts'))
      counts = report.merge([counts, of_shard])
      shards.append(noted)
    entries = report.entries(phase.names, counts)
    stages.name_likes(self._folder, number, entries)
    if not number:
      self.state['skipped'] = dict(self._skipped)
    self.state['shards'] = shards
    self.state['entries'] += entries
    if phase.last is not None:
      self._show(f'comparing: {phase.last.name}', 0, None)
      numbers = [shard['shard'] for shard in shards]
      found = _compare(phase.last, self._folder, number, numbers)
      self.state['findings'] = found
    self.state['phase'] = number + 1
    self._write_state()

  def _done(self, tasks: Iterator[_Task], stack: contextlib.ExitStack) -> Iterator[_Task]:
    """Cleans the shards that are not done; yields their tasks, in order.

    Processes are started when the first is needed, and end with `stack`.
    """
    some = [*itertools.islice(tasks, 2)]
    alone = self._num_workers == 1 or len(some) < 2

    def start(task: _Task) -> tuple[_Task, Future]:
      rest = task._replace(documents=None)
      if self._is_done(task):
        return rest, workers.finished(None)
      if alone:
        return rest, workers.finished(_clean(task))
      if self._pool is None:
        args = self._phases, self._folder
        self._pool = workers.pool(self._num_workers, _start, *args)
        stack.callback(self._pool.shutdown, cancel_futures=True)
      return rest, self._pool.submit(_clean, task)

    started = map(start, itertools.chain(some, tasks))
    for task, _ in workers.in_order(started, 2 * self._num_workers):
      yield task

  def _is_done(self, task: _Task) -> bool:
    """Whether an earlier process cleaned the shard, and all its files are sound."""
    try:
      noted = self._noted(task)
      stages.read_sealed(self._folder, stages.shard_name(task.phase, task.shard))
    except DamagedError:  # or missing
      return False
    arrays = {
      kind: _sha256(_path(self._folder, task.phase, task.shard, f'{kind}.npy'))
      for kind in noted['arrays']
    }
    return (noted['key'], noted['arrays']) == (task.key, arrays)

  def _noted(self, task: _Task) -> dict[str, Any]:
    """The JSON file of a shard that is done."""
    return json.loads(stages.read_sealed(self._folder, _noted_name(task)))

  def _first(self, in_mixture: bool) -> Iterator[_Task]:
    """Shards of the corpus."""
    self._skipped = Counter()
    documents = self._corpus.documents(self._skipped)
    for shard, batch in stages.batches(documents, in_mixture):
      digest, num_bytes = hashlib.sha256(f'{batch[0].place}'.encode()), 0
      for document in batch:
        size = utf8_size(document.text)
        digest.update(f'{document.name}\0{size}\0'.encode())
        for block in encoded(document.text):
          digest.update(block)
        num_bytes += size
      yield _Task(0, shard, digest.hexdigest(), batch, num_bytes)

  def _again(self, phase: int) -> Iterator[_Task]:
    """Shards that the phase before left."""
    for shard in self.state['shards']:
      key = hashlib.sha256(
        f'{shard["key"]}\0{phase}\0{self.state["findings"]}'.encode()
      ).hexdigest()
      yield _Task(phase, shard['shard'], key, None, shard['num_bytes'])

  def _write_state(self):
    stages.write_sealed(self._folder, _STATE, json.dumps(self.state).encode())
