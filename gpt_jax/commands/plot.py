# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of runs, the schedule of a config, or a run's goodput.

  gpt-jax plot --workdir workdirs/smoke
  gpt-jax plot --workdir W1,W2 --out compared.png
  gpt-jax plot --config configs/gpt3.py:175b
  gpt-jax plot --workdir W --goodput

Writes W/loss.png, W/router.png for a run with experts and W/norms.png for one
with log.norms_every_steps (norms by layer over the steps); with --config
./schedule.png (batch rows, learning rate and tokens over the steps, without
running anything); with --goodput W/goodput.png; or the file --out. Goodput is
the share of wall time, from the first start to the last line of metrics.jsonl,
spent on training steps that count; the rest is broken down.
"""

import os

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.files import buckets
from gpt_jax.core.runtime import tables
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.reports import goodput, norms, runs


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of a run, or a comma-separated list of them.')
  flags.path('out', None, 'PNG to write instead of WORKDIR/loss.png or goodput.png.', written=True)
  flags.switch('goodput', 'Show how the wall time of a run was spent, across restarts.')


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.check_out_file(args, 'out', ('.png',))
  if args.config is not None:
    if args.workdir:
      raise UsageError('--config: draws a schedule, and --workdir draws losses; give one')
    config = config_lib.resolve(args.config)
    print(runs.schedule_curves(config, args.out or 'schedule.png'))
    return
  cli.required(args, 'workdir')
  if args.goodput:
    path, account = goodput.wall_time(args.workdir, out=args.out)
    tables.console().print(goodput_table(account))
    print(buckets.shown(path))
    return
  workdirs = args.workdir.split(',')
  if len({*map(os.path.realpath, workdirs)}) < len(workdirs):
    raise UsageError(
      f'--workdir={buckets.shown(args.workdir)}: names a folder twice; name each once'
    )
  for workdir in workdirs:
    if not metrics.read(workdir):
      raise UsageError(
        f'--workdir={workdir}: has no losses in metrics.jsonl; name a run that has logged some'
      )
  if path := runs.loss_curves(workdirs, out=args.out):
    print(buckets.shown(path))
  if args.out is None:
    for draw in (runs.router_curves, norms.norm_maps):
      for path in filter(None, map(draw, workdirs)):
        print(buckets.shown(path))


def goodput_table(account: 'goodput.Account') -> TextTable:
  """A table of how the wall time was spent."""
  right = 'seconds', 'share'
  table = TextTable('what', *right, '', title='Wall time', right=right)
  for kind, explained in goodput.KINDS.items():
    share = f'{account.share(kind):.1%}'
    table.add_row(kind, f'{account.seconds[kind]:,.1f}', share, explained)
  table.add_row('total', f'{account.total:,.1f}', '100%', '', end_section=True)
  for name in ('starts', 'steps', 'lost_steps', 'tokens', 'rows', 'epochs'):
    value = getattr(account, name)
    text = f'{value:,.2f}' if name == 'epochs' else f'{value:,.0f}'
    table.add_row(name, text, '', '')
  return table
