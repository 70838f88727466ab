# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The stages of cleaning: pure functions, run by a pool (`run`) or by Beam.

  documents           -> shards: `batches`
  shard, findings     -> the cleaned shard, and its rows: `clean_shard`
  rows of some keys   -> findings: `judge`
  all findings        -> the decision of a step that `concludes`: `conclude`

The steps are cut into phases where all documents are compared; each phase is a
pass over the shards that the phase before left:

  cleaning/PHASE/SHARD.txt.zst    documents: a line [place, source, name, bytes]
                                and the text of each

Before what is compressed stands the sha256 of the file's name and content, so
that a file that was damaged, or swapped with another, is never taken for its own.

A document's place consists of the number of its shard and its number in there.
If each unit of a source is read by itself, a shard's number begins with that of
the unit, so that no machine needs to know how many documents came before.
"""

import functools
import hashlib
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import zstandard

from gpt_jax.core.files import files
from gpt_jax.core.files.document import Document as Raw
from gpt_jax.core.files.document import Skip, Source, encoded, utf8_size
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import report
from gpt_jax.core.text.clean.steps import (
  PLACES,
  Document,
  Findings,
  Global,
  Local,
  Sketches,
  Step,
  group_starts,
)

# Of these files: an unfinished cleaning with another format starts again.
FORMAT = 4

# Characters, and documents, of a shard.
_SHARD, _DOCUMENTS = 1 << 22, 1 << 14

# Bits of a place: 4 M units of 1 M shards of 16,384 documents.
_UNIT_BITS, _SHARD_BITS = 22, 20
_DOCUMENT_BITS = 64 - _UNIT_BITS - _SHARD_BITS

_LEVEL = 3  # of compression


class Phase(NamedTuple):
  """Steps between two comparisons of all documents."""

  first: Global | None  # the step whose findings are known, if any
  local: tuple[Local, ...]  # the steps after it
  last: Global | None  # the step that compares documents next, if any

  @property
  def names(self) -> list[str]:
    """Names of the steps that change documents in this phase."""
    return [s.name for s in (self.first, *self.local) if s is not None]


def phases(steps: Iterable[Step]) -> list[Phase]:
  """Cuts the steps where all documents are compared."""
  found, first, local = [], None, []
  for step in steps:
    if isinstance(step, Global):
      found.append(Phase(first, tuple(local), step))
      first, local = step, []
    else:
      assert isinstance(step, Local)
      local.append(step)
  return [*found, Phase(first, tuple(local), None)]


def check_units(source: str, num_units: int):
  """Refuses more units than places can number."""
  if num_units > 1 << _UNIT_BITS:
    raise UsageError(
      f'data.source={source!r}: {num_units} files are more than {1 << _UNIT_BITS}; join files'
    )


def batches(
  documents: Iterable[Raw], in_mixture: bool, unit: int | None = None
) -> Iterator[tuple[int, list[Document]]]:
  """Yields the shards of a stream of documents: number, documents.

  Args:
    in_mixture: whether names begin with a source.
    unit: number of the unit whose documents these are; None: of all units.
  """
  batch, size, number = [], 0, (unit or 0) << _SHARD_BITS
  for name, text in documents:
    place = (number << _DOCUMENT_BITS) + len(batch) * PLACES
    source = name.partition('/')[0] if in_mixture else ''
    batch.append(Document(place, source, name, text))
    size += len(text)
    if size >= _SHARD or len(batch) == _DOCUMENTS:
      yield number, batch
      batch, size, number = [], 0, number + 1
      assert unit in (None, number >> _SHARD_BITS), 'one unit is too large'
  if batch:
    yield number, batch


def shards_of(places: np.ndarray) -> np.ndarray:
  """The numbers of the shards that hold places; both uint64."""
  return places >> np.uint64(_DOCUMENT_BITS)


class ShardResult(NamedTuple):
  """A shard after a phase."""

  documents: bytes  # as in the shard's file
  num_bytes: int  # of their texts
  counts: report.Counts
  rows: np.ndarray  # keys, places and values; sorted; uint64 [3, num_rows]
  places: np.ndarray  # of the documents; uint64 [N]
  sketches: np.ndarray  # uint32 [N, sketch_size]


def clean_shard(phase: Phase, documents: Iterable[Document], findings: np.ndarray) -> ShardResult:
  """Takes the documents of a shard through a phase.

  Args:
    documents: sorted by place.
    findings: of `phase.first`, about these documents: places and values;
      uint64 [2, num_findings], sorted.
  """
  counts: report.Counts = {}
  rows, places, sketches, num_bytes = [], [], [], 0
  data = io.BytesIO()
  compressor = zstandard.ZstdCompressor(level=_LEVEL)
  with compressor.stream_writer(data, closefd=False) as file:
    for document in documents:
      for left in _cleaned(phase, document, findings, counts):
        size = utf8_size(left.text)
        num_bytes += size
        places.append(left.place)
        head = [left.place, left.source, left.name, size]
        file.write(json.dumps(head).encode() + b'\n')
        for block in encoded(left.text):
          file.write(block)
        if phase.last is not None:
          found = phase.last.rows(left.text)
          place = np.full(len(found.keys), left.place, np.uint64)
          rows.append(np.stack([found.keys, place, found.values]))
          sketches.append(found.sketch)
  sketch_size = phase.last.sketch_size if phase.last else 0
  return ShardResult(
    data.getvalue(),
    num_bytes,
    counts,
    _sorted(table(rows, 3)),
    np.array(places, np.uint64),
    np.array(sketches, np.uint32).reshape(len(places), sketch_size),
  )


def _cleaned(
  phase: Phase, document: Document, findings: np.ndarray, counts: report.Counts
) -> list[Document]:
  """Takes one document through the steps."""
  documents, before = [document], 0
  if phase.first is not None:
    # Else NumPy compares large places as floats.
    ends = np.array([document.place, document.place + 1], np.uint64)
    start, stop = np.searchsorted(findings[0], ends)
    values = np.unique(findings[1, start:stop])
    outcome = phase.first.clean(document, values)
    report.count(counts, 0, document, outcome)
    documents, before = outcome.documents, 1
  for i, step in enumerate(phase.local, before):
    left = []
    for one in documents:
      outcome = step.clean(one)
      report.count(counts, i, one, outcome)
      left += outcome.documents
    documents = left
  return documents


def key_cuts(keys: np.ndarray, num_ranges: int) -> np.ndarray:
  """Where sorted keys are cut into equal ranges of all 64 bits."""
  edges = [(i << 64) // num_ranges for i in range(1, num_ranges)]
  return np.searchsorted(keys, np.array(edges, np.uint64))


def judge(step: Global, rows: Iterable[np.ndarray], sketches: Sketches) -> np.ndarray:
  """Findings, sorted uint64 [2, num_findings], from all rows of some keys."""
  keys, places, values = _sorted(table(rows, 3))
  return _sorted(np.stack(step.judge(keys, places, values, sketches)))


def conclude(step: Global, findings: Iterable[np.ndarray]) -> np.ndarray:
  """The decision, from all findings; sorted uint64 [2, num_findings]."""
  return _sorted(np.stack(step.conclude(Findings(*table(findings)))))


def by_shard(findings: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """Cuts sorted findings by the shards that they are about."""
  shards = shards_of(findings[0])
  starts = group_starts(shards)
  for start, part in zip(starts.tolist(), np.split(findings, starts[1:], axis=1), strict=False):
    yield int(shards[start]), part


def of_shard(findings: np.ndarray, shard: int) -> np.ndarray:
  """The part of sorted findings that is about a shard."""
  first = shard << _DOCUMENT_BITS
  last = first + (1 << _DOCUMENT_BITS) - 1  # the one after may not fit 64 bits
  start = np.searchsorted(findings[0], np.uint64(first), 'left')
  stop = np.searchsorted(findings[0], np.uint64(last), 'right')
  return findings[:, start:stop]


def table(parts: Iterable[np.ndarray], columns: int = 2) -> np.ndarray:
  """Joins tables; uint64 [columns, N]."""
  return np.concatenate([np.empty((columns, 0), np.uint64), *parts], axis=1)


def merged(findings: Iterable[np.ndarray]) -> np.ndarray:
  """Joins findings about the same documents; sorted uint64 [2, N]."""
  return _sorted(table(findings))


def _sorted(rows: np.ndarray) -> np.ndarray:
  """Sorts columns by their first entry, then the second, and so on."""
  return np.ascontiguousarray(rows[:, np.lexsort(rows[::-1])])


def shard_name(phase: int, shard: int) -> str:
  """The file of the documents that a phase left of a shard."""
  return f'{phase}/{shard:011x}.txt.zst'


class DamagedError(UsageError):
  """A file of an unfinished cleaning is not the one that was written."""

  def __init__(self, folder: str, name: str):
    """`name` is that of the file, below the folder of the cleaning."""
    super().__init__(
      f'{files.join(folder, name)}: is damaged or missing; remove {folder}, and give the same '
      'command again'
    )


def write_sealed(folder: str, name: str, data: bytes) -> None:
  """Writes a file whose content `read_sealed` can trust."""
  files.write(folder, name, _seal(name, data) + data)


def read_sealed(folder: str, name: str) -> bytes:
  """What `write_sealed` wrote; `DamagedError` if that is not what is there."""
  data = files.read(folder, name) or b''
  size = hashlib.sha256().digest_size
  if data[:size] != _seal(name, data[size:]):
    raise DamagedError(folder, name)
  return data[size:]


def _seal(name: str, data: bytes) -> bytes:
  return hashlib.sha256(name.encode() + b'\0' + data).digest()


def read(folder: str, phase: int, shard: int) -> Iterator[Document]:
  """Streams the documents that a phase left of a shard."""
  data = read_sealed(folder, shard_name(phase, shard))
  raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
  file = io.BufferedReader(raw)
  for line in file:
    place, source, name, size = json.loads(line)
    yield Document(place, source, name, file.read(size).decode())


def name_likes(folder: str, phase: int, entries: list[dict[str, Any]]):
  """Replaces places by names in the examples of a phase's report.

  Args:
    folder: has the documents that the phase before left.
  """
  examples = [e for e in report.examples(entries) if 'like' in e]
  wanted = {e['like'] for e in examples}
  shards = np.unique(shards_of(np.array([*wanted], np.uint64)))
  names = {
    document.place: document.name
    for shard in shards.tolist()
    for document in read(folder, phase - 1, shard)
    if document.place in wanted
  }
  for example in examples:
    example['like'] = names[example['like']]


class Result(NamedTuple):
  """The result of cleaning, besides documents."""

  phase: int  # the last one, which left the documents
  shards: list[int]  # their numbers, in order
  skipped: dict[str, int]  # what could not be read: kind -> count
  entries: list[dict[str, Any]]  # of each step: the report


def cleaned(corpus: Source, folder: str, result: Result) -> Source:
  """A source after cleaning, in as many units as before."""

  def stream(unit: int, skip: Skip) -> Iterator[Raw]:
    if not unit:  # else each unit would add them up
      skip.counts.update(result.skipped)
    for shard in of_units.get(unit, []):
      for document in read(folder, result.phase, shard):
        yield Raw(document.name, document.text)

  of_units = {
    unit: [*group]
    for unit, group in itertools.groupby(result.shards, lambda shard: shard >> _SHARD_BITS)
  }
  counts = result.entries[-1]['sources'].values()
  return Source(
    units=[functools.partial(stream, i) for i in range(len(corpus.units))],
    files=corpus.files,
    num_bytes=sum(c['bytes_out'] for c in counts),
    call=corpus.call,
  )
