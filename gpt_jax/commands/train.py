# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Pre-trains a model, or continues a run where it stopped.

  gpt-jax train --config configs/smoke.py --workdir workdirs/smoke
  gpt-jax train --config configs/gpt2.py:medium --config.batch.size=64 \
    --workdir W

Prepares the data if the token store is missing. The same command resumes from
the newest checkpoint, and ends with the same weights as a run that was never
stopped. W then holds config.json, metrics.jsonl, checkpoints/, tokenizer/,
data/, loss.png, samples.txt and tensorboard/.
"""

import os

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.runtime import preemption, watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import Table
from gpt_jax.flags import Flags

with cli.lazy_imports():
  import jax

  from gpt_jax.core.runtime import hosts
  from gpt_jax.core.training import loop, origins, run
  from gpt_jax.core.training import workdir as workdir_lib
  from gpt_jax.reports import runs


# What a config asks for beside training: the evaluation on `eval.tasks`, and
# the sample of `log.sample_prompt`.
BESIDE = Table(
  {'tasks': 'gpt_jax.evaluation.in_loop:evaluation', 'sample': 'gpt_jax.evaluation.sample:write'}
)


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of the run; made when missing.')
  flags.distributed()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'workdir')
  cli.check_out_folder(args, 'workdir')
  config = origins.described(args.config, args.workdir)
  if args.distributed:
    hosts.initialize(**config_lib.resolve(config).hosts)
  with hosts.together():
    train(config, args.workdir)


def train(config: Config, workdir: str) -> None:
  """Trains to the last step of the schedule; `config` need not be resolved."""
  watchdog.enter('start')
  config = config_lib.resolve(config)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with workdir_lib.locked(workdir), watchdog.watching(watchdog.deadlines(config), stacks):
    evaluation = None
    if config.eval.tasks:
      evaluation = BESIDE['tasks'](config, workdir)
    training, state = run.Run.open(config, workdir, evaluation)
    state = loop.fit(training, state)
    watchdog.enter('end')
    preemption.check()
    if jax.process_index() == 0:
      if path := runs.loss_curves([workdir]):
        log.info('wrote %s', path)
      if path := runs.router_curves(workdir):
        log.info('wrote %s', path)
    if workdir_lib.draws_sample(config):
      BESIDE['sample'](training.parts, state, workdir)
