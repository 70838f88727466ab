# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Writes a teacher's outputs for a token store, for students to learn from.

  gpt-jax teach --config configs/gpt2.py:small --teacher GPT2_XL --out TAUGHT \
    --config.data.store=STORE --config.objective.name="distilled( \
      text='causal', top_k=64, cosine=0.0)"

GPT2_XL is a workdir of `train` or a Hugging Face folder; it runs once over all
rows of STORE, which must exist. TAUGHT then holds its 64 most probable tokens
at each position. Students train by the same config with

  gpt-jax train --config F --workdir W --config.objective.teacher=TAUGHT

without the teacher in memory. The same command resumes.
"""

import os
import pathlib

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import manifest, prepare
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.opening import teaching


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.path('teacher', None, 'Workdir of `train`, or a Hugging Face folder.', bucket='run')
  flags.path(
    'out',
    None,
    'Folder of the outputs, for objective.teacher of a student.',
    written=True,
    bucket='in place',
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'teacher', 'out')
  cli.check_out_folder(args, 'out')
  config = config_lib.resolve(args.config)
  folder = config.data.store
  if not folder or not manifest.exists(folder):
    raise UsageError(
      f'data.store={folder}: holds no token store for the teacher to read; '
      'make one with gpt-jax prepare, or give that of a run'
    )
  if '://' not in folder + args.out and pathlib.Path(os.path.realpath(args.out)).is_relative_to(
    os.path.realpath(folder)
  ):
    raise UsageError(
      f'--out={args.out}: lies in the token store {folder}, which the teacher '
      'reads; give a folder of its own'
    )
  store = prepare.ensure(config, folder)
  found = teaching.write(config, store, args.teacher, args.out)
  rows = found.rows
  print(
    f'{found.teacher}: {rows.num_rows * rows.times:,} rows of '
    f'{rows.positions} places with {rows.top_k} tokens each, which have '
    f"{100 * found.kept:.1f}% of the teacher's probability"
  )
  print(f'outputs: {args.out}')
