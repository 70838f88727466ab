# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Compares tokenizers on held-out text.

  gpt-jax tokenizers --config configs/smoke.py \
    --tokenizer "bpe sentencepiece(4096, model='bpe')" \
    --tokenizer "gpt2 gpt2_bpe('encoder.json', 'vocab.bpe')"
  gpt-jax tokenizers --text 'books/*.txt' --tokenizer 'run W/tokenizer'

With --config, tokenizers that need training are trained on the config's
training split, and all, including the config's own, are measured on its
held-out text. --text names other text: a glob of files, or a source as in
jsonl('held_out.jsonl.gz'). Each tokenizer is given by a name and a call as in
config.tokenizer.name, or the folder of a saved one.

Measures tokens per word (separated by white space) and bytes per token; how
much of the vocabulary occurs; how many documents decoding changes, and how many
characters it loses; MB/s of encoding on one core. --out plots bytes per token,
and how often the tokens of the vocabulary occur. On little text, much of a
large vocabulary stays unused.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt_jax import cli
from gpt_jax.core import spec
from gpt_jax.core.files import files, progress
from gpt_jax.core.files.document import Document
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import holdout, sources
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokens import mixture
from gpt_jax.flags import Flags
from gpt_jax.reports import tokenizer_report
from gpt_jax.reports.tokenizer_report import Report

with cli.lazy_imports():
  from gpt_jax.reports import studies

# The text that tokenizers are compared on, and those that learn from it.


# Of the text that is measured on: it is held in memory.
_MOST_BYTES = 64_000_000


class MeasuredText(NamedTuple):
  """The text to measure on, and the text to train on.

  Attributes:
    name: of the text to measure on.
    documents: to measure on.
    training: the split with training documents; None without --config.
  """

  name: str
  documents: list[Document]
  training: holdout.Split | None


def read(data: Any, given: str | None, report: progress.Report) -> MeasuredText:
  """Reads the text to measure on.

  Args:
    data: a config's section, whose held-out text is read; None: no config.
    given: other text: a glob of files, or a source's call.
  """
  training = None
  if data is not None:
    source = data.source
    if mixture.is_mixture(source):
      source = mixture.corpus(source, data.sources)
    training = holdout.split(source, data.holdout)
    training.check()
  if given:
    call = given if '(' in given else f'text({given!r})'
    stream = sources.load('--text', call).documents()
    name, total = call, None
  else:
    assert data is not None and training is not None
    if not training.holds_out:
      raise UsageError(
        f'data.holdout={data.holdout!r}: leaves no text to measure on; give '
        '--text, or hold some text out'
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
    raise UsageError(f'{name}: has no text to measure on; give --text')
  return MeasuredText(name, documents, training)


def make(name: str, call: str, text: MeasuredText, report: progress.Report) -> tokenizer.Tokenizer:
  """Reads or trains a tokenizer."""
  if (
    os.path.isfile(os.path.join(call, 'tokenizer.json'))
    if files.is_local(call)
    else files.read(call, 'tokenizer.json') is not None
  ):
    return tokenizer.load(call)
  if os.sep in call and '(' not in call:
    raise UsageError(f'--tokenizer: {call}: holds no saved tokenizer; give its folder')
  known = {_digest(document) for document in text.documents}
  seen = 0

  def documents(held_out: bool = False) -> Iterator[Document]:
    nonlocal seen
    if text.training is None:
      raise UsageError(
        f'--tokenizer: {call}: needs text to learn from; give --config, whose '
        'training split it learns from'
      )
    size = 0
    for part in text.training.parts():
      if not part.held_out or held_out:
        seen += not part.held_out and _digest(part.document) in known
        yield part.document
      size += len(part.document.text.encode())
      report(f'reading to train {name}', size, text.training.num_bytes)
    log.info('%s: training %s', name, call)

  made = tokenizer.build(call, documents(), documents(held_out=True))
  if seen:
    log.warning(
      '%s: %d of the documents that it is measured on were among those that it learnt from',
      name,
      seen,
    )
  return made


def _digest(document: Document) -> bytes:
  return hashlib.sha256(document.text.encode()).digest()


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.path('text', None, "Text to measure on: 'GLOB' of files, or a source's call.")
  flags.texts(
    'tokenizer', "A name, and a tokenizer's call or folder: 'NAME CALL'; may be repeated."
  )
  flags.path('out', None, 'PNG to draw.', written=True)
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.check_out_file(args, 'out', ('.png',))
  if not args.config and not args.text:
    raise UsageError('give --config or --text; see --help')
  wanted = [_parse(text) for text in args.tokenizer]
  if args.config:
    wanted.insert(0, ('config', args.config.tokenizer.name))
  names = [name for name, _ in wanted]
  if len(set(names)) < len(names) or not names:
    raise UsageError(
      f'--tokenizer: is missing or repeats a name ({", ".join(names)}); give '
      "--tokenizer 'NAME CALL' with different names"
    )
  # One core each, for comparable rates.
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  data = args.config.data if args.config else None
  with progress.bar() as report:
    text = read(data, args.text, report)
    reports = {}
    for name, call in wanted:
      made = make(name, call, text, report)
      log.info('%s: encoding and decoding', name)
      reports[name] = tokenizer_report.measure(made, text.documents)
  about = {
    'text': text.name,
    'num_documents': len(text.documents),
    'num_bytes': sum(len(d.text.encode()) for d in text.documents),
    'num_words': sum(len(d.text.split()) for d in text.documents),
  }
  if args.json:
    calls = dict(wanted)
    found = {name: {'call': calls[name], **r._asdict()} for name, r in reports.items()}
    for entries in found.values():
      del entries['counts']
    print(json.dumps({**about, 'tokenizers': found}))
  else:
    _print(about, reports)
  if args.out:
    log.info('wrote %s', studies.draw_tokenizers(reports, args.out))


def _parse(text: str) -> tuple[str, str]:
  name, _, call = text.strip().partition(' ')
  if not call.strip() or not re.fullmatch(r'[\w.+-]+', name):
    raise UsageError(
      f"--tokenizer={text!r}: give 'NAME CALL', as in 'ours W/tokenizer' or 'bytes bytes'"
    )
  return name, call.strip()


def _print(about: dict, reports: dict[str, Report]) -> None:
  print(
    f'on {about["text"]}: {about["num_documents"]:,} documents, '
    f'{about["num_bytes"]:,} bytes, {about["num_words"]:,} words'
  )
  right = (
    'vocabulary',
    'used',
    'of it',
    'tokens',
    'per word',
    'bytes each',
    'changed',
    'lost',
    'MB/s',
  )
  table = tables.TextTable('tokenizer', *right, right=right)
  for name, r in reports.items():
    table.add_row(
      name,
      f'{r.vocab_size:,}',
      f'{r.num_used:,}',
      f'{r.fraction_used:.1%}',
      f'{r.num_tokens:,}',
      f'{r.tokens_per_word:.3f}',
      f'{r.bytes_per_token:.3f}',
      f'{r.num_documents_changed:,}',
      f'{r.num_characters_lost:,}',
      f'{r.bytes_per_second / 1e6:.1f}',
    )
  tables.console().print(table)
  for name, r in reports.items():
    if r.first_change:
      where, before, after = r.first_change
      print(f'{name} changes {where}: {before!r} comes back as {after!r}')
    if r.unused_examples:
      unused = ' '.join(map(repr, r.unused_examples))
      print(f'{name} does not use {unused} ...')
