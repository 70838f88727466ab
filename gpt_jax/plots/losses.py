# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of runs."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.plots.figure import load_pyplot, save_figure
from gpt_jax.runtime.log import log
from gpt_jax.training import metrics

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
