# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shards of documents on their way through cleaning, in a local folder.

  PHASE/00000.txt.zst      documents: a line [place, source, name, bytes], text
  PHASE/00000.rows.npy     uint64 [3, num_rows]: key, place, value; sorted
  PHASE/00000.places.npy, 00000.sketches.npy    of each document
  PHASE/00000.json         written last: the shard is done

A shard is a function of the documents that went in (`key` tells which) and of
the findings about them.
"""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import zstandard

from gpt_jax.files import lines
from gpt_jax.files.document import encoded, utf8_size
from gpt_jax.text.clean import report
from gpt_jax.text.clean.steps import Document, Global, Local, Rows, Step

DOCUMENTS, ROWS = 'txt.zst', 'rows.npy'
PLACES, SKETCHES = 'places.npy', 'sketches.npy'

_LEVEL = 3  # of compression


class Phase(NamedTuple):
  """Steps between two regroupings of all documents."""

  # The global step whose findings are known; None at the beginning.
  first: Global | None
  local: tuple[Local, ...]  # the steps after it
  # The global step whose rows are asked for; None at the end.
  last: Global | None

  @property
  def names(self) -> list[str]:
    """Of the steps that change documents in this phase."""
    return [s.name for s in (self.first, *self.local) if s is not None]


def phases(all_steps: Iterable[Step]) -> list[Phase]:
  """Cuts the steps where all documents are to be seen together."""
  found, first, local = [], None, []
  for step in all_steps:
    if isinstance(step, Global):
      found.append(Phase(first, tuple(local), step))
      first, local = step, []
    else:
      assert isinstance(step, Local)
      local.append(step)
  return [*found, Phase(first, tuple(local), None)]


def path(folder: str, number: int, kind: str) -> str:
  """Where a part of a shard is."""
  return os.path.join(folder, f'{number:05}.{kind}')


def done(folder: str, number: int) -> dict[str, Any] | None:
  """What was noted of a shard that is done; None if it is not."""
  try:
    with open(path(folder, number, 'json'), encoding='utf-8') as file:
      return json.load(file)
  except FileNotFoundError:
    return None


def read(folder: str, number: int) -> Iterator[Document]:
  """Streams the documents of a shard."""
  with lines.opened(path(folder, number, DOCUMENTS)) as file:
    yield from documents(file)


def documents(file: BinaryIO) -> Iterator[Document]:
  """Streams the documents of a shard's file, decompressed."""
  for line in file:
    place, source, name, size = json.loads(line)
    text = file.read(size).decode('utf-8')
    yield Document(place, source, name, text)


def write(
  phase: Phase,
  documents: Iterable[Document],
  findings: np.ndarray,
  folder: str,
  number: int,
  key: str,
):
  """Takes documents through a phase, and writes what is left.

  Args:
    documents: sorted by place.
    findings: of `phase.first`: places and values; uint64 [2, num_findings].
    key: says what went in.
  """
  counts = report.Counts(phase.names)
  rows, places, sketches = [], [], []
  num_bytes = 0

  def put(file: BinaryIO, document: Document):
    nonlocal num_bytes
    size = utf8_size(document.text)
    num_bytes += size
    places.append(document.place)
    head = [document.place, document.source, document.name, size]
    file.write(json.dumps(head).encode() + b'\n')
    for block in encoded(document.text):
      file.write(block)
    if phase.last is not None:
      found: Rows = phase.last.rows(document.text)
      place = np.full(len(found.keys), document.place, np.uint64)
      rows.append(np.stack([found.keys, place, found.values]))
      sketches.append(found.sketch)

  partial = path(folder, number, 'partial')
  with open(partial, 'wb') as raw:
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    with compressor.stream_writer(raw) as file:
      for document in documents:
        for left in _cleaned(phase, document, findings, counts):
          put(file, left)
  os.replace(partial, path(folder, number, DOCUMENTS))
  if phase.last is not None:
    table = np.concatenate([np.empty((3, 0), np.uint64), *rows], axis=1)
    table = np.ascontiguousarray(table[:, np.lexsort(table[::-1])])
    np.save(path(folder, number, ROWS), table)
    if phase.last.sketch_size:
      shape = (len(places), phase.last.sketch_size)
      np.save(path(folder, number, PLACES), np.array(places, np.uint64))
      np.save(
        path(folder, number, SKETCHES),
        np.array(sketches, np.uint32).reshape(shape),
      )
  noted = {
    'key': key,
    'num_documents': len(places),
    'num_bytes': num_bytes,
    'num_rows': sum(part.shape[1] for part in rows),
    'first': min(places, default=0),
    'stop': max(places, default=-1) + 1,
    'counts': counts.entries,
  }
  with open(partial, 'w', encoding='utf-8') as file:
    json.dump(noted, file)
  os.replace(partial, path(folder, number, 'json'))


def _cleaned(
  phase: Phase,
  document: Document,
  findings: np.ndarray,
  counts: report.Counts,
) -> list[Document]:
  """Takes one document through the steps."""
  documents, before = [document], 0
  if phase.first is not None:
    # Else NumPy compares large places as floats.
    ends = np.array([document.place, document.place + 1], np.uint64)
    start, stop = np.searchsorted(findings[0], ends)
    values = np.unique(findings[1, start:stop])
    outcome = phase.first.clean(document, values)
    counts.add(0, document, outcome)
    documents, before = outcome.documents, 1
  for i, step in enumerate(phase.local, before):
    left = []
    for one in documents:
      outcome = step.clean(one)
      counts.add(i, one, outcome)
      left += outcome.documents
    documents = left
  return documents
