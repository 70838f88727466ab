# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a token store on Apache Beam: the same bytes as `build` writes.

The tokenizer is trained here, on the same sample as without Beam; what takes
long, reading and encoding, is done by the runner's workers, which must see
corpus and store under the same names as we do.
"""

import functools
import json
import logging
import time
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam import (  # pyright: ignore[reportMissingImports]
  combiners,
  pvalue,
)

from gpt_jax.data import (
  array_writer,
  build,
  files,
  holdout,
  inputs,
  manifest,
  progress,
  unfinished,
)
from gpt_jax.data import store as token_store
from gpt_jax.data.beam import job as beam_job
from gpt_jax.data.beam import stages
from gpt_jax.data.beam.job import Job
from gpt_jax.data.beam.stages import COUNTS, HASHES, Work
from gpt_jax.data.holdout import Split
from gpt_jax.data.manifest import Manifest
from gpt_jax.data.split_writer import Settings
from gpt_jax.data.store import DOCUMENT_ENDS, SENTENCE_ENDS, TOKENS
from gpt_jax.data.tokenizers import tokenizer
from gpt_jax.data.tokenizers.tokenizer import Tokenizer

# In the folder until the manifests are written.
_RESULT = 'unfinished.json'

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
  """Writes the store; nothing of an earlier process is gone on with.

  Args:
    settings: for the manifest; the tokenizer is made as they say.
    split: the documents: what cleaning left, where it was done.
    folder: a path or a URL that all workers see.
    job: where it is done.
    report: of reading for the tokenizer.
    cleaning: for the manifest: what was done to the corpus.

  Returns:
    The manifest of the train split, which was written last.

  Raises:
    UsageError: a document or the tokenizer does not do.
  """
  assert split.units is not None  # see beam_job.check
  for name in (*token_store.PARTS, unfinished.STATE):
    files.delete(folder, name)
  found = inputs.look(split.files)
  made = build.build_tokenizer(settings, split, folder, report)
  # Without the files of other settings, which are not for workers.
  corpus = holdout.split(settings.source, settings.holdout)
  work = Work(
    settings,
    inputs.names_hash(corpus.files),
    folder,
    array_writer.token_dtype(tokenizer.num_ids(made)),
  )
  started = time.monotonic()
  beam_job.run(job, functools.partial(_lay_out, work, len(split.units)))
  data = files.read(folder, _RESULT)
  assert data is not None, f'the workers do not see {folder}'
  entries = json.loads(data)
  done = _manifests(settings, made, entries, cleaning, split.pairs)
  for held_out, written in done.items():
    if not written.num_bytes and (split.holds_out or not held_out):
      raise build.empty(settings, held_out)
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
  build.log_counts(done, sum(m.num_bytes for m in done.values()), seconds)
  return done[False]


def _lay_out(work: Work, num_units: int, pipeline: beam.Pipeline):
  """Puts the stages together."""
  chunks, counts, hashes = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'encode'
    >> beam.ParDo(stages.Encode(work)).with_outputs(
      COUNTS, HASHES, main='chunks'
    )
  )
  gathered = counts | 'gather counts' >> combiners.ToList()
  places = pvalue.AsSingleton(
    gathered | 'add up counts' >> beam.Map(stages.places)
  )
  checksums = (
    chunks
    | 'place' >> beam.ParDo(stages.Place(work), places)
    | 'group by file' >> beam.GroupByKey()
    | 'write' >> beam.ParDo(stages.Write(work), places)
  )
  hexdigests = hashes | 'add up hashes' >> beam.Map(stages.add_up, places)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'tell'
    >> beam.Map(
      stages.result,
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
  """The manifests of both splits, from what the workers told."""
  return {
    held_out: Manifest(
      **settings._asdict(),
      source_sha256=entries['sha256'],
      tokenizer_fingerprint=made.fingerprint,
      vocab_size=made.vocab_size,
      eos_id=made.eos_id,
      dtype=array_writer.token_dtype(tokenizer.num_ids(made)),
      num_tokens=entries['lengths'][f'{TOKENS}/{held_out}'],
      num_documents=entries['lengths'][f'{DOCUMENT_ENDS}/{held_out}'],
      num_bytes=entries['num_bytes'][held_out],
      tokens_crc32=entries['crc32'][f'{TOKENS}/{held_out}'],
      document_ends_crc32=entries['crc32'][f'{DOCUMENT_ENDS}/{held_out}'],
      num_sentences=entries['lengths'][f'{SENTENCE_ENDS}/{held_out}'],
      sentence_ends_crc32=entries['crc32'][f'{SENTENCE_ENDS}/{held_out}'],
      parts=entries['parts'][held_out],
      cleaning=cleaning,
      skipped=entries['skipped'],
      pairs=pairs,
    )
    for held_out in (False, True)
  }
