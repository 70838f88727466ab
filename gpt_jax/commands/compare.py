# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains a sweep: several configs with several seeds each, and compares them.

  gpt-jax compare --workdir W --seeds 0,1,2 \
    --run 'dense configs/switch.py:tiny-dense' \
    --run 'switch configs/switch.py:tiny --config.optim.clip_norm=0.5' \
    --flags '--config.schedule.num_steps=500'

Each run is a `gpt-jax train` with the workdir W/NAME/SEED; the same command
resumes. All read the token store W/data, which the first run prepares. Prints a
Markdown table and writes W/compare.json and W/compare.png.

  gpt-jax compare --workdir A/cola --seeds 0,1,2 --flags '--init W' \
    --run 'full configs/finetune/ablation.py:cola' \
    --run 'scratch configs/finetune/ablation.py:cola
      --config.finetune.transfer=none'

A run with --init is a `gpt-jax finetune`; the table has its task's metrics.

  gpt-jax compare --expected --workdir workdirs/smoke

compares the losses of a run, finished or not, with those that its shipped
config is known to give, and so checks the installation. Prints a table, and
ends with exit code 1 if the losses differ.
"""

import os

from gpt_jax import cli
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.reports import expected, runs
  from gpt_jax.studies import comparison


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of all runs, made when missing; with --expected, of one run.', 'runs')
  flags.texts(
    'run', "A name, a config and overrides: 'NAME FILE[:SIZE] [--FLAG=VALUE ...]'; may be repeated."
  )
  flags.numbers('seeds', '0', 'Comma-separated list of seeds for each config.')
  flags.text('flags', '', 'Additional flags of all runs.')
  flags.switch('expected', "Compare a run's losses with the known losses of its config.")
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if args.expected:
    if args.run:
      raise UsageError('--run: trains configs, and --expected reads a run; give one')
    _with_expected(args)
    return
  cli.check_out_folder(args, 'workdir')
  if not args.run:
    raise UsageError("--run is missing; give 'NAME FILE[:SIZE]' for each config")
  wanted = [comparison.parse(text, args.flags) for text in args.run]
  names = [variant.name for variant in wanted]
  if len(set(names)) < len(names):
    raise UsageError(f'--run: the names {", ".join(names)} must differ; rename one')
  folders = {
    variant.name: [os.path.join(args.workdir, variant.name, str(seed)) for seed in args.seeds]
    for variant in wanted
  }
  path = os.path.join(args.workdir, 'compare')
  cli.check_in_workdir(
    args,
    [folder for several in folders.values() for folder in several],
    [f'{path}.json', f'{path}.png'],
  )
  # Seed by seed, so that changes of the machine's speed affect all alike.
  for i, seed in enumerate(args.seeds):
    for variant in wanted:
      comparison.train(variant, seed, folders[variant.name][i], args.workdir)
  result = {
    name: [comparison.summary(workdir) for workdir in workdirs]
    for name, workdirs in folders.items()
  }
  write_atomically(f'{path}.json', to_json(result, indent=2) + '\n')
  first = [workdirs[0] for workdirs in folders.values()]
  names = [*folders]
  if figure := runs.loss_curves(first, out=f'{path}.png', names=names):
    log.info('wrote %s', figure)
  print(to_json(result) if args.json else comparison.table(result))


def _with_expected(args: cli.Args) -> None:
  """Says whether a run has the losses that are known of its config."""
  found = expected.judge(args.workdir)
  print(expected.to_json(found) if args.json else expected.table(found))
  line = expected.conclusion(found)
  if found.first_outside:
    raise FailedError(line)
  if not args.json:
    print(line)
