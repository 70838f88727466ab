# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cleans a corpus on Apache Beam: the same bytes as `clean.run` leaves.

Clean and Judge (see `clean_stages`) take turns, once for each step that
compares documents. Texts go through files in the folder of the store; Beam
moves rows, findings and counts. Only the links between near-duplicates (16
bytes each), the numbers of shards and the sums of counts come together in one
place.
"""

import functools
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam import (  # pyright: ignore[reportMissingImports]
  combiners,
  pvalue,
)

from gpt_jax.data import files, inputs
from gpt_jax.data.beam import clean_stages as stages
from gpt_jax.data.beam import job as beam_job
from gpt_jax.data.beam.clean_stages import Work
from gpt_jax.data.beam.job import Job
from gpt_jax.data.clean import choices, shards, shared, unordered
from gpt_jax.data.clean.run import Cleaned
from gpt_jax.data.clean.shards import Phase
from gpt_jax.data.holdout import Split
from gpt_jax.data.sources import sources
from gpt_jax.data.split_writer import Settings

# Bytes of text to a range of keys, whose rows take less.
_RANGE = 1 << 28

# How much text compressed files hold for each of their bytes, about.
_COMPRESSION = 4

log = logging.getLogger('gpt_jax')


def clean(settings: Settings, split: Split, folder: str, job: Job) -> Cleaned:
  """Cleans the corpus, unless an earlier process did and failed later.

  Args:
    settings: of the store.
    split: of the corpus as it is; its files are those that matter.
    folder: of the store: a path or a URL that all workers see.
    job: where it is done.

  Raises:
    UsageError: the call is wrong, or a document cannot be read.
  """
  versions = choices.versions()
  all_of_it = [
    *(settings.source, settings.clean),
    *(inputs.look(split.files), versions),
  ]
  # A hash: what workers are told must not grow with the number of files.
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
  phases = shards.phases(choices.load(settings.clean).steps)
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
    >> beam.ParDo(stages.Read(work)).with_outputs(
      *(stages.ROWS, stages.COUNTS, stages.SKIPPED), main='numbers'
    )
  )
  sums = [counts]
  for number, phase in enumerate(phases[1:], start=1):
    findings = _findings(work, number - 1, rows, phase.first)
    numbers, rows, counts = (
      (numbers | f'shards {number}' >> beam.Map(stages.alone), findings)
      | f'join {number}' >> beam.Flatten()
      # Waits for the phase before, all over.
      | f'by shard {number}' >> beam.GroupByKey()
      | f'clean {number}'
      >> beam.ParDo(stages.Clean(work, number)).with_outputs(
        *(stages.ROWS, stages.COUNTS), main='numbers'
      )
    )
    sums.append(counts)
  totals = [
    pvalue.AsSingleton(
      counts | f'add up {i}' >> beam.CombineGlobally(unordered.merge)
    )
    for i, counts in enumerate(sums)
  ]
  left_out = skipped | 'left out' >> beam.CombinePerKey(sum)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'tell'
    >> beam.Map(
      *(stages.tell, work, [phase.names for phase in phases]),
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
    | f'judge {number}' >> beam.ParDo(stages.Judge(work, number))
  )
  if step.concludes:
    found = (
      found
      | f'gather {number}' >> combiners.ToList()
      | f'conclude {number}' >> beam.Map(stages.conclude, work, number)
    )
  return found | f'to shards {number}' >> beam.FlatMap(stages.by_shard)
