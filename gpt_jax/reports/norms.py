# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heat maps of a run's norms by layer: see `training.norm_lines`."""

import math
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
  tables = {kind: table(lines, kind) for kind in norm_lines.KINDS}
  tables = {kind: one for kind, one in tables.items() if one[0]}
  if not tables:
    return None
  figure, grid = load_pyplot().subplots(
    len(tables), figsize=(8, 2.6 * len(tables)), dpi=120, layout='constrained', squeeze=False
  )
  for axes, (kind, (steps, parts, values_PS)) in zip(grid[:, 0], tables.items(), strict=True):
    _draw(figure, axes, steps, parts, values_PS)
    axes.set_title(norm_lines.KINDS[kind], fontsize=9)
  return figure


def table(lines: Sequence[dict[str, Any]], kind: str) -> tuple[list[int], list[str], np.ndarray]:
  """One kind of norm over a run.

  Args:
    lines: of metrics.jsonl.
    kind: of `norm_lines.KINDS`.

  Returns:
    The steps; the parts, in the order of the model; float [parts, steps], NaN
    where a line lacks one.
  """
  measured = [line for line in lines if any(name.startswith(f'{kind}/') for name in line)]
  names = {name for line in measured for name in line if name.startswith(f'{kind}/')}
  ordered = sorted(names, key=place_of)
  values = [[line.get(name, math.nan) for line in measured] for name in ordered]
  parts = [name.removeprefix(f'{kind}/') for name in ordered]
  return [line['step'] for line in measured], parts, np.array(values, float)


def place_of(name: str) -> tuple[bool, str, int]:
  """The place of a norm in the order of the model, by its name in metrics.jsonl."""
  match = metrics.NORM.fullmatch(name)
  assert match
  # Parts without layers come first: the embeddings are among them.
  return match[3] is not None, match[2], int(match[3] or 0)


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
