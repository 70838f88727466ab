# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plots runs: losses, schedule and routers, as PNG files."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.files import buckets, files
from gpt_jax.core.runtime.log import log
from gpt_jax.core.training import metrics, report


def load_pyplot():
  """Matplotlib's pyplot, with a backend for files.

  Importing it takes most of a second, so other commands do not.
  """
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  return pyplot


def label(text: str) -> str:
  """A text that a figure shows letter by letter, for names that users choose.

  Matplotlib reads `$x$` as a formula, and leaves what begins with `_` out of
  legends; characters that no font has, such as line breaks, are written out.
  """
  text = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
  text = text.replace('$', r'\$')
  return f' {text}' if text.startswith('_') else text


def run_names(workdirs: Sequence[str]) -> list[str]:
  """A name for each run: the shortest part of its path that tells them apart.

  The folders' own names; if some are alike, the paths without what all of them
  begin with, and without what all of them end with.
  """
  paths = [buckets.shown(os.path.abspath(workdir)) for workdir in workdirs]
  parts = [path.strip('/').split('/') for path in paths]
  names = [path[-1] for path in parts]
  if len({*names}) == len(names):
    return names
  for end in (0, -1):
    while min(map(len, parts)) > 1 and len({path[end] for path in parts}) == 1:
      for path in parts:
        del path[end]
  return ['/'.join(path) for path in parts]


def save_figure(figure, out: str) -> str:
  """Writes a PNG atomically."""
  if figure.get_layout_engine() is None:
    figure.tight_layout()
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format='png')
  load_pyplot().close(figure)
  return out


# Markers of the held-out sets, the corpus's own split first.
_MARKERS = 'osd^v*xP'


def loss_curves(
  workdirs: list[str], out: str | None = None, unit: str = 'nats a token', names: Sequence[str] = ()
) -> str | None:
  """Plots training and held-out loss over tokens.

  Args:
    out: the PNG; None: loss.png of the first run.
    names: of the runs; (): see `run_names`.

  Returns:
    The PNG's path; None if no run has a finite loss in its metrics, which is
    logged.
  """
  figure = loss_figure(workdirs, unit, names)
  out = out or os.path.join(workdirs[0], 'loss.png')
  return save_figure(figure, out) if figure else None


def loss_figure(workdirs: list[str], unit: str = 'nats a token', names: Sequence[str] = ()) -> Any:
  """The figure of `loss_curves`; None as there."""
  pyplot = load_pyplot()
  figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=120)
  names = names or run_names(workdirs)
  for i, (workdir, name) in enumerate(zip(workdirs, names, strict=True)):
    lines = metrics.read(workdir)
    if not _draw(axes, lines, name, f'C{i}'):
      log.warning('%s: no loss is finite, there is nothing to draw', workdir)
  if not axes.lines:
    pyplot.close(figure)
    return None
  axes.set_xlabel('tokens')
  axes.set_ylabel(f'loss ({unit})')
  axes.grid(alpha=0.3)
  axes.legend()
  return figure


def _draw(axes: Any, lines: list[dict[str, Any]], name: str, color: str) -> bool:
  """Plots one run; False if no training loss is finite."""
  logged = [m for m in lines if 'tokens' in m]
  train = [(m['tokens'], m['loss']) for m in logged if math.isfinite(m.get('loss', math.nan))]
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
  # A twentieth of the curve, and three lines at least.
  half = 1 + len(losses) // 40
  said = label(f'{name}: training, centred mean of {2 * half + 1} log lines')
  axes.plot(tokens, centred_mean(losses, half), color, lw=1.5, label=said)
  for (part, points), marker in zip(held_out.items(), _MARKERS, strict=False):
    part = 'held out' if part == 'validation' else part
    xs, ys = zip(*points, strict=True)
    said = label(f'{name}: {part}')
    axes.plot(xs, ys, f'{color}{marker}--', label=said)
  return True


def centred_mean(values: Sequence[float], half: int) -> np.ndarray:
  """The mean of each value, up to `half` before it and as many after it.

  Near an end there are fewer on both sides, so that a straight line stays as it
  is: the mean neither lags behind a falling loss nor bends at its ends.
  """
  sums = np.cumsum([0.0, *values])
  at = np.arange(len(values))
  width = np.minimum(half, np.minimum(at, at[::-1]))
  return (sums[at + width + 1] - sums[at - width]) / (2 * width + 1)


def schedule_curves(config: Config, out: str) -> str:
  """Plots rows, learning rate and tokens of each step; returns `out`."""
  pyplot = load_pyplot()
  ramp, num_steps = config_lib.ramp(config), config.schedule.num_steps
  # The steps before and after each boundary, so that it is drawn upright.
  edges = [s.start + d for s in ramp.stages for d in (-1, 0)]
  even = np.linspace(0, num_steps - 1, 1000).astype(int).tolist()
  # A warm-up is short: the first thousandths of a run again.
  early = np.geomspace(1, num_steps, 200).astype(int).tolist()
  steps = sorted(s for s in {*edges, *even, *early} if 0 <= s < max(num_steps, 1))
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


# Draws the load of the experts over a run, and what the routers dropped.


# More experts than these are a heat map instead of a line each.
MOST_LINES = 16


def router_curves(workdir: str) -> str | None:
  """Plots WORKDIR/router.png; returns its path, None for runs without experts.

  One panel for each layer with experts: the fraction of the tokens that chose
  each expert, lines of up to `MOST_LINES` experts, else a heat map. Below them
  the fraction dropped, and the entropy of the router's probabilities. Dashed
  lines are even loads and uniform probabilities.
  """
  everything = metrics.read(workdir)
  lines = [m for m in everything if any(map(report.is_load, m))]
  if not lines:
    return None
  pyplot = load_pyplot()
  steps = [m['step'] for m in lines]
  places = [n.removesuffix('/load') for n in lines[-1] if report.is_load(n)]
  _check_routers(workdir, everything, places)
  columns = min(3, len(places))
  rows = math.ceil(len(places) / columns)
  figure = pyplot.figure(
    figsize=(max(8, 4.5 * columns), 2.8 * (rows + 1)), dpi=120, layout='constrained'
  )
  # Six columns divide by one, two or three panels.
  grid = figure.add_gridspec(rows + 1, 6)
  width, image = 6 // columns, None
  for i, place in enumerate(places):
    left = i % columns * width
    axes = figure.add_subplot(grid[i // columns, left : left + width])
    loads_SE = np.array([m[f'{place}/load'] for m in lines])
    axes.set_title(label(_title(place)), fontsize=9)
    if loads_SE.shape[1] > MOST_LINES:
      image = _heat_map(axes, steps, loads_SE)
    else:
      _lines(axes, steps, loads_SE, legend=i == 0)
  if image is not None:
    figure.colorbar(image, ax=figure.axes, extend='max', label='load / even load (red: no token)')
  labels = {'dropped': 'fraction dropped', 'entropy': 'router entropy (nats)'}
  for i, (name, axis) in enumerate(labels.items()):
    axes = figure.add_subplot(grid[rows, 3 * i : 3 * i + 3])
    for j, place in enumerate(places):
      # From the first layer to the last: early ones dark.
      color = pyplot.get_cmap('viridis')(j / max(1, len(places) - 1) * 0.9)
      values = [m[f'{place}/{name}'] for m in lines]
      axes.plot(steps, values, color=color, lw=1, label=label(_title(place)))
      if name == 'entropy':
        num_experts = len(lines[-1][f'{place}/load'])
        axes.axhline(math.log(num_experts), color='black', ls='--', lw=0.8)
    axes.set_ylabel(axis)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    _finish(axes)
    if len(places) <= MOST_LINES and name == 'dropped':
      axes.legend(fontsize=7, ncols=2)
  return save_figure(figure, os.path.join(workdir, 'router.png'))


def _check_routers(workdir: str, lines: list[dict], places: list[str]) -> None:
  """Checks that all lines have the routers of the last one."""
  path = os.path.join(workdir, 'metrics.jsonl')
  sizes: dict[str, int] = {}
  for number, line in enumerate(lines, start=1):
    if not any(map(report.is_load, line)):
      continue
    for place in places:
      for name in (f'{place}/load', f'{place}/dropped', f'{place}/entropy'):
        if name not in line:
          raise metrics.damaged(path, number, f'lacks {name}')
      loads = line[f'{place}/load']
      if len(loads) != sizes.setdefault(place, len(loads)) or not loads:
        raise metrics.damaged(path, number, f'{place}/load: other experts')


def _lines(axes: Any, steps: list, loads_SE: np.ndarray, legend: bool) -> None:
  num_experts = loads_SE.shape[1]
  for expert, loads in enumerate(loads_SE.T):
    axes.plot(steps, loads, lw=1, label=str(expert), color=f'C{expert}')
  axes.axhline(1 / num_experts, color='black', ls='--', lw=0.8)
  axes.set_ylim(bottom=0)
  axes.set_ylabel('load')
  _finish(axes)
  if legend:
    axes.legend(fontsize=7, ncols=4, title='expert', title_fontsize=7)


def _heat_map(axes: Any, steps: list, loads_SE: np.ndarray) -> Any:
  """Experts over steps; a line of the log covers the steps before it."""
  num_experts = loads_SE.shape[1]
  image = axes.pcolormesh(
    [0, *steps],
    np.arange(num_experts + 1) - 0.5,
    np.ma.masked_equal(loads_SE.T, 0) * num_experts,
    cmap='viridis',
    vmin=0,
    vmax=3,
  )
  # What is masked shows it.
  axes.set_facecolor('red')
  axes.set_ylabel('expert')
  axes.set_xlabel('steps')
  return image


def _finish(axes: Any) -> None:
  axes.set_xlabel('steps')
  axes.grid(alpha=0.3)


def _title(place: str) -> str:
  """`router/encoder/layer_3` -> `encoder layer 3`."""
  return ' '.join(place.split('/')[1:]).replace('_', ' ')
