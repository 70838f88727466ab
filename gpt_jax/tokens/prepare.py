# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to a token store: sources, tokenizer, splits, files.

A store is whole or none: the manifest of the folder is written last, in one
step. What a killed process leaves the next goes on with.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from typing import Any

from gpt_jax import spec
from gpt_jax.files import files, progress
from gpt_jax.files import workers as workers_lib
from gpt_jax.spec import UsageError
from gpt_jax.text import holdout, inputs, sentences, sources
from gpt_jax.text.clean import choices, decontaminate, shared
from gpt_jax.text.clean import report as clean_report
from gpt_jax.text.clean import run as clean_run
from gpt_jax.text.clean.run import Cleaned
from gpt_jax.text.holdout import Split
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokens import beam as beam_modules
from gpt_jax.tokens import build, eval_sets, manifest, mixture
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.encode import Settings
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import TokenStore, codec

# In the folder while it is being written.
_UNFINISHED = 'unfinished'
_CLEANING = shared.FOLDER

_FIELDS = Settings(
  *('data.source', 'data.holdout', 'tokenizer.name', 'data.clean'),
  *('data.compression', 'data.sentences'),
)

log = logging.getLogger('gpt_jax')


def prepare(
  config: Any,
  folder: str,
  report: progress.Report | None = None,
  *,
  runner: str | None = None,
  beam_options: str = '',
) -> Manifest:
  """Makes the token store that `config` describes, unless it is there.

  Two processes may ask for the same local folder: one writes, one waits.

  Args:
    config: `data.source`, `data.holdout`, `data.clean`,
      `data.compression`, `data.sentences`, `data.workers` and
      `tokenizer.name` are read.
    folder: a path or a URL.
    report: called with stage, bytes done and bytes in all; by default a bar
      is drawn where someone watches.
    runner: of Apache Beam, which then does the work; None: we do it here.
    beam_options: of Apache Beam, as a command line has them.

  Returns:
    The manifest of the train split.
  """
  settings = _settings(config)
  beam = beam_modules.load() if runner else None
  _refuse_foreign(folder)
  if not manifest.exists(folder):  # what is refused here leaves no folder
    choices.check(choices.load(settings.clean).steps)
    spec.build('tokenizer.name', settings.tokenizer, tokenizer.TOKENIZERS)
    _split(settings)
  with files.exclusive(folder, _UNFINISHED):
    if manifest.exists(folder):
      found = manifest.read(folder)
      _check_same(folder, found, settings)
      _remove_cleaning(folder)
      if changed := _changes(settings, folder):
        raise UsageError(
          f'{folder}: the files that this token store was made from have '
          f'changed ({changed}); name another folder, or remove this one'
        )
      return found
    split, cleaning = _split(settings), {}
    workers = workers_lib.count(config.data.workers)
    with contextlib.ExitStack() as stack:
      if report is None:
        report = stack.enter_context(progress.bar())
      job = beam and beam.job.Job(runner, beam_options)
      if beam:
        beam.job.check(job, split, settings.holdout)
      if not choices.is_none(settings.clean):
        if beam:
          cleaned = beam.clean.clean(settings, split, folder, job)
        else:
          cleaned = _clean(settings, split, folder, workers, report)
        split, cleaning = _split_again(settings, split, folder, cleaned)
      write = functools.partial(
        beam.build.write if beam else build.build,
        *(settings, split, folder),
        report=report,
        cleaning=cleaning,
      )
      done = write(job=job) if beam else write(workers=workers)
    _remove_cleaning(folder)
    return done


def ensure(config: Any, folder: str) -> TokenStore:
  """Opens the token store of `config`, preparing it where it is missing."""
  eval_sets.check(config)
  settings = _settings(config)
  _check_rows(config, settings.source)
  if manifest.exists(folder):
    _check_same(folder, manifest.read(folder), settings)
    # A run goes on with what it began with, and where the corpus is not.
    if changed := _changes(settings, folder):
      log.warning(
        '%s: the files that this token store was made from have changed (%s); '
        'it is used as it is',
        *(folder, changed),
      )
  else:
    prepare(config, folder)
  data = config.data
  store = TokenStore.open(folder).ordered(data.source, data.rows)
  eval_sets.ensure(config, store)
  return store


def _check_rows(config: Any, corpus: str):
  """Checks that sources hold what rows are made of, before they are read."""
  calls = {'data.source': corpus}
  calls |= {f'eval.sets.{n}': call for n, call in config.eval.sets.items()}
  for field, call in calls.items():
    pairs = sources.of_pairs(field, call)
    token_store.check_pairs(config.data.rows, pairs, f'{field}={call!r}')


def _settings(config: Any) -> Settings:
  data: Any = config.data
  chosen: Any = config.tokenizer
  source = data.source
  if mixture.is_mixture(source):
    source = mixture.corpus(source, data.sources)
    if spec.parse('data.holdout', data.holdout)[0].name == 'tail':
      raise UsageError(
        f'data.holdout={data.holdout!r}: would hold out the last source of a '
        "mixture alone; take 'documents(fraction=0.02)'"
      )
  codec(data.compression)
  sentences.splitter(data.sentences)
  return Settings(
    *(source, data.holdout, chosen.name, data.clean),
    *(data.compression, data.sentences),
  )


def _check_same(folder: str, found: Manifest, wanted: Settings):
  """Raises if the store was prepared with other settings."""
  differing = []
  for field, name, value in zip(_FIELDS, Settings._fields, wanted, strict=True):
    before = getattr(found, name)
    if spec.parse(field, before) != spec.parse(field, value):
      differing.append(f'{field}={before!r} where the config has {value!r}')
  if differing:
    raise UsageError(
      f'{folder}: the token store was prepared with '
      + ', and with '.join(differing)
      + '; name another data.store, or remove the folder'
    )


def _refuse_foreign(folder: str):
  """Raises if the folder holds names of ours that we did not write.

  The order of the questions matters where another process is writing: its
  mark stands from before its first file until after the manifest.
  """
  present = {name.split('/')[0] for name in files.names(folder)} & {
    *token_store.PARTS,
    _CLEANING,
  }
  if not present or files.read(folder, _UNFINISHED) is not None:
    return
  if not manifest.exists(folder):
    raise UsageError(
      f'{folder}: holds {", ".join(sorted(present))} but no token store; name '
      'an empty folder'
    )


def _split(settings: Settings) -> Split:
  """The documents, and all files that the store depends on."""
  split = holdout.split(settings.source, settings.holdout)
  if split.pairs and not choices.is_none(settings.clean):
    raise UsageError(
      f'data.clean={settings.clean!r}: takes out texts one by one, and those '
      f"of data.source={settings.source!r} are pairs; set data.clean='none'"
    )
  calls = tokenizer.single(settings.tokenizer)
  if len(calls) > 1 and not split.pairs:
    raise UsageError(
      f'tokenizer.name={settings.tokenizer!r}: is for pairs of texts, and '
      f'data.source={settings.source!r} has none; give one tokenizer'
    )
  named = {
    f'tokenizer: {os.path.basename(value)}': value
    for text in calls
    for call in spec.parse('tokenizer.name', text)[:1]
    for value in (*call.args, *call.kwargs.values())
    if isinstance(value, str) and os.path.isfile(value)
  }
  named |= choices.load(settings.clean).files
  return split._replace(files=split.files | named)


def _clean(
  settings: Settings,
  split: Split,
  folder: str,
  workers: int,
  report: progress.Report,
) -> Cleaned:
  """Cleans the corpus on this machine."""
  return clean_run.clean(
    sources.load('data.source', settings.source),
    settings.clean,
    _cleaning_folder(folder),
    [settings.source, inputs.look(split.files)],
    in_mixture=mixture.is_mixture(settings.source),
    num_workers=workers,
    show=report,
  )


def _split_again(
  settings: Settings, split: Split, folder: str, cleaned: Cleaned
) -> tuple[Split, dict[str, Any]]:
  """Splits what is left; the held-out documents of a source of its own stay.

  Returns:
    The split, and what the manifest says of the cleaning.
  """
  left = cleaned.source
  skipped = dict(sorted(left.skipped().items()))
  found = choices.load(settings.clean).steps
  for entry, step in zip(cleaned.entries, found, strict=True):
    if isinstance(step, decontaminate.Decontaminate):
      entry['notes'] = step.notes()
  entries = {'steps': cleaned.entries, 'skipped': skipped}
  data = json.dumps(entries, indent=1, ensure_ascii=False).encode() + b'\n'
  files.write(folder, clean_report.NAME, data)
  summary = clean_report.summary(cleaned.entries)
  log.info(
    'cleaned: %d of %d documents and %d of %d bytes are left',
    *(summary['documents_out'], summary['documents_in']),
    *(summary['bytes_out'], summary['bytes_in']),
  )
  if not left.num_bytes:
    raise UsageError(
      f'data.clean={settings.clean!r}: leaves no document of the corpus; '
      f'{files.join(folder, clean_report.NAME)} tells which rule took them'
    )
  again = holdout.split(settings.source, settings.holdout, left)
  return again._replace(files=split.files), summary


def _cleaning_folder(folder: str) -> str:
  """Where documents wait while they are cleaned: on a disk of this machine."""
  if files.is_local(folder):
    return os.path.join(folder, _CLEANING)
  digest = hashlib.sha256(folder.encode()).hexdigest()[:16]
  name = f'gpt_jax-cleaning-{os.geteuid()}-{digest}'
  return os.path.join(tempfile.gettempdir(), name)


def _remove_cleaning(folder: str):
  """Removes the documents that waited, here or where workers see them."""
  shutil.rmtree(_cleaning_folder(folder), ignore_errors=True)
  files.delete(folder, _CLEANING)


def _changes(settings: Settings, folder: str) -> str:
  """Names what differs from the files of a finished store; '' if nothing."""
  try:
    split = _split(settings)
  except UsageError:  # the corpus is not here
    return ''
  return inputs.changes(folder, split.files)
