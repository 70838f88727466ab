# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains a grid of small models, and fits scaling laws to their losses.

  gpt-jax scaling --config configs/scaling.py --workdir W
  gpt-jax scaling --config configs/scaling.py --dry_run
  gpt-jax plan --budget 1e18 --fit W/scaling.json

The config's section `sweep` holds compute budgets and model sizes. Each size is
trained for the tokens that each budget allows, with a learning-rate schedule of
that length, in a process and a folder of its own, W/RUN; all read the token
store W/data. The same command resumes; with more budgets or sizes it trains the
new ones.

Fits the exponents of N_opt ~ C^a and D_opt ~ C^b to the final held-out losses
by Chinchilla's three approaches (Hoffmann et al., 2022):

  1  the least loss of all training curves, at each number of FLOPs
  2  the minimum of a parabola for each budget
  3  L(N, D) = E + A / N^alpha + B / D^beta

with 90% bootstrap intervals. N counts all parameters, including embeddings, and
C is 6ND. Prints a table and writes W/scaling.json and W/scaling.png.
"""

import os
from typing import Annotated

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.runtime.log import log
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.training import workdir
  from gpt_jax.papers.chinchilla import fit
  from gpt_jax.reports import studies
  from gpt_jax.studies import sweep


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of all runs; made when missing.', 'runs')
  flags.number(
    'samples', 200, 'Bootstrap samples for the intervals.', Annotated[int, ranges.whole(10)]
  )
  flags.switch('dry_run', 'Only print the runs.')
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config')
  cells = sweep.grid(args.config)
  if args.dry_run:
    print(listing(cells))
    return
  cli.required(args, 'workdir')
  cli.check_out_folder(args, 'workdir')
  path = os.path.join(args.workdir, 'scaling')
  folders = [sweep.folder(args.workdir, cell) for cell in cells]
  cli.check_in_workdir(args, folders, [f'{path}.json', f'{path}.png'])
  total = sum(cell.flops for cell in cells)
  log.info('%d runs, %.3g FLOPs in all; --dry_run lists them', len(cells), total)
  for cell in cells:
    workdir.check_same_run(cell.config, sweep.folder(args.workdir, cell))
  found = sweep.train(cells, args.argv, args.workdir)
  points = [point for point, _ in found]
  curves = [curve for _, curve in found]
  fits = fit.fit_all(points, curves, args.samples, seed=args.config.seed)
  for warning in fits.warnings:
    log.warning('%s', warning)
  written = {'runs': [point._asdict() for point in points], **fits.to_json()}
  write_atomically(f'{path}.json', to_json(written, indent=2) + '\n')
  log.info('wrote %s', studies.draw_scaling(points, curves, fits, f'{path}.png'))
  print(to_json(written) if args.json else fits.table())


def listing(cells: 'list[sweep.Cell]') -> str:
  """A Markdown table of the runs."""
  lines = [
    '| run | parameters | tokens | tokens/parameter | steps | FLOPs |',
    '| --- | --- | --- | --- | --- | --- |',
  ]
  for cell in cells:
    ratio = cell.tokens / cell.parameters
    steps = cell.config.schedule.num_steps
    lines.append(
      f'| {cell.name} | {cell.parameters:,} | {cell.tokens:,} | {ratio:.3g} | '
      f'{steps:,} | {cell.flops:.3g} |'
    )
  return '\n'.join(lines)
