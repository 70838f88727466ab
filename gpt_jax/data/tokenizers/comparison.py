# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The text that tokenizers are compared on, and those that learn from it."""

import hashlib
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt_jax import spec
from gpt_jax.data import files, holdout, mixture, progress
from gpt_jax.data.sources import sources
from gpt_jax.data.sources.source import Document
from gpt_jax.data.tokenizers import tokenizer
from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')

# Of the text that is measured on: it is held in memory.
_MOST_BYTES = 64_000_000


class Text(NamedTuple):
  """What is measured on, and what may be learnt from.

  Attributes:
    name: the call, for people.
    documents: to measure on.
    training: starts the stream of training documents; None without --config.
  """

  name: str
  documents: list[Document]
  training: holdout.Split | None


def read(data: Any, given: str | None, report: progress.Report) -> Text:
  """Reads what is measured on.

  Args:
    data: the section of a config, whose held-out text it is; None: no config.
    given: other text: a glob of files, or a source's call.
    report: is told how far it is.

  Raises:
    UsageError: there is no text.
  """
  training = None
  if data is not None:
    source = data.source
    if mixture.is_mixture(source):
      source = mixture.corpus(source, data.sources)
    training = holdout.split(source, data.holdout)
  if given:
    call = given if '(' in given else f'text({given!r})'
    stream = sources.load('--text', call).documents()
    name, total = call, None
  else:
    assert data is not None and training is not None
    if not training.holds_out:
      raise UsageError(
        f'data.holdout={data.holdout!r}: there is no text to '
        'measure on; give --text, or hold something out'
      )
    stream = (part.document for part in training.parts() if part.held_out)
    name = data.holdout
    if spec.parse('data.holdout', name)[0].name not in sources.SOURCES:
      name = f'{name} of {data.source}'
    total = training.num_bytes
  documents, size = [], 0
  for document in stream:
    documents.append(document)
    size += len(document.text.encode())
    report('reading', size, total)
    if size >= _MOST_BYTES:
      log.warning('the text is cut after %.0f MB', size / 1e6)
      break
  if not documents:
    raise UsageError(f'{name}: there is no text to measure on; give --text')
  return Text(name, documents, training)


def make(
  name: str, call: str, text: Text, report: progress.Report
) -> tokenizer.Tokenizer:
  """Reads or trains a tokenizer.

  Raises:
    UsageError: it learns from text, and there is none.
  """
  if (
    os.path.isfile(os.path.join(call, 'tokenizer.json'))
    if files.is_local(call)
    else files.read(call, 'tokenizer.json') is not None
  ):
    return tokenizer.load(call)
  if os.sep in call and '(' not in call:
    raise UsageError(f'--tokenizer: {call}: there is no saved tokenizer')
  known = {_digest(document) for document in text.documents}
  seen = 0

  def documents(held_out: bool = False) -> Iterator[Document]:
    nonlocal seen
    if text.training is None:
      raise UsageError(
        f'--tokenizer: {call}: is trained, and there is nothing to train on; '
        'give --config, whose training split it then learns from'
      )
    size = 0
    for part in text.training.parts():
      if not part.held_out or held_out:
        seen += not part.held_out and _digest(part.document) in known
        size += len(part.document.text)
        report(f'reading to train {name}', size, text.training.num_bytes)
        yield part.document
    log.info('%s: training %s', name, call)

  made = tokenizer.build(call, documents(), documents(held_out=True))
  if seen:
    log.warning(
      '%s: %d of the documents that it is measured on were among those that '
      'it learnt from',
      *(name, seen),
    )
  return made


def _digest(document: Document) -> bytes:
  return hashlib.sha256(document.text.encode()).digest()
