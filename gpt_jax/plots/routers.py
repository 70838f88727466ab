# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the load of the experts over a run, and what the routers dropped."""

import math
import os
from typing import Any

import numpy as np

from gpt_jax.files import files
from gpt_jax.training import metrics

# More experts than these are a heat map instead of a line each.
MOST_LINES = 16


def router_curves(workdir: str) -> str | None:
  """Draws WORKDIR/router.png; returns its path, None for runs without experts.

  One panel for each layer with experts: the fraction of the tokens that chose
  each expert, lines of up to `MOST_LINES` experts, else a heat map. Below them
  the fraction dropped, and the entropy of the router's probabilities. Dashed
  lines are even loads and uniform probabilities.
  """
  lines = [m for m in metrics.read(workdir) if any(map(metrics.is_load, m))]
  if not lines:
    return None
  # Imported here: it takes most of a second, which other commands need not
  # spend.
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  steps = [m['step'] for m in lines]
  places = [n.removesuffix('/load') for n in lines[-1] if metrics.is_load(n)]
  columns = min(3, len(places))
  rows = math.ceil(len(places) / columns)
  figure = pyplot.figure(
    figsize=(max(8, 4.5 * columns), 2.8 * (rows + 1)),
    dpi=120,
    layout='constrained',
  )
  # Six columns divide by one, two or three panels.
  grid = figure.add_gridspec(rows + 1, 6)
  width, image = 6 // columns, None
  for i, place in enumerate(places):
    left = i % columns * width
    axes = figure.add_subplot(grid[i // columns, left : left + width])
    loads_SE = np.array([m[f'{place}/load'] for m in lines])
    axes.set_title(_title(place), fontsize=9)
    if loads_SE.shape[1] > MOST_LINES:
      image = _heat_map(axes, steps, loads_SE)
    else:
      _lines(axes, steps, loads_SE, legend=i == 0)
  if image is not None:
    figure.colorbar(
      image,
      ax=figure.axes,
      extend='max',
      label='load / even load (red: no token)',
    )
  labels = {'dropped': 'fraction dropped', 'entropy': 'router entropy (nats)'}
  for i, (name, label) in enumerate(labels.items()):
    axes = figure.add_subplot(grid[rows, 3 * i : 3 * i + 3])
    for j, place in enumerate(places):
      # From the first layer to the last: early ones dark.
      color = pyplot.get_cmap('viridis')(j / max(1, len(places) - 1) * 0.9)
      values = [m[f'{place}/{name}'] for m in lines]
      axes.plot(steps, values, color=color, lw=1, label=_title(place))
      if name == 'entropy':
        num_experts = len(lines[-1][f'{place}/load'])
        axes.axhline(math.log(num_experts), color='black', ls='--', lw=0.8)
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    _finish(axes)
    if len(places) <= MOST_LINES and name == 'dropped':
      axes.legend(fontsize=7, ncols=2)
  out = os.path.join(workdir, 'router.png')
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format='png')
  pyplot.close(figure)
  return out


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
  """Experts over steps; a line of the log stands for the steps before it."""
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
