# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heat maps of a run's norms by layer: see `training.norm_lines`."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.core.training import metrics, norm_lines
from gpt_jax.reports.runs import label, load_pyplot, save_figure

# Rows of a map with a name each; of more every few have one.
_NAMES = 16


def norm_maps(workdir: str) -> str | None:
  """Plots WORKDIR/norms.png; returns its path, None for runs without norms."""
  figure = norm_figure(metrics.read(workdir))
  return save_figure(figure, os.path.join(workdir, 'norms.png')) if figure else None


def norm_figure(lines: Sequence[dict[str, Any]]) -> Any:
  """A heat map for each kind of norm, parts of the model over steps.

  Colours are logarithmic, from the kind's smallest to its largest value; a value
  that is not finite, or not positive, is red.

  Args:
    lines: of metrics.jsonl.

  Returns:
    The figure; None: no line has norms.
  """
  tables = {kind: norm_lines.table(lines, kind) for kind in norm_lines.KINDS}
  tables = {kind: found for kind, found in tables.items() if found[0]}
  if not tables:
    return None
  figure, grid = load_pyplot().subplots(
    len(tables), figsize=(8, 2.6 * len(tables)), dpi=120, layout='constrained', squeeze=False
  )
  for axes, (kind, (steps, parts, values_PS)) in zip(grid[:, 0], tables.items(), strict=True):
    _draw(figure, axes, steps, parts, values_PS)
    axes.set_title(norm_lines.KINDS[kind], fontsize=9)
  return figure


def _draw(figure: Any, axes: Any, steps: list[int], parts: list[str], values_PS: Any) -> None:
  from matplotlib.colors import LogNorm

  # A line's cell ends at its step.
  first = steps[0] - (steps[1] - steps[0] if len(steps) > 1 else 1)
  shown = np.ma.masked_invalid(values_PS)
  shown = np.ma.masked_less_equal(shown, 0)
  image = axes.pcolormesh(
    [first, *steps],
    np.arange(len(parts) + 1) - 0.5,
    shown,
    cmap='viridis',
    norm=LogNorm() if shown.count() else None,
    rasterized=True,
  )
  axes.set_facecolor('red')
  every = -(-len(parts) // _NAMES)
  names = [label(part.replace('/layer_', ' ')) for part in parts]
  axes.set_yticks(range(0, len(parts), every), names[::every], fontsize=7)
  axes.set_xlabel('steps')
  if shown.count():
    figure.colorbar(image, ax=axes)
