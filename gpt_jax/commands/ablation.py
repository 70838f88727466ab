# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Fine-tunes with and without GPT-1's additions: its table 5 and figure 2.

  gpt-jax train --config configs/gpt1.py:cpu --workdir W
  gpt-jax ablation --init W --workdir A --glue glue_data --seeds 0,1,2
  gpt-jax ablation --init W --workdir A --glue glue_data --settings full \
    --tasks cola,stsb --layers 0,1,2,3

Each task is fine-tuned from W with the auxiliary objective (full) and without
it (no_auxiliary), and from scratch with and without it (scratch,
scratch_no_auxiliary), in A/TASK/SETTING/SEED. --layers adds runs that transfer
only the embeddings and the given number of lowest layers. --lstm adds a row of
runs as `full` from an LSTM that was pre-trained in its place. Prints a Markdown
table of dev scores, times 100, as means and standard deviations over the seeds;
writes A/ablation.json, A/ablation.png and A/layers.png. The same command
resumes. More tasks, settings, seeds or layers add runs to A, as long as W's
step, the config and the data stay the same.
"""

import os

from gpt_jax import cli
from gpt_jax.files.buckets import write_atomically
from gpt_jax.finetuning import ablation
from gpt_jax.finetuning.ablation import Grid
from gpt_jax.flags import Flags
from gpt_jax.runtime.log import log
from gpt_jax.training.metrics import to_json

with cli.lazy_imports():
  from gpt_jax.plots import runs as runs_lib
  from gpt_jax.plots import studies as figures
  from gpt_jax.training import models


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of all runs; made when missing.')
  flags.text('init', None, 'The pre-trained model; see finetune.')
  flags.text(
    'config',
    'configs/finetune/ablation.py',
    'Config file whose sizes are the tasks.',
  )
  flags.text('glue', '', 'Folder of GLUE, with SST-2, ...; empty: TFDS.')
  flags.words('tasks', 'cola,sst2,mrpc,stsb,rte', 'Comma list of tasks.')
  use = 'Comma list of settings.'
  flags.words('settings', ','.join(ablation.SETTINGS), use)
  flags.numbers('seeds', '0', 'Comma list of seeds.')
  use = 'Comma list of how many layers to transfer, for A/layers.png.'
  flags.numbers('layers', '', use, some=False)
  flags.text(
    'lstm',
    '',
    'A pre-trained LSTM in place of --init, for one more row of the table.',
  )
  flags.text('flags', '', 'More flags of `finetune` for all runs.')
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'init', 'workdir')
  cli.check_out_folder(args, 'workdir')
  grid = Grid(**{name: getattr(args, name) for name in Grid._fields})
  grid = grid._replace(
    seeds=[*map(str, grid.seeds)], layers=[*map(str, grid.layers)]
  )
  runs = ablation.wanted(grid)
  path = os.path.join(args.workdir, 'ablation')
  figure = os.path.join(args.workdir, 'layers.png')
  cli.check_in_workdir(
    args,
    [os.path.join(args.workdir, r.task, r.setting, r.seed) for r in runs],
    [f'{path}.json', f'{path}.png', figure],
  )
  source = models.open_model(args.init, 'tune', '--init')
  lstm = None
  if grid.lstm:
    lstm = models.open_model(grid.lstm, 'tune', '--lstm')
  scores = ablation.run(
    *(grid, runs, source),
    finished=lambda folder: runs_lib.loss_curves([folder], unit='of the task'),
    lstm=lstm,
  )
  write_atomically(f'{path}.json', to_json(scores, indent=2) + '\n')
  log.info('drew %s', figures.ablation_bars(scores, f'{path}.png'))
  if figures.ablation_layers(scores, figure):
    log.info('drew %s', figure)
  print(to_json(scores) if args.json else ablation.table(scores))
