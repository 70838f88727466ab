# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turns Hugging Face checkpoints into workdirs, and workdirs into checkpoints.

  gpt-jax convert --from_hf gpt2 --workdir workdirs/gpt2
  gpt-jax convert --from_hf openai-community/gpt2 --workdir workdirs/gpt2
  gpt-jax convert --to_hf exported --workdir workdirs/mine
  gpt-jax convert --to_hf exported --workdir workdirs/mine --push ORG/NAME
  gpt-jax convert --to_hf generator --workdir workdirs/electra --part generator
  gpt-jax convert --to_hf adapter --workdir workdirs/lora --adapter
  gpt-jax convert --check --to_hf exported --workdir workdirs/mine --text '...'

A checkpoint is a folder with config.json and safetensors files, or ORG/NAME or
ORG/NAME@REVISION of the Hugging Face Hub, which has these files. It becomes a
workdir for `generate`, or for `fill` if it is an encoder, with the tokenizer if
the folder has tokenizer.json, vocab.json and merges.txt, vocab.txt,
tokenizer.model or spiece.model. `evaluate` also needs held-out text in
WORKDIR/data, which `prepare` makes with the same tokenizer.

A workdir is exported to the model family that computes the same function, such
as GPT-2 or LLaMA. If the run has several models, its own is exported, or the
one named by --part. An imported model is exported with the same tensors, bit by
bit, and the same tokenizer files. A run with adapters (`finetune.lora`) is
exported with these merged, or with --adapter as an adapter of PEFT; --from_hf
merges such a folder into the base that it names. --push uploads the export to
the Hub.
"""

import re
from typing import Any

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.spec import UsageError
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.evaluation import agreement
  from gpt_jax.hub import models as hub
  from gpt_jax.opening import importing
  from gpt_jax.tuning import exporting


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a run, to make or to export.')
  flags.path(
    'from_hf',
    None,
    'Hugging Face folder to import, or ORG/NAME or ORG/NAME@REVISION of the Hub (extra hub).',
    bucket='folder',
  )
  flags.path('to_hf', None, 'Folder to export to.', written=True, bucket='folder')
  flags.text(
    'max_shard_size',
    '1GB',
    'Largest file of an export, and the memory it takes; a single tensor may '
    'be larger. A number of bytes, KB, MB or GB.',
  )
  flags.text(
    'part',
    None,
    "With --to_hf: export this model of config.models, such as ELECTRA's "
    "generator, instead of the run's own.",
  )
  flags.switch(
    'tokenizer', 'With --to_hf: also write the tokenizer, for AutoTokenizer.', default=True
  )
  flags.switch('adapter', "With --to_hf: write the run's adapters alone, in PEFT's format (LoRA).")
  flags.text(
    'push', None, 'With --to_hf: upload the export to this repository of the Hub, ORG/NAME.'
  )
  flags.switch('public', 'With --push: everyone may read the repository; else it is private.')
  flags.switch('check', 'Only compare the workdir with the folder, on --text.')
  flags.path('text', None, 'With --check: a text, or a file of it.')
  flags.number(
    'tolerance', 1e-3, 'With --check: the largest difference of logits allowed.', ranges.NotNegative
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  cli.check_out_folder(args, 'to_hf')
  if bool(args.from_hf) == bool(args.to_hf):
    raise UsageError('give one of --from_hf and --to_hf; see --help')
  if args.text is not None and not args.check:
    raise UsageError(f'--text={args.text}: needs --check; give it, or leave --text out')
  if args.part is not None and (args.check or args.from_hf):
    raise UsageError(f'--part={args.part}: works with --to_hf only; leave it out')
  if not args.tokenizer and (args.check or args.from_hf):
    raise UsageError('--tokenizer=false: works with --to_hf only; leave it out')
  if args.adapter and (args.check or args.from_hf or args.part is not None):
    raise UsageError('--adapter: works with --to_hf only, and without --part; leave it out')
  if args.push and (args.check or args.from_hf):
    raise UsageError(f'--push={args.push}: works with --to_hf only; leave it out')
  if args.public and not args.push:
    raise UsageError('--public: needs --push; give it, or leave --public out')
  if args.from_hf and not args.check:  # before what may be a long download
    cli.check_out_folder(args, 'workdir')
    importing.check_empty(args.workdir)
  repository = ''
  if args.from_hf and hub.names_repository(args.from_hf):
    args.from_hf, repository = hub.fetch(args.from_hf)
  if args.push:
    hub.check_push(args.push, args.to_hf, public=args.public)
  if args.check:
    cli.required(args, 'text')
    folder: Any = args.from_hf or args.to_hf
    text: Any = args.text
    agreement.check(args.workdir, folder, text, args.tolerance, sequence=exporting.sequence)
  elif args.from_hf:
    importing.from_hf(args.from_hf, args.workdir, repository)
  elif args.adapter:
    exporting.to_peft(args.workdir, args.to_hf)
  else:
    shard_bytes = _shard_bytes(args.max_shard_size)
    exporting.to_hf(args.workdir, args.to_hf, shard_bytes, args.part, with_tokenizer=args.tokenizer)
  if args.push:
    hub.push(args.to_hf, args.push, public=args.public)


def _shard_bytes(text: str) -> int:
  """The bytes of '500MB', as Hugging Face writes them."""
  found = re.fullmatch(r'([0-9]{1,15})(KB|MB|GB)?', text.strip())
  if not found or not int(found[1]):
    raise UsageError(
      f'--max_shard_size={text}: must be a number of bytes, or one of KB, MB or GB, such as 500MB'
    )
  return int(found[1]) * {None: 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}[found[2]]
