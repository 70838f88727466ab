# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains several configs, each with several seeds, and compares how they end.

  gpt-jax compare --workdir W --seeds 0,1,2 \
    --run 'dense configs/switch.py:tiny-dense' \
    --run 'switch configs/switch.py:tiny --config.optim.clip_norm=0.5' \
    --flags '--config.schedule.num_steps=500'

Each is a `gpt-jax train` with the workdir W/NAME/SEED: the same command again
goes on where it was stopped. All read the token store W/data, which the first
one prepares. Prints a Markdown table and writes W/compare.json and
W/compare.png.
"""

import json
import os
import re
import statistics

from absl import flags

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.plots import losses
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics, variants
from gpt_jax.training.metrics import HELD_OUT, write_atomically


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of all runs; made when missing.')
  flags.DEFINE_multi_string(
    'run',
    [],
    "A name, a config and overrides: 'NAME FILE[:SIZE] [--config.a.b=...]'; "
    'give it once for each.',
    flag_values=values,
  )
  flags.DEFINE_list('seeds', ['0'], 'The seeds of each.', flag_values=values)
  flags.DEFINE_string('flags', '', 'More flags for all.', flag_values=values)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


SPEED = 'tokens_per_second'
# Of one layer with experts.
DROPPED = re.compile(r'router/.*/dropped')


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if not args.run:
    raise UsageError("--run: is needed: 'NAME FILE[:SIZE]', once for each")
  wanted = [variants.parse(text, args.flags) for text in args.run]
  names = [variant.name for variant in wanted]
  if len(set(names)) < len(names):
    raise UsageError(f'--run: the names {", ".join(names)} must differ')
  seeds = {int(seed) for seed in args.seeds if seed.isdecimal()}
  if not seeds or len(seeds) < len(args.seeds):
    raise UsageError(
      f'--seeds={",".join(args.seeds)}: give whole numbers from 0 that differ'
    )
  folders = {
    variant.name: [
      os.path.join(args.workdir, variant.name, seed) for seed in args.seeds
    ]
    for variant in wanted
  }
  # Seed by seed, so that a change of the machine's speed meets all alike.
  for i, seed in enumerate(args.seeds):
    for variant in wanted:
      variants.train(variant, seed, folders[variant.name][i], args.workdir)
  result = {
    name: [summary(workdir) for workdir in workdirs]
    for name, workdirs in folders.items()
  }
  path = os.path.join(args.workdir, 'compare')
  write_atomically(f'{path}.json', json.dumps(result, indent=2) + '\n')
  first = [workdirs[0] for workdirs in folders.values()]
  log.info('drew %s', losses.loss_curves(first, out=f'{path}.png'))
  print(json.dumps(result) if args.json else table(result))


def summary(workdir: str) -> dict[str, float]:
  """Where a run ended, how fast it was, and what its experts dropped.

  Raises:
    RuntimeError: it has no such metrics.
  """
  with open(os.path.join(workdir, 'config.json'), encoding='utf-8') as f:
    length = config_lib.from_json(f.read()).model.context_length
  lines = metrics.read(workdir)
  rates = [m[SPEED] / length for m in lines if SPEED in m]
  losses = [m[HELD_OUT] for m in lines if HELD_OUT in m]
  if not rates or not losses:
    raise RuntimeError(
      f'{workdir}: metrics.jsonl has no {SPEED if losses else HELD_OUT}; '
      'compare needs held-out text (data.holdout)'
    )
  found = {
    'validation_loss': losses[-1],
    # Rows a second; the first line has the warm-up.
    'examples_per_second': statistics.median(rates[1:] or rates),
  }
  dropped = [x for m in lines for name, x in m.items() if DROPPED.match(name)]
  if dropped:
    # Over all layers with experts and the whole run.
    found['dropped_fraction'] = statistics.mean(dropped)
  return found


def table(result: dict[str, list[dict[str, float]]]) -> str:
  """A Markdown table: the mean over the seeds, and each seed's loss."""
  columns = list(dict.fromkeys(c for runs in result.values() for c in runs[0]))
  head = ['run', *(c.replace('_', ' ') for c in columns), 'loss of each seed']
  lines = [head, ['---'] * len(head)]
  for name, runs in result.items():
    means = [
      f'{statistics.mean(run[c] for run in runs):.4g}' if c in runs[0] else '-'
      for c in columns
    ]
    seeds = ', '.join(f'{run["validation_loss"]:.4f}' for run in runs)
    lines.append([name, *means, seeds])
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
