# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a token store on Apache Beam: the same bytes as `prepare` writes.

The tokenizer is trained in this process, on the same sample as without Beam.
The runner's workers read and encode; they must see corpus and store under the
same names as this process.

  number of a unit  -> ids, ends and hashes of its documents, in chunks: Encode
  counts of a unit  -> where each unit begins in the store: places_of
  chunk             -> its parts in the files of the store: Place
  parts of one file -> the file: Write

A worker holds one document and a chunk, or one file of the store, never more.
A stage that is run twice, as runners may, writes the same bytes twice.
"""

import collections
import functools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np
from apache_beam import (  # pyright: ignore[reportMissingImports]
  combiners,
  metrics,
  pvalue,
)
from apache_beam.pvalue import (  # pyright: ignore[reportMissingImports]
  TaggedOutput,
)

from gpt_jax.files import files, progress
from gpt_jax.spec import UsageError
from gpt_jax.text import holdout, inputs
from gpt_jax.text import sentences as sentences_lib
from gpt_jax.text.clean import choices, shared
from gpt_jax.text.holdout import Split
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import (
  duplicates,
  encode,
  manifest,
  mixture,
  prepare,
  store,
)
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.beam import job as beam_job
from gpt_jax.tokens.beam.job import Job
from gpt_jax.tokens.duplicates import Digest
from gpt_jax.tokens.encode import Settings
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import DOCUMENT_ENDS, SENTENCE_ENDS, TOKENS, Written

COUNTS, HASHES = 'counts', 'hashes'  # outputs besides the main one

# Which file of which array of which split: a key that Beam can group by.
File = tuple[str, bool, int]

# Tokens of a unit that are handed on together.
_CHUNK = 1 << 20

# What is counted of each unit, in the columns of `starts`.
_COLUMNS = [
  (array, held_out)
  for array in (TOKENS, DOCUMENT_ENDS, SENTENCE_ENDS)
  for held_out in (False, True)
]
_NUMBERS = ('num_tokens', 'num_documents', 'num_sentences')


class Work(NamedTuple):
  """What every worker knows."""

  settings: Settings  # say what the documents are
  files: str  # a hash of their names, so that all workers see the same ones
  folder: str  # of the store; holds the tokenizer
  dtype: str  # of the tokens

  def dtype_of(self, array: str) -> str:
    """The type of an array of the store."""
    return self.dtype if array == TOKENS else 'int64'


class Encode(beam.DoFn):
  """The documents of unit i, to (array, held out, unit, offset, values).

  The offset and the ends are counted from the unit's first. Besides come the
  documents' hashes, `(unit, offset, hashes)`, and the unit's counts.
  """

  def __init__(self, work: Work):
    self._work = work
    self._bytes = metrics.Metrics.counter('gpt_jax', 'bytes')
    self._documents = metrics.Metrics.counter('gpt_jax', 'documents')

  def setup(self):
    work = self._work
    source, corpus = work.settings.source, None
    if choices.load(work.settings.clean):
      corpus = shared.cleaned(source, work.folder)
    split = holdout.split(source, work.settings.holdout, corpus)
    if inputs.names_hash(split.files) != work.files:
      raise UsageError(
        f'data.source={source!r}: a worker finds other files '
        'than the process that started it; name a place that all machines see'
      )
    assert split.units is not None  # else refused before
    self._units = split.units
    self._made = tokenizer.load(files.join(work.folder, token_store.TOKENIZER))

  def process(self, unit: int) -> Iterator[Any]:
    sentences = self._work.settings.sentences
    # The sentence that ends where a document does, if there are any.
    end = np.ones(int(bool(sentences_lib.splitter(sentences))), np.int64)
    sides = {side: _Side(self._work, side, unit) for side in (False, True)}
    hashes, num_hashed, source = [], 0, ''
    for part in self._units[unit].parts():
      found, size = duplicates.of_part(part)
      hashes.append(found)
      side = sides[part.held_out]
      for piece in encode.pieces(part, self._made):
        text = encode.text_of(piece)
        (found,) = encode.encode_texts(self._made, sentences, [text])
        side.add(found.ids, found.sentence_ends)
        if piece.last:
          side.add(np.array([found.eos_id], np.int32), end)
          side.end(size)
        yield from side.full()
      if mixture.is_mixture(self._work.settings.source):
        source = part.document.name.partition('/')[0]
      self._bytes.inc(size)
      self._documents.inc()
      if len(hashes) >= _CHUNK // duplicates.SIZE:
        yield TaggedOutput(HASHES, (unit, num_hashed, b''.join(hashes)))
        num_hashed += len(hashes)
        hashes = []
    for side in sides.values():
      yield from side.rest()
    yield TaggedOutput(HASHES, (unit, num_hashed, b''.join(hashes)))
    counts = {
      name: [getattr(sides[side], name) for side in (False, True)]
      for name in (*_NUMBERS, 'num_bytes')
    }
    counts |= {'source': source, 'skipped': self._units[unit].skipped()}
    yield TaggedOutput(COUNTS, (unit, json.dumps(counts)))


class _Side:
  """What one unit adds to one split."""

  def __init__(self, work: Work, held_out: bool, unit: int):
    self._work, self._key = work, (held_out, unit)
    self.num_tokens = self.num_documents = self.num_bytes = 0
    self.num_sentences = 0
    self._tokens, self._ends, self._sentences = [], [], []
    self._waiting = 0

  def add(self, ids: np.ndarray, sentence_ends: np.ndarray):
    self._sentences.append(self.num_tokens + sentence_ends)
    self.num_sentences += len(sentence_ends)
    self._tokens.append(ids.astype(self._work.dtype))
    self._waiting += len(ids)
    self.num_tokens += len(ids)

  def end(self, num_bytes: int):
    self._ends.append(self.num_tokens)
    self.num_documents += 1
    self.num_bytes += num_bytes

  def full(self) -> Iterator[tuple]:
    """Hands on what was taken, where it is enough."""
    if self._waiting >= _CHUNK:
      yield from self.rest()

  def rest(self) -> Iterator[tuple]:
    """Hands on what was taken."""
    if self._tokens:
      values = np.concatenate(self._tokens)
      offset = self.num_tokens - len(values)
      yield (TOKENS, *self._key, offset, values.tobytes())
    if self._ends:
      offset = self.num_documents - len(self._ends)
      ends = np.array(self._ends, np.int64)
      yield (DOCUMENT_ENDS, *self._key, offset, ends.tobytes())
    if any(map(len, self._sentences)):
      ends = np.concatenate(self._sentences)
      offset = self.num_sentences - len(ends)
      yield (SENTENCE_ENDS, *self._key, offset, ends.tobytes())
    self._tokens, self._ends, self._sentences = [], [], []
    self._waiting = 0


class Places(NamedTuple):
  """Where the units begin."""

  # int64 [num_units + 1, 6] as bytes: of each array, see `_COLUMNS`, where each
  # unit begins; the last row is where all end.
  starts: bytes
  # `num_bytes` of each split, and `parts` and `skipped` as the manifest has
  # them.
  summary: dict[str, Any]

  def start(self, array: str, held_out: bool, unit: int) -> int:
    """Where a unit begins in an array; unit -1: the array's length."""
    return int(self._table()[unit, _COLUMNS.index((array, held_out))])

  def document(self, unit: int) -> int:
    """The number of a unit's first document, over both splits."""
    return sum(
      self.start(DOCUMENT_ENDS, held_out, unit) for held_out in (False, True)
    )

  def _table(self) -> np.ndarray:
    return np.frombuffer(self.starts, np.int64).reshape(-1, len(_COLUMNS))


def places_of(counts: Iterable[tuple[int, str]]) -> Places:
  """Adds up the counts of all units, in their order."""
  found = [json.loads(text) for _, text in sorted(counts)]
  table = np.array(
    [
      [0] * len(_COLUMNS),
      *[[count for name in _NUMBERS for count in c[name]] for c in found],
    ],
    np.int64,
  ).cumsum(axis=0)
  parts: list[dict[str, int]] = [{}, {}]
  for i, count in enumerate(found):
    for side in (0, 1):
      if count['source'] and count['num_documents'][side]:
        parts[side][count['source']] = int(table[i + 1, side])
  skipped = collections.Counter()
  for count in found:
    skipped.update(count['skipped'])
  summary = {
    'num_bytes': [sum(c['num_bytes'][side] for c in found) for side in (0, 1)],
    'parts': parts,
    'skipped': dict(sorted(skipped.items())),
  }
  return Places(table.tobytes(), summary)


class Place(beam.DoFn):
  """A chunk to ((array, held out, file), (offset in it, values))."""

  def __init__(self, work: Work):
    self._work = work

  def process(
    self, chunk: tuple[str, bool, int, int, bytes], places: Places
  ) -> Iterator[tuple[File, tuple[int, bytes]]]:
    array, held_out, unit, offset, data = chunk
    dtype = self._work.dtype_of(array)
    values = np.frombuffer(data, dtype)
    if array != TOKENS:
      values = values + places.start(TOKENS, held_out, unit)
    start = places.start(array, held_out, unit) + offset
    size = store.shard_size(dtype)
    done = 0
    while done < len(values):
      file, within = divmod(start + done, size)
      count = min(size - within, len(values) - done)
      part = values[done : done + count].tobytes()
      yield (array, held_out, file), (within, part)
      done += count


def add_up(hashes: tuple[int, int, bytes], places: Places) -> str:
  """The sum of the hashes of some documents: see `digest`."""
  unit, offset, data = hashes
  found = Digest(places.document(unit) + offset)
  for i in range(0, len(data), duplicates.SIZE):
    found.add(data[i : i + duplicates.SIZE])
  return found.hexdigest()


class Write(beam.DoFn):
  """The parts of one file to (array, held out, file, its checksums)."""

  def __init__(self, work: Work):
    self._work = work

  def process(
    self, parts: tuple[File, Iterable[tuple[int, bytes]]], places: Places
  ) -> Iterator[tuple[str, bool, int, list[int]]]:
    (array, held_out, file), found = parts
    dtype, folder = self._work.dtype_of(array), self._work.folder
    if held_out:
      folder = files.join(folder, token_store.VALIDATION)
    length = places.start(array, held_out, -1)
    first = file * store.shard_size(dtype)
    values = np.empty(min(store.shard_size(dtype), length - first), dtype)
    filled = 0
    for within, data in found:
      part = np.frombuffer(data, dtype)
      values[within : within + len(part)] = part
      filled += len(part)
    assert filled == len(values), (array, held_out, file, filled, len(values))
    compression = self._work.settings.compression
    store.write_shard(
      *(folder, array, dtype, length, file, values), compression
    )
    yield array, held_out, file, manifest.checksums(values)


def result(
  _: None,
  work: Work,
  name: str,
  places: Places,
  checksums: Sequence[tuple],
  hexdigests: Sequence[str],
):
  """Writes what the process that waits needs for the manifests."""
  crc32 = {f'{array}/{side}': [] for array, side in _COLUMNS}
  for array, held_out, _, found in sorted(checksums):
    crc32[f'{array}/{held_out}'] += found
  lengths = {
    f'{array}/{side}': places.start(array, side, -1) for array, side in _COLUMNS
  }
  entries = {
    **places.summary,
    'crc32': crc32,
    'lengths': lengths,
    'sha256': duplicates.total(hexdigests),
  }
  files.write(work.folder, name, json.dumps(entries).encode())


# In the folder until the manifests are written.
_RESULT = 'unfinished.json'
_WRITTEN = ('lengths', 'crc32')  # entries of it, by array

log = logging.getLogger('gpt_jax')


def write(
  settings: Settings,
  split: Split,
  folder: str,
  *,
  job: Job,
  report: progress.Report,
  cleaning: dict[str, Any],
) -> Manifest:
  """Writes the store, from its beginning; returns the train split's manifest.

  Args:
    split: the documents that cleaning left.
    folder: a path or a URL that all workers see.
    report: of reading for the tokenizer.
    cleaning: for the manifest: what was done to the corpus.
  """
  assert split.units is not None  # see beam_job.check
  for name in (*token_store.PARTS, store.STATE):
    files.delete(folder, name)
  found = inputs.look(split.files)
  made = prepare.build_tokenizer(settings, split, folder, report)
  # Without the files of other settings, which are not for workers.
  corpus = holdout.split(settings.source, settings.holdout)
  work = Work(
    settings,
    inputs.names_hash(corpus.files),
    folder,
    store.token_dtype(tokenizer.num_ids(made)),
  )
  started = time.monotonic()
  beam_job.run(job, functools.partial(_lay_out, work, len(split.units)))
  data = files.read(folder, _RESULT)
  assert data is not None, f'the workers do not see {folder}'
  entries = json.loads(data)
  done = _manifests(settings, made, entries, cleaning, split.pairs)
  for held_out, written in done.items():
    if not written.num_bytes and (split.holds_out or not held_out):
      raise prepare.empty(settings, held_out)
  if split.holds_out:
    below = files.join(folder, token_store.VALIDATION)
    manifest.write(below, done[True])
  else:
    del done[True]
  inputs.write(folder, found)
  files.delete(folder, _RESULT)
  # Last: it is what makes the folder a token store.
  manifest.write(folder, done[False])
  seconds = time.monotonic() - started
  prepare.log_counts(done, sum(m.num_bytes for m in done.values()), seconds)
  return done[False]


def _lay_out(work: Work, num_units: int, pipeline: beam.Pipeline):
  """Puts the stages together."""
  chunks, counts, hashes = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'encode'
    >> beam.ParDo(Encode(work)).with_outputs(COUNTS, HASHES, main='chunks')
  )
  gathered = counts | 'gather counts' >> combiners.ToList()
  places = pvalue.AsSingleton(gathered | 'add up counts' >> beam.Map(places_of))
  checksums = (
    chunks
    | 'place' >> beam.ParDo(Place(work), places)
    | 'group by file' >> beam.GroupByKey()
    | 'write' >> beam.ParDo(Write(work), places)
  )
  hexdigests = hashes | 'add up hashes' >> beam.Map(add_up, places)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'tell'
    >> beam.Map(
      result,
      work,
      _RESULT,
      places,
      pvalue.AsList(checksums),
      pvalue.AsList(hexdigests),
    )
  )


def _manifests(
  settings: Settings,
  made: Tokenizer,
  entries: dict[str, Any],
  cleaning: dict[str, Any],
  pairs: bool,
) -> dict[bool, Manifest]:
  """The manifests of both splits, from what the workers wrote."""
  return {
    held_out: encode.manifest_of(
      settings,
      made,
      {
        array: Written(*(entries[n][f'{array}/{held_out}'] for n in _WRITTEN))
        for array in (TOKENS, DOCUMENT_ENDS, SENTENCE_ENDS)
      },
      source_sha256=entries['sha256'],
      num_bytes=entries['num_bytes'][held_out],
      parts=entries['parts'][held_out],
      cleaning=cleaning,
      skipped=entries['skipped'],
      pairs=pairs,
    )
    for held_out in (False, True)
  }
