# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cleans a corpus on Apache Beam: the same bytes as `clean.run` leaves.

  number of a unit   -> its documents, in shards: Read
  shard, findings    -> what the steps leave of it, in a file; its rows: Clean
  rows of some keys  -> findings, by shard: Judge
  findings of a step -> the decision, where it looks across groups: conclude

Clean and Judge take turns, once for each step that compares documents. Texts go
through files in the folder of the store; Beam moves rows, findings and counts.
Only the links between near-duplicates (16 bytes each), the numbers of shards
and the sums of counts come together in one place. A worker holds a shard, or
the rows of one range of keys. A stage that is run twice, as runners may, writes
the same bytes twice.
"""

import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np
from apache_beam import (  # pyright: ignore[reportMissingImports]
  combiners,
  pvalue,
)
from apache_beam.pvalue import (  # pyright: ignore[reportMissingImports]
  TaggedOutput,
)

from gpt_jax.files import files
from gpt_jax.spec import UsageError
from gpt_jax.text import inputs, sources
from gpt_jax.text.clean import choices, report, shards, shared, steps
from gpt_jax.text.clean.run import Cleaned
from gpt_jax.text.clean.shards import Phase
from gpt_jax.text.clean.steps import Document, Findings, Global
from gpt_jax.text.holdout import Split
from gpt_jax.tokens import mixture
from gpt_jax.tokens.beam import job as beam_job
from gpt_jax.tokens.beam.job import Job
from gpt_jax.tokens.encode import Settings

ROWS, COUNTS, SKIPPED = 'rows', 'counts', 'skipped'  # besides the main output

# Rows, places and sketches of one shard, of a range of keys; as bytes.
_Rows = tuple[bytes, bytes, bytes]


class Work(NamedTuple):
  """What every worker knows."""

  settings: Settings  # say what the documents are
  files: str  # a hash of their names, so that all workers see the same ones
  folder: str  # of the store
  num_ranges: int  # of keys that are looked at together
  wanted: str  # a hash of all that the result depends on
  versions: dict[str, str]  # of libraries


def alone(shard: int) -> tuple[int, bytes]:
  """A shard without findings: each is there at least once."""
  return shard, b''


class Clean(beam.DoFn):
  """Takes shards through a phase: (shard, findings) to shard.

  Besides come the rows, `(range of keys, rows)`, and the counts.
  """

  def __init__(self, work: Work, number: int):
    """For phase `number`."""
    self._work, self._number = work, number

  def setup(self):
    """Reads the steps, once in a worker."""
    self._phases = _phases(self._work)
    # Of what is missing here, the step that needs it says so.
    ours, theirs = choices.versions(), self._work.versions
    if other := {k: v for k, v in ours.items() if v != theirs.get(k)}:
      raise UsageError(
        f'data.clean={self._work.settings.clean!r}: a worker has {other}, the '
        f'process that started it has {theirs}; install the same versions'
      )

  def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
    shard, found = element
    table = _table(found)
    table = table[:, np.lexsort(table[::-1])]
    documents = shared.read(self._work.folder, self._number - 1, shard)
    yield from self._cleaned(shard, documents, table)

  def _cleaned(
    self, shard: int, documents: Iterable[Document], findings: np.ndarray
  ) -> Iterator[Any]:
    written = shared.write(
      *(self._phases, self._number, documents, findings),
      *(self._work.folder, shard),
    )
    counts = report.sums(shard, written.counts)
    yield TaggedOutput(COUNTS, counts)
    for part in _ranges(written, self._work.num_ranges):
      yield TaggedOutput(ROWS, part)
    yield shard


class Read(Clean):
  """Reads units, and takes their documents through the first phase.

  Besides what `Clean` gives come counts of what could not be read.
  """

  def __init__(self, work: Work):
    """For the units of `work.settings`."""
    super().__init__(work, 0)

  def setup(self):
    super().setup()
    source = self._work.settings.source
    self._corpus = sources.load('data.source', source)
    if inputs.names_hash(self._corpus.files) != self._work.files:
      raise UsageError(
        f'data.source={source!r}: a worker finds other files than the process '
        'that started it; name a place that all machines see'
      )
    self._in_mixture = mixture.is_mixture(source)

  def process(self, element: int) -> Iterator[Any]:
    unit = self._corpus.units[element]
    none = _table([])
    batches = shared.batches(element, unit, self._in_mixture)
    for shard, documents in batches:
      yield from self._cleaned(shard, documents, none)
    for kind, count in unit.skipped().items():
      yield TaggedOutput(SKIPPED, (kind, count))


def _ranges(
  written: shared.ShardResult, num_ranges: int
) -> Iterator[tuple[int, _Rows]]:
  """Cuts the rows of a shard by their keys, with the sketches they need."""
  edges = [(i << 64) // num_ranges for i in range(1, num_ranges)]
  cuts = np.searchsorted(written.rows[0], np.array(edges, np.uint64))
  for i, rows in enumerate(np.split(written.rows, cuts, axis=1)):
    if rows.shape[1]:
      places = written.places[:0]
      sketches = written.sketches[:0]
      if len(written.places):  # else the step has no sketches
        places = np.unique(rows[1])
        sketches = written.sketches[np.searchsorted(written.places, places)]
      yield i, (rows.tobytes(), places.tobytes(), sketches.tobytes())


class Judge(beam.DoFn):
  """Compares the documents that have a key in common."""

  def __init__(self, work: Work, number: int):
    """For what phase `number` left."""
    self._work, self._number = work, number

  def setup(self):
    """Reads the steps, once in a worker."""
    phase = _phases(self._work)[self._number]
    assert phase.last is not None
    self._step: Global = phase.last

  def process(self, element: tuple[int, Iterable[_Rows]]) -> Iterator[bytes]:
    parts = [*element[1]]
    rows = _table((part[0] for part in parts), 3)
    rows = rows[:, np.lexsort(rows[::-1])]
    places = np.frombuffer(b''.join(part[1] for part in parts), np.uint64)
    sketches = np.frombuffer(b''.join(part[2] for part in parts), np.uint32)
    sketches = sketches.reshape(len(places), self._step.sketch_size)
    order = np.argsort(places)
    places, sketches = places[order], sketches[order]
    found = self._step.judge(
      *(rows[0], rows[1], rows[2]),
      lambda wanted: sketches[np.searchsorted(places, wanted)],
    )
    if len(found.places):
      yield np.stack(found).tobytes()


def _phases(work: Work) -> list[Phase]:
  return shared.read_phases(work.folder, work.settings.clean)


def conclude(parts: Sequence[bytes], work: Work, number: int) -> bytes:
  """The decision of a step that looks across groups."""
  step = _phases(work)[number].last
  assert step is not None
  return np.stack(step.conclude(Findings(*_table(parts)))).tobytes()


def by_shard(found: bytes) -> Iterator[tuple[int, bytes]]:
  """Cuts findings by the shards that they are about."""
  table = _table([found])
  table = table[:, np.lexsort(table[::-1])]
  starts = steps.group_starts(shared.shards_of(table[0]))
  for part in np.split(table, starts[1:], axis=1):
    if part.shape[1]:
      yield int(shared.shards_of(part[0, :1])[0]), part.tobytes()


def _table(parts: Iterable[bytes], columns: int = 2) -> np.ndarray:
  """Puts tables together that were made bytes; uint64 [columns, N]."""
  tables = [np.frombuffer(part, np.uint64) for part in parts]
  return np.concatenate(
    [np.empty((columns, 0), np.uint64)]
    + [table.reshape(columns, -1) for table in tables],
    axis=1,
  )


def tell(
  _: None,
  work: Work,
  names: Sequence[Sequence[str]],
  numbers: Sequence[int],
  skipped: Sequence[tuple[str, int]],
  *totals: report.Sums,
):
  """Writes what the process that waits needs."""
  shared.write_result(
    work.folder,
    shared.Result(
      wanted=work.wanted,
      phase=len(names) - 1,
      shards=sorted(numbers),
      skipped=dict(sorted(skipped)),
      entries=[
        report.entries(of_phase, total)
        for of_phase, total in zip(names, totals, strict=True)
      ],
    ),
  )


# Bytes of text to a range of keys, whose rows take less.
_RANGE = 1 << 28

# How much text compressed files hold for each of their bytes, about.
_COMPRESSION = 4

log = logging.getLogger('gpt_jax')


def clean(settings: Settings, split: Split, folder: str, job: Job) -> Cleaned:
  """Cleans the corpus, unless an earlier process did and failed later.

  Args:
    split: of the corpus before cleaning, whose files are compared.
    folder: of the store: a path or a URL that all workers see.
  """
  versions = choices.versions()
  all_of_it = [
    *(settings.source, settings.clean),
    *(inputs.look(split.files), versions),
  ]
  # A hash, so that what workers are sent does not grow with the files.
  wanted = hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()
  result = shared.read_result(folder)
  if result is None or result.wanted != wanted:
    _clean(settings, folder, job, wanted, versions)
    result = shared.read_result(folder)
    assert result is not None, f'we do not see what workers wrote to {folder}'
  else:
    log.info('%s: going on after cleaning', folder)
  entries = [entry for of_phase in result.entries for entry in of_phase]
  return Cleaned(shared.cleaned(settings.source, folder), entries)


def _clean(
  settings: Settings,
  folder: str,
  job: Job,
  wanted: str,
  versions: dict[str, str],
):
  """Runs the pipeline."""
  corpus = sources.load('data.source', settings.source)
  shared.check_units(settings.source, len(corpus.units))
  files.delete(folder, shared.FOLDER)
  shared.write_steps(folder, settings.clean)
  num_bytes = corpus.num_bytes
  if num_bytes is None:
    num_bytes = _COMPRESSION * sum(
      os.path.getsize(path)
      for path in corpus.files.values()
      if os.path.isfile(path)
    )
  num_ranges = -(-num_bytes // _RANGE) or 1
  names = inputs.names_hash(corpus.files)
  work = Work(settings, names, folder, num_ranges, wanted, versions)
  phases = shards.phases(choices.load(settings.clean))
  lay_out = functools.partial(_lay_out, work, phases, len(corpus.units))
  beam_job.run(job, lay_out)


def _lay_out(
  work: Work, phases: Sequence[Phase], num_units: int, pipeline: beam.Pipeline
):
  """Puts the stages together."""
  numbers, rows, counts, skipped = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'read'
    >> beam.ParDo(Read(work)).with_outputs(
      *(ROWS, COUNTS, SKIPPED), main='numbers'
    )
  )
  sums = [counts]
  for number, phase in enumerate(phases[1:], start=1):
    findings = _findings(work, number - 1, rows, phase.first)
    numbers, rows, counts = (
      (numbers | f'shards {number}' >> beam.Map(alone), findings)
      | f'join {number}' >> beam.Flatten()
      # Waits for the phase before, all over.
      | f'by shard {number}' >> beam.GroupByKey()
      | f'clean {number}'
      >> beam.ParDo(Clean(work, number)).with_outputs(
        *(ROWS, COUNTS), main='numbers'
      )
    )
    sums.append(counts)
  totals = [
    pvalue.AsSingleton(
      counts | f'add up {i}' >> beam.CombineGlobally(report.merge)
    )
    for i, counts in enumerate(sums)
  ]
  left_out = skipped | 'left out' >> beam.CombinePerKey(sum)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'tell'
    >> beam.Map(
      *(tell, work, [phase.names for phase in phases]),
      pvalue.AsList(numbers),
      pvalue.AsList(left_out),
      *totals,
    )
  )


def _findings(work: Work, number: int, rows: Any, step: Any) -> Any:
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
  return found | f'to shards {number}' >> beam.FlatMap(by_shard)
