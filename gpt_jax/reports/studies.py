# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plots studies of several runs: scaling laws, tokenizers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.papers.chinchilla.fit import Curve, Fits, Point, smooth
from gpt_jax.reports.runs import label, load_pyplot, save_figure
from gpt_jax.reports.tokenizer_report import Report


def draw_scaling(points: Sequence[Point], curves: Sequence[Curve], fits: Fits, out: str) -> str:
  """Writes the PNG; returns its path."""
  figure, panels = load_pyplot().subplots(1, 3, figsize=(15, 4.6), dpi=110)
  _draw_curves(panels[0], curves, fits)
  _draw_profiles(panels[1], points, fits)
  _draw_laws(panels[2], points, fits)
  for axes in panels:
    axes.grid(alpha=0.3)
  return save_figure(figure, out)


def _draw_curves(axes: Any, curves: Sequence[Curve], fits: Fits) -> None:
  sizes = sorted({c.parameters for c in curves})
  for curve in curves:
    color = f'C{sizes.index(curve.parameters) % 10}'
    flops, losses = smooth(curve)
    axes.plot(flops, losses, color, lw=0.9, alpha=0.7)
  for i, size in enumerate(sizes):
    axes.plot([], [], f'C{i % 10}', label=short(size))
  axes.plot(fits.envelope.flops, fits.envelope.losses, 'k', lw=1.2)
  losses = np.concatenate([smooth(c)[1] for c in curves])
  axes.set(
    xscale='log',
    xlabel='training FLOPs',
    ylabel='training loss (nats a token)',
    title='Training curves and their envelope',
    xlim=(fits.envelope.flops[0] / 30, None),
    ylim=(losses.min() - 0.05, np.percentile(losses, 90)),
  )
  axes.legend(title='parameters', fontsize=8)


def _draw_profiles(axes: Any, points: Sequence[Point], fits: Fits) -> None:
  profiles = {profile.budget: profile for profile in fits.profiles}
  for i, budget in enumerate(sorted({p.budget for p in points})):
    runs = [p for p in points if p.budget == budget]
    sizes = [p.parameters for p in runs]
    color = f'C{i % 10}'
    said = f'{budget:.3g} FLOPs'
    axes.plot(sizes, [p.loss for p in runs], f'{color}o', label=said)
    if profile := profiles.get(budget):
      xs = np.geomspace(min(sizes) / 1.2, max(sizes) * 1.2, 100)
      axes.plot(xs, np.polyval(profile.parabola, np.log(xs)), color, lw=1.2)
      axes.plot(profile.parameters, profile.loss, 'k*', ms=10)
  axes.set(
    xscale='log',
    xlabel='parameters',
    ylabel='held-out loss (nats a token)',
    title='IsoFLOP profiles and their minima',
  )
  axes.legend(fontsize=8)


def _draw_laws(axes: Any, points: Sequence[Point], fits: Fits) -> None:
  most = max(p.flops for p in points)
  flops = np.geomspace(min(p.flops for p in points) / 2, most * 10, 50)
  for number, laws in fits.frontiers.items():
    style = {1: ':', 2: '-'}[number]
    for law, name, color in zip(laws, 'ND', ('C0', 'C1'), strict=True):
      said = f'{name}, approach {number}: C^{law.exponent:.2f}'
      axes.plot(flops, law(flops), color + style, label=said)
  if fit := fits.fit:
    parameters, tokens = zip(*map(fit.optimum, flops.tolist()), strict=True)
    axes.plot(flops, parameters, 'C0--', label=f'N, approach 3: C^{fit.a:.2f}')
    axes.plot(flops, tokens, 'C1--', label=f'D, approach 3: C^{fit.b:.2f}')
  for profile in fits.profiles:
    spent = np.mean([p.flops for p in profile.points])
    axes.plot(spent, profile.parameters, 'k*', ms=9)
    axes.plot(spent, profile.tokens, 'k*', ms=9)
  axes.set(
    xscale='log',
    yscale='log',
    xlabel='training FLOPs',
    ylabel='parameters N, tokens D',
    title='The optimum for a budget',
  )
  axes.legend(fontsize=8)


def short(count: float) -> str:
  """As in 164k or 1.5M."""
  for unit, size in (('B', 1e9), ('M', 1e6), ('k', 1e3)):
    if count >= size:
      return f'{count / size:.3g}{unit}'
  return f'{count:.3g}'


# Draws how tokenizers compare.


def draw_tokenizers(reports: dict[str, Report], out: str) -> str:
  """Plots bytes per token, and how much of each vocabulary is used."""
  figure, (left, right) = load_pyplot().subplots(
    1, 2, figsize=(10, 4.5), dpi=120, width_ratios=(2, 3)
  )
  names = [*map(label, reports)]
  bars = left.barh(names, [r.bytes_per_token for r in reports.values()])
  left.bar_label(bars, fmt='%.2f', padding=3)
  left.invert_yaxis()
  left.margins(x=0.15)
  left.set_xlabel('bytes per token (more is shorter)')
  for name, r in reports.items():
    times, pieces = np.unique(r.counts[r.counts > 0], return_counts=True)
    at_least = pieces[::-1].cumsum()[::-1] / r.vocab_size * 100
    right.semilogx(times, at_least, label=label(name), drawstyle='steps-pre')
  right.set_xlabel('times that a piece occurs, at least')
  right.set_ylabel('% of the vocabulary')
  right.set_ylim(0, None)
  right.legend(frameon=False)
  for axes in (left, right):
    axes.spines[['top', 'right']].set_visible(False)
  return save_figure(figure, out)
