# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents on their way through cleaning, where many machines see them.

  D/cleaning/steps.npz              what the steps learned: classifiers
  D/cleaning/PHASE/SHARD.txt.zst    documents, as in `shards`
  D/cleaning/result.json            written last, see `Result`

D is the folder of the token store, a path or a URL. A place is made of the
numbers of the unit of the source, of the shard in it, and of the document in
that, so that no machine needs to know how many documents came before.
"""

import dataclasses
import functools
import io
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import zstandard

from gpt_jax.files import files
from gpt_jax.files.document import Document as Raw
from gpt_jax.files.document import Source
from gpt_jax.spec import UsageError
from gpt_jax.text import sources
from gpt_jax.text.clean import choices, report, shards, steps
from gpt_jax.text.clean.quality import Quality
from gpt_jax.text.clean.shards import Phase
from gpt_jax.text.clean.steps import Document

FOLDER = 'cleaning'
_STEPS, _RESULT = 'steps.npz', 'result.json'

# Characters, and documents, of a shard.
_SHARD, _DOCUMENTS = 1 << 22, 1 << 14

# Bits of a place: 4 M units of 1 M shards of 16,384 documents.
_UNIT_BITS, _SHARD_BITS = 22, 20
_DOCUMENT_BITS = 64 - _UNIT_BITS - _SHARD_BITS


@dataclasses.dataclass(frozen=True)
class Result:
  """What cleaning leaves besides documents."""

  wanted: str  # a hash of all that the result depends on
  phase: int  # whose shards hold what is left
  shards: list[int]  # their numbers, in order
  skipped: dict[str, int]  # what could not be read: kind -> count
  entries: list[list[dict[str, Any]]]  # of each phase: the report, see `report`


def check_units(source: str, num_units: int):
  """Refuses more units than places can number."""
  if num_units > 1 << _UNIT_BITS:
    raise UsageError(
      f'data.source={source!r}: {num_units} files are more than '
      f'{1 << _UNIT_BITS}; join files'
    )


def batches(
  unit: int, corpus: Source, in_mixture: bool
) -> Iterator[tuple[int, list[Document]]]:
  """Yields the shards of a unit: number, documents."""
  batch, size, number = [], 0, unit << _SHARD_BITS
  for name, text in corpus.documents():
    place = (number << _DOCUMENT_BITS) + len(batch) * steps.PLACES
    source = name.partition('/')[0] if in_mixture else ''
    batch.append(Document(place, source, name, text))
    size += len(text)
    if size >= _SHARD or len(batch) == _DOCUMENTS:
      yield number, batch
      batch, size, number = [], 0, number + 1
      assert number >> _SHARD_BITS == unit, 'too many documents in one file'
  if batch:
    yield number, batch


def shards_of(places: np.ndarray) -> np.ndarray:
  """The numbers of the shards that hold places; both uint64."""
  return places >> np.uint64(_DOCUMENT_BITS)


def write_steps(folder: str, text: str):
  """Does what comes before the first document of `data.clean`, for all."""
  trained = {
    f'{i}': np.append(step.weights, step.bias)
    for i, step in enumerate(choices.ready(choices.load(text)))
    if isinstance(step, Quality) and step.weights is not None
  }
  data = io.BytesIO()
  np.savez(data, allow_pickle=False, **trained)
  files.write(_in(folder), _STEPS, data.getvalue())


def read_phases(folder: str, text: str) -> list[Phase]:
  """Reads the phases that the steps of `data.clean` make."""
  data = files.read(_in(folder), _STEPS)
  if data is None:
    raise UsageError(
      f'--out={folder}: a worker does not see what the process that started it '
      'wrote there; name a place that all machines see'
    )
  found = choices.load(text)
  with np.load(io.BytesIO(data)) as trained:
    for name, values in trained.items():
      step = found[int(name)]
      assert isinstance(step, Quality)
      found[int(name)] = dataclasses.replace(
        step, weights=values[:-1], bias=float(values[-1])
      )
  return shards.phases(found)


def read(folder: str, phase: int, shard: int) -> Iterator[Document]:
  """Streams the documents that a phase left of a shard."""
  data = files.read(_in(folder), _name(phase, shard))
  assert data is not None, (folder, phase, shard)
  raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
  return shards.documents(io.BufferedReader(raw))


def write(
  phases: list[Phase],
  number: int,
  documents: Iterable[Document],
  findings: np.ndarray,
  folder: str,
  shard: int,
) -> 'ShardResult':
  """Takes the documents of a shard through phase `number`.

  What is written is the same when it is done again.

  Args:
    documents: sorted by place.
    findings: as `shards.write`.
  """
  phase = phases[number]
  with tempfile.TemporaryDirectory() as local:
    shards.write(phase, documents, findings, local, 0, '')
    with open(shards.path(local, 0, shards.DOCUMENTS), 'rb') as file:
      files.write(_in(folder), _name(number, shard), file.read())
    noted = shards.done(local, 0)
    assert noted is not None

    def table(kind: str, otherwise: np.ndarray) -> np.ndarray:
      path = shards.path(local, 0, kind)
      return np.load(path) if os.path.exists(path) else otherwise

    return ShardResult(
      noted['counts'],
      table(shards.ROWS, np.empty((3, 0), np.uint64)),
      table(shards.PLACES, np.empty(0, np.uint64)),
      table(shards.SKETCHES, np.empty((0, 0), np.uint32)),
    )


@dataclasses.dataclass(frozen=True)
class ShardResult:
  """What a phase found in a shard."""

  counts: list[dict[str, Any]]  # `report.Counts.entries`
  rows: np.ndarray  # keys, places and values; sorted; uint64 [3, num_rows]
  places: np.ndarray  # of documents that have sketches; uint64 [N]
  sketches: np.ndarray  # uint32 [N, sketch_size]


def write_result(folder: str, result: Result):
  """Writes the result, with names for places in its examples."""
  for number, entries in enumerate(result.entries):
    likes = [e for e in report.examples(entries) if 'like' in e]
    wanted = np.array([e['like'] for e in likes], np.uint64)
    names = {
      document.place: document.name
      for shard in np.unique(shards_of(wanted)).tolist()
      for document in read(folder, number - 1, shard)
      if document.place in {*wanted.tolist()}
    }
    for example in likes:
      example['like'] = names[example['like']]
  data = json.dumps(dataclasses.asdict(result)).encode()
  files.write(_in(folder), _RESULT, data)


def read_result(folder: str) -> Result | None:
  """Reads the result; None if there is none."""
  data = files.read(_in(folder), _RESULT)
  return None if data is None else Result(**json.loads(data))


def cleaned(source: str, folder: str) -> Source:
  """What is left of a source, in as many units as it has itself."""
  corpus = sources.load('data.source', source)
  result = read_result(folder)
  assert result is not None, f'we do not see what workers wrote to {folder}'
  of_units = {
    unit: [*group]
    for unit, group in itertools.groupby(
      result.shards, lambda shard: shard >> _SHARD_BITS
    )
  }

  def documents(numbers: list[int]) -> Iterator[Raw]:
    for shard in numbers:
      for document in read(folder, result.phase, shard):
        yield Raw(document.name, document.text)

  units = []
  for i in range(len(corpus.units)):
    streams = functools.partial(documents, of_units.get(i, []))
    # Only the first unit reports skips, else each unit would add them up.
    skipped = functools.partial(dict, {} if i else result.skipped)
    units.append(Source(streams, None, {}, skipped=skipped))
  num_bytes = sum(
    counts['bytes_out'] for counts in result.entries[-1][-1]['sources'].values()
  )
  return Source(
    *(functools.partial(documents, result.shards), num_bytes),
    *(corpus.files, units, functools.partial(dict, result.skipped)),
  )


def _in(folder: str) -> str:
  return files.join(folder, FOLDER)


def _name(phase: int, shard: int) -> str:
  return f'{phase}/{shard:011x}.{shards.DOCUMENTS}'
