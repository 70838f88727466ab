# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the loss of one run, or of several in one picture.

  gpt-jax plot --workdir workdirs/smoke
  gpt-jax plot --workdir W1,W2 --out compared.png

Writes W/loss.png, and W/router.png of a run with experts (see
`plot_routers`); with --out only the losses, into that file.
"""

import os
from collections.abc import Sequence

from absl import flags

from gpt_jax import command, metrics, plot_routers
from gpt_jax.spec import UsageError


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  command.define_workdir(values, 'Folder of a run, or a comma list of them.')
  flags.DEFINE_string(
    'out', None, 'The PNG to write; WORKDIR/loss.png.', flag_values=values
  )


def main(args: command.Args) -> None:
  """Runs the command."""
  command.required(args, 'workdir')
  workdirs = args.workdir.split(',')
  print(loss_curves(workdirs, out=args.out))
  if args.out is None:
    for path in filter(None, map(plot_routers.router_curves, workdirs)):
      print(path)


def loss_curves(workdirs: list[str], out: str | None = None) -> str:
  """Draws training and held-out loss over tokens; returns the PNG's path.

  Raises:
    UsageError: a workdir has no metrics.
  """
  # Imported here: it takes most of a second, which other commands need not
  # spend.
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  out = out or os.path.join(workdirs[0], 'loss.png')
  figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
  for i, workdir in enumerate(workdirs):
    lines = metrics.read(workdir)
    train = [(m['tokens'], m['loss']) for m in lines if 'loss' in m]
    if not train:
      raise UsageError(f'--workdir={workdir}: has no metrics.jsonl with losses')
    per_step = train[-1][0] / max(m['step'] for m in lines if 'loss' in m)
    held_out = [
      (m['step'] * per_step, m['eval/validation/loss'])
      for m in lines
      if 'eval/validation/loss' in m
    ]
    name = os.path.basename(os.path.normpath(workdir))
    tokens, losses = zip(*train, strict=True)
    axes.plot(tokens, losses, f'C{i}', lw=0.6, alpha=0.4)
    smooth = running_mean(losses)
    axes.plot(tokens, smooth, f'C{i}', lw=1.5, label=f'{name}: training')
    if held_out:
      xs, ys = zip(*held_out, strict=True)
      axes.plot(xs, ys, f'C{i}o--', label=f'{name}: held out')
  axes.set_xlabel('tokens')
  axes.set_ylabel('loss (nats a token)')
  axes.grid(alpha=0.3)
  axes.legend()
  figure.tight_layout()
  temporary = out + '.tmp'
  figure.savefig(temporary, format='png')
  pyplot.close(figure)
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
