# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cleaning the corpus of a token store: `prepare` asks for it by `data.clean`."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from typing import Any

from gpt_jax.core.files import files, progress
from gpt_jax.core.files.document import Source
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import inputs
from gpt_jax.core.text.clean import report as clean_report
from gpt_jax.core.text.clean import run, stages
from gpt_jax.core.text.clean.choices import FOLDER
from gpt_jax.core.text.clean.stages import Result
from gpt_jax.core.tokens.corpus import Corpus

log = logging.getLogger('gpt_jax')


def clean(
  corpus: Corpus, folder: str, num_workers: int, show: progress.Report
) -> tuple[Source, dict[str, Any]]:
  """Cleans on this machine, or resumes where a process died; see `Executor.clean`."""
  below = _local(folder)
  result = run.clean(
    corpus.split.source,
    corpus.settings.clean,
    below,
    [corpus.read.source, inputs.look(corpus.files)],
    in_mixture=corpus.in_mixture,
    num_workers=num_workers,
    show=show,
  )
  return stages.cleaned(corpus.split.source, below, result), report(corpus, folder, result)


def report(corpus: Corpus, folder: str, result: Result) -> dict[str, Any]:
  """Writes the report; returns the manifest's entry about the cleaning."""
  entries = result.entries
  for entry, step in zip(entries, corpus.steps, strict=True):
    if notes := step.notes():
      entry['notes'] = notes
  said = {'steps': entries, 'skipped': dict(sorted(result.skipped.items()))}
  data = json.dumps(said, indent=1, ensure_ascii=False).encode() + b'\n'
  files.write(folder, clean_report.NAME, data)
  summary = clean_report.summary(entries)
  log.info(
    'cleaned: %d of %d documents and %d of %d bytes are left',
    summary['documents_out'],
    summary['documents_in'],
    summary['bytes_out'],
    summary['bytes_in'],
  )
  if not summary['bytes_out']:
    path = files.join(folder, clean_report.NAME)
    raise UsageError(
      f'data.clean={corpus.settings.clean!r}: leaves no document of the '
      f'corpus; {path} tells which rule took them'
    )
  return summary


def remove(folder: str) -> None:
  """Removes the documents of cleaning, here and where workers see them."""
  shutil.rmtree(_local(folder), ignore_errors=True)
  files.delete(folder, FOLDER)


def _local(folder: str) -> str:
  """The local folder of the documents while they are being cleaned."""
  if files.is_local(folder):
    return os.path.join(folder, FOLDER)
  digest = hashlib.sha256(folder.encode()).hexdigest()[:16]
  name = f'gpt_jax-cleaning-{os.geteuid()}-{digest}'
  return os.path.join(tempfile.gettempdir(), name)
