# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes a corpus through the steps of cleaning, on the processes of a machine.

This process reads, workers clean shard by shard, and each global step is one
more pass over what is left. Nothing grows with the corpus but what the steps
say. A process that was killed leaves its shards; the next reads the documents
again to compare them with those, and cleans what is missing.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt_jax.data import files, progress
from gpt_jax.data.clean import (
  choices,
  grouping,
  report,
  shards,
  steps,
  worker_pool,
)
from gpt_jax.data.clean.steps import PLACES, Document
from gpt_jax.data.clean.worker_pool import Task, WorkerPool
from gpt_jax.data.sources.source import Document as Raw
from gpt_jax.data.sources.source import Source

# Characters of a shard.
_SHARD = 1 << 22

_STATE = 'state.json'

log = logging.getLogger('gpt_jax')


class Cleaned(NamedTuple):
  """A corpus that was cleaned.

  Attributes:
    source: streams what is left.
    entries: the report, see `report`.
  """

  source: Source
  entries: list[dict[str, Any]]


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
    corpus: the documents.
    text: `data.clean`.
    folder: a local path, for nothing else.
    wanted: all that the result depends on besides, as JSON: what an earlier
      process left is used if it is the same.
    in_mixture: whether names begin with a source.
    num_workers: processes.
    show: see `progress`.

  Raises:
    UsageError: the call is wrong, or a document cannot be read.
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
    self._steps = choices.load(text).steps
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
    return worker_pool.phase_folder(self._folder, phase)

  def go(self, in_mixture: bool):
    """Goes through the phases that are not done."""
    if self.state['phase'] == len(self._phases):
      return
    self._steps = choices.ready(self._steps)
    self._phases = shards.phases(self._steps)
    made_by = WorkerPool(self._phases, self._folder, self._num_workers)
    with contextlib.closing(made_by):
      for number in range(self.state['phase'], len(self._phases)):
        os.makedirs(self.path(number), exist_ok=True)
        tasks = self._again(number) if number else self._first(in_mixture)
        total = self._corpus.num_bytes
        if number:
          total = sum(shard['num_bytes'] for shard in self.state['shards'])
        self._pass(number, made_by.made(tasks), total)
        if number:
          shutil.rmtree(self.path(number - 1))

  def _pass(self, number: int, made_tasks: Iterator[Task], total: int | None):
    phase, folder = self._phases[number], self.path(number)
    stage = f'cleaning, pass {number + 1} of {len(self._phases)}'
    num_bytes = 0
    made: list[Any] = []
    entries = report.Counts(phase.names).entries
    for task in made_tasks:
      num_bytes += task.num_bytes
      self._show(stage, num_bytes, total)
      noted = shards.done(folder, task.number)
      assert noted is not None
      report.merge(entries, noted['counts'])
      del noted['counts']
      made.append(noted)
    self._name_likes(number, entries)
    if not number:
      self.state['skipped'] = self._corpus.skipped()
    self.state['shards'] = made
    self.state['entries'] += entries
    if phase.last is not None:
      self._show(f'comparing: {phase.last.name}', 0, None)
      rows = [shard['num_rows'] for shard in made]
      self.state['findings'] = grouping.decide(phase.last, folder, rows)
    self.state['phase'] = number + 1
    self._write_state()

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
    size = steps.num_bytes(document.text)
    digest.update(f'{document.name}\0{size}\0'.encode())
    for block in steps.encoded(document.text):
      digest.update(block)
    num_bytes += size
  return Task(0, number, digest.hexdigest(), documents, num_bytes)
