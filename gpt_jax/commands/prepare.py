# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Turns text into a tokenizer and a token store.

  gpt-jax prepare --config configs/smoke.py --out data/smoke
  gpt-jax prepare --config configs/smoke.py --out data/smoke \
    --runner DirectRunner --beam_options '--direct_num_workers=2'

`train` does this itself if the store is missing; several runs can share a store
with --config.data.store=data/smoke. If there is too much text for one machine,
Apache Beam prepares it with --runner, to the same bytes: see launch/BEAM.md.

  gpt-jax prepare --config configs/smoke.py --out data/clean \
    --config.data.source="jsonl('web/*.jsonl.zst')" \
    --config.data.clean="c4, language('en'), minhash, \
      decontaminate('test/*.jsonl')"

cleans the text first, and prints what each rule removed, with examples in
data/clean/cleaning.json. Run again on a finished store, the command verifies
every token against the manifest, and the tokenizer's files.
"""

import functools
import importlib
from collections.abc import Callable

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import report
from gpt_jax.core.tokens import eval_sets, manifest, prepare
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.training import workdir
  from gpt_jax.preparing_on_beam import executor


def _beam(runner: str, options: str) -> Callable[..., prepare.Executor]:
  """Makes what prepares with a runner of Apache Beam."""
  try:
    importlib.import_module('apache_beam')
  except ImportError as e:
    raise UsageError(
      '--runner: needs Apache Beam; in an environment of its own run pip '
      "install -c constraints-beam.txt -e '.[beam,clean]'"
    ) from e
  return functools.partial(executor.Beam, runner, options)


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.path(
    'out', None, 'Folder of the store; made when missing.', written=True, bucket='in place'
  )
  flags.text(
    'runner',
    None,
    'Runner of Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, '
    'SparkRunner, ...; empty: local worker processes.',
  )
  flags.text('beam_options', '', "Options of Apache Beam in one text: '--project=P --region=R'.")


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'out')
  cli.check_out_folder(args, 'out')
  config = config_lib.resolve(args.config)
  if args.beam_options and not args.runner:
    raise UsageError(f'--beam_options={args.beam_options}: needs --runner; give it too')
  eval_sets.check(config)
  workdir.check_tokenizer(config)
  there = manifest.exists(args.out)
  beam = _beam(args.runner, args.beam_options) if args.runner else None
  with workdir.untouched_if_refused(args.out):
    prepare.prepare(config, args.out, executor=beam)
    store = prepare.ensure(config, args.out)
  config_lib.set_vocab_size(config, store.manifest.vocab_size, config.tokenizer.name)
  if entries := report.read(args.out):
    report.check(args.out, entries, store.manifest.cleaning)
    print(*report.table(entries), sep='\n')
    print(f'examples of what went: {args.out}/{report.NAME}')
  if there:
    store.tokenizer()  # which checks its files
  parts = {'training': store}
  for name, found in eval_sets.held_out(config, store).items():
    parts['held-out' if name == eval_sets.VALIDATION else name] = found.store
  for name, part in parts.items():
    if there:
      part.verify()
    m = part.manifest
    print(
      f'{name}: {m.num_documents:,} documents, {m.num_bytes:,} bytes, '
      f'{m.num_tokens:,} tokens ({m.num_bytes / m.num_tokens:.2f} bytes each)'
    )
  note = ' (was there; every token compared with the manifest)' * there
  print(f'token store: {args.out}{note}')
