# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figure of tasks over the checkpoints of a run."""

from collections.abc import Sequence

import numpy as np

from gpt_jax.evaluation.figures import FigureCurve
from gpt_jax.reports import runs


def task_curves(measured: Sequence[FigureCurve], out: str) -> str:
  """Plots tasks over the checkpoints of a run; returns `out`.

  A panel for each figure, with bands of one standard error. `relative` has the
  axis of GPT-1's figure 2: 0 for chance, 1 for the best result of another
  system.
  """
  panels: dict[str, list[FigureCurve]] = {}
  for curve in measured:
    panels.setdefault(curve.figure, []).append(curve)
  figure, grid = runs.load_pyplot().subplots(
    1, len(panels), squeeze=False, figsize=(6 * len(panels), 4), dpi=120
  )
  for axes, (name, curves) in zip(grid[0], panels.items(), strict=True):
    for i, curve in enumerate(curves):
      steps, pairs = [*curve.values], np.array([*curve.values.values()])
      values, errors = pairs.reshape(-1, 2).T
      axes.plot(steps, values, f'C{i}o-', label=runs.label(curve.task))
      axes.fill_between(steps, values - errors, values + errors, color=f'C{i}', alpha=0.15)
    axes.set_xscale('log')
    axes.set_xlabel('steps')
    axes.set_ylabel(runs.label(name))
    if name == 'relative':
      axes.set_ylabel('between chance (0) and best (1)')
      axes.axhline(0, color='black', lw=0.8)
    axes.grid(alpha=0.3)
    axes.legend()
  return runs.save_figure(figure, out)
