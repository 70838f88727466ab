# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of runs, the schedule of a config, or a run's goodput.

  gpt-jax plot --workdir workdirs/smoke
  gpt-jax plot --workdir W1,W2 --out compared.png
  gpt-jax plot --config configs/gpt3.py:175b
  gpt-jax plot --workdir W --goodput

Writes W/loss.png, and W/router.png of a run with experts (see `plot_routers`);
or with --config ./schedule.png (rows of a batch, learning
rate and tokens over the steps, before anything is run), with --goodput
W/goodput.png, or the file given by --out. The goodput is the part of the wall
time, from the first start to the last line of metrics.jsonl, that went into
training steps that count; the rest is broken down.
"""

import os
from collections.abc import Sequence

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from gpt_jax import cli
from gpt_jax import config as config_lib
from gpt_jax.config import Config, loading
from gpt_jax.plots import routers
from gpt_jax.spec import UsageError
from gpt_jax.training import goodput, metrics

# Of the held-out sets, the split of the corpus first.
_MARKERS = 'osd^v*xP'


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  loading.define(values)
  cli.define_workdir(values, 'Folder of a run, or a comma list of them.')
  flags.DEFINE_string(
    'out',
    None,
    'The PNG to write; WORKDIR/loss.png or WORKDIR/goodput.png.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'goodput',
    False,
    'Where the wall time of one run went, across restarts.',
    flag_values=values,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  if args.config is not None:
    if args.workdir:
      raise UsageError('--config draws a schedule, --workdir losses; give one')
    config = config_lib.resolve(args.config)
    print(schedule_curves(config, args.out or 'schedule.png'))
    return
  cli.required(args, 'workdir')
  if args.goodput:
    path, account = wall_time(args.workdir, out=args.out)
    Console().print(goodput_table(account))
    print(path)
    return
  workdirs = args.workdir.split(',')
  print(loss_curves(workdirs, out=args.out))
  if args.out is None:
    for path in filter(None, map(routers.router_curves, workdirs)):
      print(path)


def loss_curves(
  workdirs: list[str], out: str | None = None, unit: str = 'nats a token'
) -> str:
  """Draws training and held-out loss over tokens; returns the PNG's path.

  Raises:
    UsageError: a workdir has no metrics.
  """
  pyplot = load_pyplot()
  out = out or os.path.join(workdirs[0], 'loss.png')
  figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
  for i, workdir in enumerate(workdirs):
    lines = metrics.read(workdir)
    train = [(m['tokens'], m['loss']) for m in lines if 'loss' in m]
    if not train:
      raise UsageError(f'--workdir={workdir}: has no metrics.jsonl with losses')
    # Between two logged steps the batch may grow; that far the line is off.
    logged = [(0, 0), *((m['step'], m['tokens']) for m in lines if 'loss' in m)]
    at, counts = zip(*logged, strict=True)
    held_out: dict[str, list[tuple[float, float]]] = {}
    for m in lines:
      for name, loss in metrics.held_out_losses(m).items():
        point = (float(np.interp(m['step'], at, counts)), loss)
        held_out.setdefault(name, []).append(point)
    name = os.path.basename(os.path.normpath(workdir))
    tokens, losses = zip(*train, strict=True)
    axes.plot(tokens, losses, f'C{i}', lw=0.6, alpha=0.4)
    smooth = running_mean(losses)
    axes.plot(tokens, smooth, f'C{i}', lw=1.5, label=f'{name}: training')
    for (part, points), marker in zip(held_out.items(), _MARKERS, strict=False):
      part = 'held out' if part == 'validation' else part
      xs, ys = zip(*points, strict=True)
      axes.plot(xs, ys, f'C{i}{marker}--', label=f'{name}: {part}')
  axes.set_xlabel('tokens')
  axes.set_ylabel(f'loss ({unit})')
  axes.grid(alpha=0.3)
  axes.legend()
  return save_figure(figure, out)


def schedule_curves(config: Config, out: str) -> str:
  """Draws rows, learning rate and tokens of each step; returns `out`."""
  pyplot = load_pyplot()
  ramp, num_steps = config_lib.ramp(config), config.schedule.num_steps
  # The steps before and after each boundary, so that it is drawn upright.
  edges = [s.start + d for s in ramp.stages for d in (-1, 0)]
  even = np.linspace(0, num_steps - 1, 1000).astype(int).tolist()
  # A warm-up is short: the first thousandths of a run again.
  early = np.geomspace(1, num_steps, 200).astype(int).tolist()
  steps = sorted(
    s for s in {*edges, *even, *early} if 0 <= s < max(num_steps, 1)
  )
  rates = np.asarray(config_lib.schedule(config)(np.array(steps)))
  curves = {
    'rows in a batch': [ramp.rows(s) for s in steps],
    'learning rate': rates,
    'tokens': [ramp.tokens(s) for s in steps],
  }
  figure, panels = pyplot.subplots(3, sharex=True, figsize=(7, 7), dpi=120)
  for axes, (name, values) in zip(panels, curves.items(), strict=True):
    axes.plot(steps, values)
    axes.set_ylabel(name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
  total = ramp.tokens(num_steps)
  panels[-1].set_xlabel(f'steps ({num_steps:,}; {total:.4g} tokens)')
  return save_figure(figure, out)


def wall_time(
  workdir: str, out: str | None = None
) -> tuple[str, goodput.Account]:
  """Draws where the wall time went; returns the PNG's path and the figures.

  Raises:
    UsageError: the workdir has no metrics, or no starts in them.
  """
  try:
    account = goodput.account(metrics.read(workdir))
  except ValueError as e:
    raise UsageError(f'--workdir={workdir}: {e}; train a run there') from e
  figure, axes = load_pyplot().subplots(figsize=(7, 3), dpi=120)
  kinds = list(reversed(goodput.KINDS))
  bars = axes.barh(kinds, [account.seconds[kind] for kind in kinds])
  shares = [account.seconds[kind] / account.total for kind in kinds]
  axes.bar_label(bars, [f'{share:.1%}' for share in shares], padding=3)
  axes.margins(x=0.12)
  axes.set_xlabel(f'seconds of {account.total:,.0f}')
  axes.set_title(f'goodput {account.goodput:.1%}')
  return save_figure(
    figure, out or os.path.join(workdir, 'goodput.png')
  ), account


def goodput_table(account: goodput.Account) -> Table:
  """The seconds, and what they bought, for people."""
  table = Table('what', 'seconds', 'share', '', title='Wall time')
  for kind, explained in goodput.KINDS.items():
    seconds = account.seconds[kind]
    share = f'{seconds / account.total:.1%}'
    table.add_row(kind, f'{seconds:,.1f}', share, explained)
  table.add_row('total', f'{account.total:,.1f}', '100%', '', end_section=True)
  for name in ('starts', 'steps', 'lost_steps', 'tokens', 'rows', 'epochs'):
    value = getattr(account, name)
    text = f'{value:,.2f}' if name == 'epochs' else f'{value:,.0f}'
    table.add_row(name, text, '', '')
  return table


def load_pyplot():
  """Matplotlib's pyplot, which draws into files."""
  # Imported here: it takes most of a second, which other commands need not
  # spend.
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  return pyplot


def save_figure(figure, out: str) -> str:
  """Writes the PNG as a whole."""
  figure.tight_layout()
  temporary = out + '.tmp'
  figure.savefig(temporary, format='png')
  load_pyplot().close(figure)
  os.replace(temporary, out)
  return out


def running_mean(values: Sequence[float], decay: float = 0.9) -> list[float]:
  """Exponential mean of the values so far, without bias to the start."""
  out, total, weight = [], 0.0, 0.0
  for value in values:
    total = decay * total + (1 - decay) * value
    weight = decay * weight + (1 - decay)
    out.append(total / weight)
  return out
