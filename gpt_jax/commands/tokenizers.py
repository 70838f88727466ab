# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Compares tokenizers on held-out text.

  gpt-jax tokenizers --config configs/smoke.py \
    --tokenizer "bpe sentencepiece(4096, model='bpe')" \
    --tokenizer "gpt2 gpt2_bpe('encoder.json', 'vocab.bpe')"
  gpt-jax tokenizers --text 'books/*.txt' --tokenizer 'run W/tokenizer'

With --config, tokenizers that need training learn from the config's training
split, and all are measured on what it holds out; its own tokenizer is one of
them. --text names other text: a glob of files, or a source as in
jsonl('held_out.jsonl.gz'). A tokenizer is given as a name, and a call as in
config.tokenizer.name or the folder of a saved one.

For each: tokens per word (separated by white space) and bytes per token; how
much of the vocabulary occurs; how many documents decoding changes, and how many
characters it loses; MB/s of encoding on one core. --out draws bytes per token,
and how much of the vocabulary occurs how often. On little text, much of a large
vocabulary stays unused.
"""

import json
import os
import re

from absl import flags
from rich.console import Console
from rich.table import Table

from gpt_jax import cli
from gpt_jax.config import loading
from gpt_jax.data import progress
from gpt_jax.data.tokenizers import comparison
from gpt_jax.data.tokenizers import report as tokenizer_report
from gpt_jax.data.tokenizers.report import Report
from gpt_jax.plots import tokenizers
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  flags.DEFINE_string(
    'text',
    None,
    "Text to measure on: 'GLOB' of files, or a source's call.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    'tokenizer',
    [],
    "A name, and a tokenizer's call or folder: 'NAME CALL'; give it once for "
    'each.',
    flag_values=values,
  )
  flags.DEFINE_string('out', None, 'A PNG to draw.', flag_values=values)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


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
      f'--tokenizer: the names ({", ".join(names)}) must differ, and there '
      "must be one; give --tokenizer 'NAME CALL'"
    )
  # One core each, so that rates can be compared.
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  data = args.config.data if args.config else None
  with progress.bar() as report:
    text = comparison.read(data, args.text, report)
    reports = {}
    for name, call in wanted:
      made = comparison.make(name, call, text, report)
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
    found = {
      name: {'call': calls[name], **_jsonable(r)} for name, r in reports.items()
    }
    print(json.dumps({**about, 'tokenizers': found}))
  else:
    _print(about, reports)
  if args.out:
    log.info('drew %s', tokenizers.draw(reports, args.out))


def _parse(text: str) -> tuple[str, str]:
  name, _, call = text.strip().partition(' ')
  if not call.strip() or not re.fullmatch(r'[\w.+-]+', name):
    raise UsageError(
      f"--tokenizer={text!r}: give 'NAME CALL', as in 'ours W/tokenizer' or "
      "'bytes bytes'"
    )
  return name, call.strip()


def _print(about: dict, reports: dict[str, Report]) -> None:
  print(
    f'on {about["text"]}: {about["num_documents"]:,} documents, '
    f'{about["num_bytes"]:,} bytes, {about["num_words"]:,} words'
  )
  table = Table()
  table.add_column('tokenizer')
  for column in (
    *('vocabulary', 'used', 'of it', 'tokens', 'per word', 'bytes each'),
    *('changed', 'lost', 'MB/s'),
  ):
    table.add_column(column, justify='right')
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
  # As wide as it needs where no one watches.
  console = Console()
  Console(width=None if console.is_terminal else 120).print(table)
  for name, r in reports.items():
    if r.first_change:
      where, before, after = r.first_change
      print(f'{name} changes {where}: {before!r} comes back as {after!r}')
    if r.unused_examples:
      unused = ' '.join(map(repr, r.unused_examples))
      print(f'{name} does not use {unused} ...')


def _jsonable(r: Report) -> dict:
  entries = r._asdict()
  del entries['counts']
  return entries
