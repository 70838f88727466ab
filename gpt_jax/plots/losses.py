# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of runs."""

import os
from collections.abc import Sequence

import numpy as np

from gpt_jax.plots.figure import load_pyplot, save_figure
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics

# Of the held-out sets, the split of the corpus first.
_MARKERS = 'osd^v*xP'


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


def running_mean(values: Sequence[float], decay: float = 0.9) -> list[float]:
  """Exponential mean of the values so far, without bias to the start."""
  out, total, weight = [], 0.0, 0.0
  for value in values:
    total = decay * total + (1 - decay) * value
    weight = decay * weight + (1 - decay)
    out.append(total / weight)
  return out
