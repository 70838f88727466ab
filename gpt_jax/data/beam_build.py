# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a token store on Apache Beam: the same bytes as `build` writes.

The tokenizer is trained here, on the same sample as without Beam; what takes
long, reading and encoding, is done by the runner's workers, which must see
corpus and store under the same names as we do.
"""

import json
import logging
import re
import shlex
import time

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam import (  # pyright: ignore[reportMissingImports]
  combiners,
  pvalue,
  runners,
)
from apache_beam.options import (  # pyright: ignore[reportMissingImports]
  pipeline_options,
)

from gpt_jax.data import (
  beam_stages,
  build,
  files,
  inputs,
  manifest,
  progress,
)
from gpt_jax.data import store as token_store
from gpt_jax.data.beam_stages import COUNTS, HASHES, Work
from gpt_jax.data.clean import catalogue
from gpt_jax.data.holdout import Split
from gpt_jax.data.manifest import Manifest
from gpt_jax.data.split_writer import Settings
from gpt_jax.data.store import DOCUMENT_ENDS, TOKENS
from gpt_jax.data.tokenizer import Tokenizer
from gpt_jax.spec import UsageError

# In the folder until the manifests are written.
_RESULT = 'unfinished.json'

log = logging.getLogger('gpt_jax')


def write(
  settings: Settings,
  split: Split,
  folder: str,
  *,
  runner: str,
  options: str,
  report: progress.Report,
) -> Manifest:
  """Writes the store; nothing of an earlier process is gone on with.

  Args:
    settings: for the manifest; the tokenizer is made as they say.
    split: the documents.
    folder: a path or a URL that all workers see.
    runner: as Beam names it: DirectRunner, DataflowRunner, ...
    options: of Beam, as a command line has them.
    report: of reading for the tokenizer.

  Returns:
    The manifest of the train split, which was written last.

  Raises:
    UsageError: an argument, a document or the tokenizer does not do.
  """
  if not catalogue.is_none(settings.clean):
    raise UsageError(
      f'data.clean={settings.clean!r}: is not done on Beam yet; leave --runner '
      'out, or clean the corpus first'
    )
  if split.units is None:
    raise UsageError(
      f'data.holdout={settings.holdout!r}: counts characters over the whole '
      'corpus, which no worker of --runner sees; take '
      "'documents(fraction=0.02)', or leave --runner out"
    )
  chosen = _runner(runner)
  for name in (*token_store.PARTS, build.STATE):
    files.delete(folder, name)
  found = inputs.look(split.files)
  made = build.build_tokenizer(settings, split, folder, report)
  work = Work(
    settings,
    inputs.names_hash(split.files),
    folder,
    token_store.token_dtype(made.vocab_size),
  )
  started = time.monotonic()
  parsed = pipeline_options.PipelineOptions(shlex.split(options))
  pipeline = beam.Pipeline(runner=chosen, options=parsed)
  _lay_out(pipeline, work, len(split.units))
  _run(pipeline)
  data = files.read(folder, _RESULT)
  assert data is not None, f'the workers do not see {folder}'
  done = _manifests(settings, made, json.loads(data))
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


def _runner(name: str):
  try:
    return runners.create_runner(name)
  except (ValueError, ImportError, AttributeError) as e:
    raise UsageError(
      f'--runner={name}: {_line(e)}; name one of Beam, such as DirectRunner, '
      'DataflowRunner, FlinkRunner or SparkRunner'
    ) from e


def _lay_out(pipeline: beam.Pipeline, work: Work, num_units: int):
  """Puts the stages together."""
  chunks, counts, hashes = (
    pipeline
    | 'units' >> beam.Create(range(num_units))
    | 'spread' >> beam.Reshuffle()
    | 'encode'
    >> beam.ParDo(beam_stages.Encode(work)).with_outputs(
      COUNTS, HASHES, main='chunks'
    )
  )
  gathered = counts | 'gather counts' >> combiners.ToList()
  places = pvalue.AsSingleton(
    gathered | 'add up counts' >> beam.Map(beam_stages.places)
  )
  checksums = (
    chunks
    | 'place' >> beam.ParDo(beam_stages.Place(work), places)
    | 'group by file' >> beam.GroupByKey()
    | 'write' >> beam.ParDo(beam_stages.Write(work), places)
  )
  hexdigests = hashes | 'add up hashes' >> beam.Map(beam_stages.add_up, places)
  _ = (
    pipeline
    | 'once' >> beam.Create([None])
    | 'tell'
    >> beam.Map(
      beam_stages.result,
      work,
      _RESULT,
      places,
      pvalue.AsList(checksums),
      pvalue.AsList(hexdigests),
    )
  )


def _run(pipeline: beam.Pipeline):
  """Waits for the end.

  Raises:
    UsageError: what a worker said of a document, as without Beam.
  """
  try:
    pipeline.run().wait_until_finish()
  except Exception as e:
    # Beam raises what a worker raised as text, or with its own added.
    of_ours = isinstance(e, UsageError) or re.search(
      r'gpt_jax\.[\w.]*(?:UsageError|Bad): ', str(e)
    )
    if of_ours:
      raise UsageError(_line(e)) from e
    raise


def _line(error: Exception) -> str:
  """The text of an error without what Beam adds."""
  text = str(error)
  found = re.search(r'gpt_jax\.[\w.]*(?:UsageError|Bad): (.*)', text)
  line = found[1] if found else text.strip().partition('\n')[0]
  return line.partition(' [while running')[0]


def _manifests(
  settings: Settings, made: Tokenizer, entries: dict
) -> dict[bool, Manifest]:
  """The manifests of both splits, from what the workers told."""
  return {
    held_out: Manifest(
      **settings._asdict(),
      source_sha256=entries['sha256'],
      tokenizer_fingerprint=made.fingerprint,
      vocab_size=made.vocab_size,
      eos_id=made.eos_id,
      dtype=token_store.token_dtype(made.vocab_size),
      num_tokens=entries['lengths'][f'{TOKENS}/{held_out}'],
      num_documents=entries['lengths'][f'{DOCUMENT_ENDS}/{held_out}'],
      num_bytes=entries['num_bytes'][held_out],
      tokens_crc32=entries['crc32'][f'{TOKENS}/{held_out}'],
      document_ends_crc32=entries['crc32'][f'{DOCUMENT_ENDS}/{held_out}'],
      parts=entries['parts'][held_out],
      skipped=entries['skipped'],
    )
    for held_out in (False, True)
  }
