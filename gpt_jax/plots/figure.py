# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matplotlib, drawing into PNG files."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.files import files
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import goodput, metrics


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
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format='png')
  load_pyplot().close(figure)
  return out


# Draws the losses of runs.


# Of the held-out sets, the split of the corpus first.
_MARKERS = 'osd^v*xP'


def loss_curves(
  workdirs: list[str], out: str | None = None, unit: str = 'nats a token'
) -> str | None:
  """Draws training and held-out loss over tokens.

  Returns:
    The PNG's path; None if no run has a finite loss in its metrics, which is
    logged.
  """
  pyplot = load_pyplot()
  out = out or os.path.join(workdirs[0], 'loss.png')
  figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
  for i, workdir in enumerate(workdirs):
    lines = metrics.read(workdir)
    name = os.path.basename(os.path.normpath(workdir))
    if not _draw(axes, lines, name, f'C{i}'):
      log.warning('%s: no loss is finite, there is nothing to draw', workdir)
  if not axes.lines:
    pyplot.close(figure)
    return None
  axes.set_xlabel('tokens')
  axes.set_ylabel(f'loss ({unit})')
  axes.grid(alpha=0.3)
  axes.legend()
  return save_figure(figure, out)


def _draw(
  axes: Any, lines: list[dict[str, Any]], name: str, color: str
) -> bool:
  """Draws one run; False if no training loss is finite."""
  logged = [m for m in lines if 'tokens' in m]
  train = [
    (m['tokens'], m['loss'])
    for m in logged
    if math.isfinite(m.get('loss', math.nan))
  ]
  if not train:
    return False
  # Between two logged steps the batch may grow; that far the line is off.
  points = [(0, 0), *((m['step'], m['tokens']) for m in logged)]
  at, counts = zip(*points, strict=True)
  held_out: dict[str, list[tuple[float, float]]] = {}
  for m in lines:
    for part, loss in metrics.held_out_losses(m).items():
      if math.isfinite(loss):
        point = (float(np.interp(m['step'], at, counts)), loss)
        held_out.setdefault(part, []).append(point)
  tokens, losses = zip(*train, strict=True)
  axes.plot(tokens, losses, color, lw=0.6, alpha=0.4)
  smooth = running_mean(losses)
  axes.plot(tokens, smooth, color, lw=1.5, label=f'{name}: training')
  for (part, points), marker in zip(held_out.items(), _MARKERS, strict=False):
    part = 'held out' if part == 'validation' else part
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, f'{color}{marker}--', label=f'{name}: {part}')
  return True


def running_mean(values: Sequence[float], decay: float = 0.9) -> list[float]:
  """Exponential mean of the values so far, without bias to the start."""
  out, total, weight = [], 0.0, 0.0
  for value in values:
    total = decay * total + (1 - decay) * value
    weight = decay * weight + (1 - decay)
    out.append(total / weight)
  return out


# Draws the batch, the learning rate and the tokens of a schedule.


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
    'tokens in a row': [ramp.shape(s).length for s in steps],
    'learning rate': rates,
    'tokens': [ramp.tokens(s) for s in steps],
  }
  if len({*curves['tokens in a row']}) == 1:
    del curves['tokens in a row']
  figure, panels = pyplot.subplots(
    len(curves), sharex=True, figsize=(7, 1 + 2 * len(curves)), dpi=120
  )
  for axes, (name, values) in zip(panels, curves.items(), strict=True):
    axes.plot(steps, values)
    axes.set_ylabel(name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
  total = ramp.tokens(num_steps)
  panels[-1].set_xlabel(f'steps ({num_steps:,}; {total:.4g} tokens)')
  return save_figure(figure, out)


# Draws where the wall time of a run went.


def wall_time(
  workdir: str, out: str | None = None
) -> tuple[str, goodput.Account]:
  """Draws where the wall time went; returns the PNG's path and the figures."""
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
