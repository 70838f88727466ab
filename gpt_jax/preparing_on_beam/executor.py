# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of preparing on Apache Beam: the bytes of one machine.

The runner's workers must see corpus and store under the same names as this
process. A stage that is run twice, as runners may, writes the same bytes twice.

Cleaning (`text.clean.stages`):

  number of a unit   -> its documents, in shards: Read
  shard, findings    -> the cleaned shard, in a file; its rows: Clean
  rows of some keys  -> findings, by shard: Judge

Clean and Judge take turns, once for each step that compares documents. Texts go
through files in D/cleaning, where D is the folder of the store; Beam moves
rows, findings and counts. Only the links between near-duplicates (16 bytes
each), the numbers of shards and the sums of counts come together in one place.
A worker holds a shard, or the rows of one range of keys. D/cleaning also has

  steps.npz      what the steps learned: classifiers
  result.json    written last: what this process waits for

Encoding (`encode`), after this process has made the tokenizer:

  number of a unit  -> ids, ends and hashes of its documents, in chunks: Encode
  counts of a unit  -> where each unit begins in the store: places_of
  chunk             -> its parts in the files of the store: Place
  parts of one file -> the file: Write

A worker holds one document and a chunk, or one file of the store, never more.
"""

import collections
import dataclasses
import functools
import io
import json
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np
from apache_beam import combiners, metrics, pvalue, runners  # pyright: ignore[reportMissingImports]
from apache_beam.options import pipeline_options  # pyright: ignore[reportMissingImports]
from apache_beam.pvalue import TaggedOutput  # pyright: ignore[reportMissingImports]

from gpt_jax.core.files import files, progress
from gpt_jax.core.files.document import Source
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout, inputs, sources
from gpt_jax.core.text.clean import choices, report, stages
from gpt_jax.core.text.clean.choices import FOLDER
from gpt_jax.core.text.clean.quality import Quality
from gpt_jax.core.text.clean.stages import Phase, Result
from gpt_jax.core.text.clean.steps import Document, Step
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokens import cleaning, duplicates, encode, manifest, mixture, store
from gpt_jax.core.tokens.corpus import Corpus, Settings
from gpt_jax.core.tokens.duplicates import Copies, Duplicates
from gpt_jax.core.tokens.encode import SplitContents, StoreContents
from gpt_jax.core.tokens.store import DOCUMENT_ENDS, SENTENCE_ENDS, TOKENS, VALIDATION, Written

# Outputs of stages besides the main one.
ROWS, COUNTS, SKIPPED = 'rows', 'counts', 'skipped'
HASHES, SAME = 'hashes', 'same'

_STEPS, _RESULT = 'steps.npz', 'result.json'
_WRITTEN = 'unfinished.json'  # in the folder until this process has read it

# Bytes of text to a range of keys, whose rows take less.
_RANGE = 1 << 28
# How much text compressed files hold for each of their bytes, about.
_COMPRESSION = 4
# Tokens of a unit that are handed on together.
_CHUNK = 1 << 20

log = logging.getLogger('gpt_jax')


class Beam:
  """Runs the stages with a runner of Beam; see `prepare`."""

  def __init__(self, runner: str, options: str, report: progress.Report):
    """Names a runner as Beam does, with its options as on a command line.

    Args:
      report: of reading for the tokenizer, which this process does.
    """
    self._runner, self._options, self._report = runner, options, report

  def check(self, corpus: Corpus) -> None:
    """Refuses what cannot be done, before anything is."""
    if not corpus.split.num_units:
      raise UsageError(
        f'data.holdout={corpus.settings.holdout!r}: counts characters over '
        'the whole corpus, which no worker of --runner sees; take '
        "'documents(fraction=0.02)', or leave --runner out"
      )
    self._make_runner()

  def _make_runner(self) -> Any:
    try:
      return runners.create_runner(self._runner)
    except (ValueError, ImportError, AttributeError) as e:
      raise UsageError(
        f'--runner={self._runner}: {_line(e)}; name one of Beam, such as '
        'DirectRunner, DataflowRunner, FlinkRunner or SparkRunner'
      ) from e

  def _run(self, lay_out: Callable[[beam.Pipeline], None]):
    """Runs a pipeline, and waits for its end."""
    try:
      options = pipeline_options.PipelineOptions(shlex.split(self._options))
      pipeline = beam.Pipeline(runner=self._make_runner(), options=options)
    except SystemExit as e:  # of Beam's parser, which has said why
      raise UsageError(
        f'--beam_options={self._options!r}: Beam refuses it; see the line above'
      ) from e
    lay_out(pipeline)
    try:
      pipeline.run().wait_until_finish()
    except Exception as e:
      # Beam raises what a worker raised as text, or with its own added.
      if isinstance(e, UsageError) or _OF_OURS.search(str(e)):
        raise UsageError(_line(e)) from e
      raise

  def clean(self, corpus: Corpus, folder: str) -> tuple[Source, dict[str, Any]]:
    """Cleans the corpus, unless an earlier process did and failed later.

    Args:
      folder: of the store: a path or a URL that all workers see.
    """
    settings, source = corpus.read, corpus.split.source
    versions = choices.versions()
    all_of_it = [
      settings.source,
      settings.clean,
      stages.FORMAT,
      inputs.look(corpus.files),
      versions,
    ]
    # A hash, so that what workers are sent does not grow with the files.
    wanted = files.digest(all_of_it)
    if result := _read_result(folder, wanted):
      log.info('%s: going on after cleaning', folder)
    else:
      stages.check_units(settings.source, len(source.units))
      files.delete(folder, FOLDER)
      _write_steps(files.join(folder, FOLDER), [*corpus.steps])
      num_bytes = source.num_bytes
      if num_bytes is None:
        num_bytes = _COMPRESSION * sum(
          os.path.getsize(path) for path in source.files.values() if os.path.isfile(path)
        )
      num_ranges = -(-num_bytes // _RANGE) or 1
      names = inputs.names_hash(source.files)
      work = CleanWork(settings, names, folder, num_ranges, wanted, versions)
      phases = stages.phases([*corpus.steps])
      num_units = len(source.units)
      self._run(functools.partial(_lay_out_cleaning, work, phases, num_units))
      result = _read_result(folder, wanted)
      assert result is not None, f'we do not see what workers wrote to {folder}'
    below = files.join(folder, FOLDER)
    return stages.cleaned(source, below, result), cleaning.report(corpus, folder, result)

  def write(self, corpus: Corpus, folder: str, looked_at: dict[str, str]) -> StoreContents:
    """Writes the arrays of the store, from their beginning."""
    del looked_at  # of what an earlier process wrote nothing is used
    settings, split = corpus.read, corpus.split
    made = encode.start(corpus, folder, self._report)
    # Without the files of other settings, which are not for workers.
    names = inputs.names_hash(split.files)
    work = EncodeWork(settings, names, folder, encode.dtype_of(made))
    started = time.monotonic()
    self._run(functools.partial(_lay_out_encoding, work, split.num_units))
    data = files.read(folder, _WRITTEN)
    assert data is not None, f'the workers do not see {folder}'
    files.delete(folder, _WRITTEN)
    found = json.loads(data)
    splits = {
      held_out: SplitContents(
        {
          array: Written(*found['arrays'][f'{array}/{held_out}'])
          for array in (TOKENS, DOCUMENT_ENDS, SENTENCE_ENDS)
        },
        found['num_bytes'][held_out],
        found['parts'][held_out],
      )
      for held_out in [False, True][: 1 + split.holds_out]
    }
    return StoreContents(
      tokenizer=made,
      splits=splits,
      sha256=found['sha256'],
      skipped=found['skipped'],
      seconds=time.monotonic() - started,
      copies=Copies(*found['copies']),
    )


_OF_OURS = re.compile(r'gpt_jax\.[\w.]*(?:UsageError|Bad): (.*)')


def _line(error: Exception) -> str:
  """The text of an error without what Beam adds."""
  text = str(error)
  found = _OF_OURS.search(text)
  line = found[1] if found else text.strip().partition('\n')[0]
  return line.partition(' [while running')[0]


def _check_files(settings: Settings, found: dict[str, str], expected: str):
  """Refuses a worker that sees other files than this process."""
  if inputs.names_hash(found) != expected:
    raise UsageError(
      f'data.source={settings.source!r}: a worker finds other files than the '
      'process that started it; name a place that all machines see'
    )


# Rows, places and sketches of one shard, of a range of keys.
_Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


class CleanWork(NamedTuple):
  """Settings of all workers that clean."""

  settings: Settings  # say what the documents are
  files: str  # a hash of their names, so that all workers see the same ones
  folder: str  # of the store
  num_ranges: int  # of keys that are compared together
  wanted: str  # a hash of all that the result depends on
  versions: dict[str, str]  # of libraries

  @property
  def cleaning(self) -> str:
    """The folder of the documents on their way."""
    return files.join(self.folder, FOLDER)


class Clean(beam.DoFn):
  """Takes shards through phase `number`: (shard, findings) to shard.

  Besides come the rows, `(range of keys, rows)`, and the counts.
  """

  def __init__(self, work: CleanWork, number: int):
    self._work, self._number = work, number

  def setup(self):
    """Reads the steps, once in a worker."""
    self._phases = _phases(self._work)
    # A library that is missing here is reported by the step that needs it.
    ours, theirs = choices.versions(), self._work.versions
    if other := {k: v for k, v in ours.items() if v != theirs.get(k)}:
      raise UsageError(
        f'data.clean={self._work.settings.clean!r}: a worker has {other}, the '
        f'process that started it has {theirs}; install the same versions'
      )

  def process(self, element: tuple[int, Iterable[np.ndarray]]) -> Iterator[Any]:
    shard, findings = element
    documents = stages.read(self._work.cleaning, self._number - 1, shard)
    yield from self._cleaned(shard, documents, stages.merged(findings))

  def _cleaned(
    self, shard: int, documents: Iterable[Document], findings: np.ndarray
  ) -> Iterator[Any]:
    phase = self._phases[self._number]
    done = stages.clean_shard(phase, documents, findings)
    name = stages.shard_name(self._number, shard)
    stages.write_sealed(self._work.cleaning, name, done.documents)
    yield TaggedOutput(COUNTS, done.counts)
    cuts = stages.key_cuts(done.rows[0], self._work.num_ranges)
    for i, rows in enumerate(np.split(done.rows, cuts, axis=1)):
      if rows.shape[1]:
        places = np.unique(rows[1])
        sketches = done.sketches[np.searchsorted(done.places, places)]
        yield TaggedOutput(ROWS, (i, (rows, places, sketches)))
    yield shard


class Read(Clean):
  """Reads units, and takes their documents through the first phase.

  Besides what `Clean` gives come counts of what could not be read.
  """

  def __init__(self, work: CleanWork):
    super().__init__(work, 0)

  def setup(self):
    super().setup()
    settings = self._work.settings
    self._corpus = sources.load('data.source', settings.source)
    _check_files(settings, self._corpus.files, self._work.files)
    self._in_mixture = mixture.is_mixture(settings.source)

  def process(self, element: int) -> Iterator[Any]:
    skipped = collections.Counter[str]()
    documents = self._corpus.documents(skipped, element)
    batches = stages.batches(documents, self._in_mixture, element)
    for shard, batch in batches:
      yield from self._cleaned(shard, batch, stages.merged([]))
    for kind, count in skipped.items():
      yield TaggedOutput(SKIPPED, (kind, count))


class Judge(beam.DoFn):
  """Compares the documents that phase `number` left and that share a key."""

  def __init__(self, work: CleanWork, number: int):
    self._work, self._number = work, number

  def setup(self):
    """Reads the steps, once in a worker."""
    self._step = _phases(self._work)[self._number].last

  def process(self, element: tuple[int, Iterable[_Rows]]) -> Iterator[np.ndarray]:
    parts = [*element[1]]
    places = np.concatenate([part[1] for part in parts])
    sketches = np.concatenate([part[2] for part in parts])
    order = np.argsort(places)
    places, sketches = places[order], sketches[order]
    assert self._step is not None
    found = stages.judge(
      self._step,
      [part[0] for part in parts],
      lambda wanted: sketches[np.searchsorted(places, wanted)],
    )
    if found.shape[1]:
      yield found


def _phases(work: CleanWork) -> list[Phase]:
  """The phases of `data.clean`, with what the steps learned."""
  data = files.read(work.cleaning, _STEPS)
  if data is None:
    raise UsageError(
      f'--out={work.folder}: a worker does not see what the process that '
      'started it wrote there; name a place that all machines see'
    )
  steps = choices.load(work.settings.clean)
  with np.load(io.BytesIO(data)) as trained:
    for name, values in trained.items():
      step = steps[int(name)]
      assert isinstance(step, Quality)
      steps[int(name)] = dataclasses.replace(step, weights=values[:-1], bias=float(values[-1]))
  return stages.phases(steps)


def _write_steps(folder: str, steps: list[Step]):
  """Trains what the steps learn from, and writes it for all workers."""
  trained = {
    f'{i}': np.append(step.weights, step.bias)
    for i, step in enumerate(choices.ready(steps))
    if isinstance(step, Quality) and step.weights is not None
  }
  data = io.BytesIO()
  np.savez(data, allow_pickle=False, **trained)
  files.write(folder, _STEPS, data.getvalue())


def conclude(findings: Sequence[np.ndarray], work: CleanWork, number: int) -> np.ndarray:
  """The decision of a step that looks across groups."""
  step = _phases(work)[number].last
  assert step is not None
  return stages.conclude(step, findings)


def write_result(
  _: None,
  work: CleanWork,
  names: Sequence[Sequence[str]],
  shards: Sequence[int],
  skipped: Sequence[tuple[str, int]],
  *totals: report.Counts,
):
  """Writes the result for the process that waits."""
  entries = []
  for phase, total in enumerate(totals):
    of_phase = report.entries(names[phase], total)
    stages.name_likes(work.cleaning, phase, of_phase)
    entries += of_phase
  result = Result(len(names) - 1, sorted(shards), dict(sorted(skipped)), entries)
  data = json.dumps({'wanted': work.wanted, 'result': result}).encode()
  files.write(work.cleaning, _RESULT, data)


def _read_result(folder: str, wanted: str | None = None) -> Result | None:
  """Reads the result; None if there is none, or not for `wanted`."""
  data = files.read(files.join(folder, FOLDER), _RESULT)
  if data is None:
    return None
  entries = json.loads(data)
  if wanted not in (None, entries['wanted']):
    return None
  return Result(*entries['result'])


def _lay_out_cleaning(
  work: CleanWork, phases: Sequence[Phase], num_units: int, pipeline: beam.Pipeline
):
  """Puts the stages together."""
  shards, rows, counts, skipped = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'read' >> beam.ParDo(Read(work)).with_outputs(ROWS, COUNTS, SKIPPED, main='shards')
  )
  sums = [counts]
  for number, phase in enumerate(phases[1:], start=1):
    findings = _findings(work, number - 1, rows, phase.first)
    # Each shard is there at least once, without findings.
    each = shards | f'shards {number}' >> beam.Map(lambda shard: (shard, stages.merged([])))
    shards, rows, counts = (
      (each, findings)
      | f'join {number}' >> beam.Flatten()
      # Waits for the phase before, all over.
      | f'by shard {number}' >> beam.GroupByKey()
      | f'clean {number}'
      >> beam.ParDo(Clean(work, number)).with_outputs(ROWS, COUNTS, main='shards')
    )
    sums.append(counts)
  totals = [
    pvalue.AsSingleton(counts | f'add up {i}' >> beam.CombineGlobally(report.merge))
    for i, counts in enumerate(sums)
  ]
  left_out = skipped | 'left out' >> beam.CombinePerKey(sum)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'write the result'
    >> beam.Map(
      write_result,
      work,
      [phase.names for phase in phases],
      pvalue.AsList(shards),
      pvalue.AsList(left_out),
      *totals,
    )
  )


def _findings(work: CleanWork, number: int, rows: Any, step: Any) -> Any:
  """The findings of a step about the documents that phase `number` left."""
  found = (
    rows
    | f'by keys {number}' >> beam.GroupByKey()
    | f'judge {number}' >> beam.ParDo(Judge(work, number))
  )
  if step.concludes:
    found = (
      found
      | f'gather {number}' >> combiners.ToList()
      | f'conclude {number}' >> beam.Map(conclude, work, number)
    )
  return found | f'to shards {number}' >> beam.FlatMap(stages.by_shard)


# Which file of which array of which split: a key that Beam can group by.
File = tuple[str, bool, int]

# The counts of each unit, by columns of `Places.starts`.
_COLUMNS = [
  (array, held_out)
  for array in (TOKENS, DOCUMENT_ENDS, SENTENCE_ENDS)
  for held_out in (False, True)
]


class EncodeWork(NamedTuple):
  """Settings of all workers that encode."""

  settings: Settings  # say what the documents are
  files: str  # a hash of their names, so that all workers see the same ones
  folder: str  # of the store; holds the tokenizer
  dtype: str  # of the tokens


class Encode(beam.DoFn):
  """The documents of unit i, to (array, held out, unit, offset, values).

  The offset and the ends are counted from the unit's first. Besides come the
  documents' hashes, `(unit, offset, hashes)`, the unit's counts, and its
  `Duplicates`.
  """

  def __init__(self, work: EncodeWork):
    self._work = work
    self._bytes = metrics.Metrics.counter('gpt_jax', 'bytes')
    self._documents = metrics.Metrics.counter('gpt_jax', 'documents')

  def setup(self):
    settings, folder = self._work.settings, self._work.folder
    split = holdout.split(settings.source, settings.holdout)
    if choices.load(settings.clean):
      result = _read_result(folder)
      assert result is not None, f'we do not see what workers wrote to {folder}'
      below = files.join(folder, FOLDER)
      left = stages.cleaned(split.source, below, result)
      split = holdout.cleaned(split, left)
    _check_files(settings, split.files, self._work.files)
    self._split = split
    self._made = tokenizer.load(files.join(folder, store.TOKENIZER))

  def process(self, unit: int) -> Iterator[Any]:
    settings = self._work.settings
    in_mixture = mixture.is_mixture(settings.source)
    splits = {
      held_out: encode.SplitArrays(settings.sentences, in_mixture) for held_out in (False, True)
    }
    same = Duplicates(pairs=self._split.pairs)
    hashes, num_hashed, waiting = [], 0, 0
    taken = True
    skipped = collections.Counter[str]()
    for part in self._split.unit(unit, skipped):
      digest, size = duplicates.of_part(part)
      hashes.append(digest)
      if self._split.holds_out:
        same.add(part.document.text, part.held_out)
      for piece in encode.pieces(part, self._made):
        text = encode.text_of(piece)
        (found,) = encode.encode_texts(self._made, settings.sentences, [text])
        taken = splits[part.held_out].add(piece, found)
        waiting += len(found.ids)
        if waiting >= _CHUNK:
          yield from self._chunks(unit, splits)
          waiting = 0
      splits[part.held_out].num_bytes += size * taken
      self._bytes.inc(size)
      self._documents.inc()
      if len(hashes) >= _CHUNK // duplicates.SIZE:
        yield TaggedOutput(HASHES, (unit, num_hashed, b''.join(hashes)))
        num_hashed += len(hashes)
        hashes = []
    yield from self._chunks(unit, splits)
    yield TaggedOutput(HASHES, (unit, num_hashed, b''.join(hashes)))
    dropped = sum(split.num_dropped for split in splits.values())
    without = {encode.DROPPED: dropped} if dropped else {}
    counts = {
      'splits': [splits[held_out].counts for held_out in (False, True)],
      'skipped': dict(skipped) | without,
    }
    yield TaggedOutput(COUNTS, (unit, json.dumps(counts)))
    yield TaggedOutput(SAME, same)

  def _chunks(
    self, unit: int, splits: dict[bool, encode.SplitArrays]
  ) -> Iterator[tuple[str, bool, int, int, bytes]]:
    for held_out, split in splits.items():
      for array, values in split.take().items():
        offset = split.lengths[array] - len(values)
        dtype = store.array_dtype(array, self._work.dtype)
        yield array, held_out, unit, offset, values.astype(dtype).tobytes()


class Places(NamedTuple):
  """Where the units begin."""

  # int64 [num_units + 1, 6] as bytes: of each array, see `_COLUMNS`, where each
  # unit begins; the last row is where all end.
  starts: bytes
  # `num_bytes` and `parts` of each split, and `skipped`.
  summary: dict[str, Any]

  def start(self, array: str, held_out: bool, unit: int) -> int:
    """Where a unit begins in an array; unit -1: the array's length."""
    table = np.frombuffer(self.starts, np.int64).reshape(-1, len(_COLUMNS))
    return int(table[unit, _COLUMNS.index((array, held_out))])

  def document(self, unit: int) -> int:
    """The number of a unit's first document, over both splits."""
    return sum(self.start(DOCUMENT_ENDS, side, unit) for side in (False, True))


def places_of(counts: Iterable[tuple[int, str]]) -> Places:
  """Adds up the counts of all units, in their order."""
  found = [json.loads(text) for _, text in sorted(counts)]
  starts = np.array(
    [
      [0] * len(_COLUMNS),
      *(
        [count['splits'][side]['lengths'].get(array, 0) for array, side in _COLUMNS]
        for count in found
      ),
    ],
    np.int64,
  ).cumsum(axis=0)
  summary = {'num_bytes': [0, 0], 'parts': [{}, {}]}
  skipped = collections.Counter()
  for count, start in zip(found, starts[:-1], strict=True):
    skipped.update(count['skipped'])
    for side, split in enumerate(count['splits']):
      summary['num_bytes'][side] += split['num_bytes']
      for source, stop in split['parts'].items():
        summary['parts'][side][source] = int(start[side]) + stop
  return Places(starts.tobytes(), summary | {'skipped': dict(skipped)})


class Place(beam.DoFn):
  """A chunk to ((array, held out, file), (offset in it, values))."""

  def __init__(self, work: EncodeWork):
    self._work = work

  def process(
    self, chunk: tuple[str, bool, int, int, bytes], places: Places
  ) -> Iterator[tuple[File, tuple[int, bytes]]]:
    array, held_out, unit, offset, data = chunk
    dtype = store.array_dtype(array, self._work.dtype)
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
  """The digest of some documents: see `duplicates.Digest`."""
  unit, offset, data = hashes
  found = duplicates.Digest(places.document(unit) + offset)
  for i in range(0, len(data), duplicates.SIZE):
    found.add(data[i : i + duplicates.SIZE])
  return found.hexdigest()


class CompareSplits(beam.CombineFn):
  """Merges the `Duplicates` of all units, at most 16 MB each, to `Copies`."""

  def create_accumulator(self) -> Duplicates:
    return Duplicates()

  def add_input(self, total: Duplicates, of_unit: Duplicates) -> Duplicates:
    return total.merge(of_unit)

  def merge_accumulators(self, totals: Iterable[Duplicates]) -> Duplicates:
    return functools.reduce(Duplicates.merge, totals, Duplicates())

  def extract_output(self, total: Duplicates) -> Copies:
    return total.copies()


class Write(beam.DoFn):
  """The parts of one file to (array, held out, file, its checksums)."""

  def __init__(self, work: EncodeWork):
    self._work = work

  def process(
    self, parts: tuple[File, Iterable[tuple[int, bytes]]], places: Places
  ) -> Iterator[tuple[str, bool, int, list[int]]]:
    (array, held_out, file), found = parts
    dtype = store.array_dtype(array, self._work.dtype)
    folder = self._work.folder
    if held_out:
      folder = files.join(folder, VALIDATION)
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
    store.write_shard(folder, array, dtype, length, file, values, compression)
    yield array, held_out, file, manifest.checksums(values)


def write_contents(
  _: None,
  work: EncodeWork,
  places: Places,
  copies: Copies,
  checksums: Sequence[tuple],
  hexdigests: Sequence[str],
):
  """Writes the contents of the manifests for the process that waits."""
  arrays = {f'{array}/{side}': (places.start(array, side, -1), []) for array, side in _COLUMNS}
  for array, held_out, _, found in sorted(checksums):
    arrays[f'{array}/{held_out}'][1].extend(found)
  sha256 = duplicates.total(hexdigests)
  entries = {**places.summary, 'arrays': arrays, 'sha256': sha256}
  entries['copies'] = [*copies]
  files.write(work.folder, _WRITTEN, json.dumps(entries).encode())


def _lay_out_encoding(work: EncodeWork, num_units: int, pipeline: beam.Pipeline):
  """Puts the stages together."""
  beside = COUNTS, HASHES, SAME
  chunks, counts, hashes, same = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'encode' >> beam.ParDo(Encode(work)).with_outputs(*beside, main='chunks')
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
  copies = same | 'compare the splits' >> beam.CombineGlobally(CompareSplits())
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'write the contents'
    >> beam.Map(
      write_contents,
      work,
      places,
      pvalue.AsSingleton(copies),
      pvalue.AsList(checksums),
      pvalue.AsList(hexdigests),
    )
  )
