# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws a look into a step: norms by layer, and the documents of its batch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpt_jax.core.training import norm_lines
from gpt_jax.looking.documents import Scored, ranked
from gpt_jax.reports.norms import place_of
from gpt_jax.reports.runs import label, load_pyplot, save_figure

# The documents that have their names beside their points.
_NAMED = 5


def by_place(norms: Mapping[str, float]) -> dict[str, dict[str, float]]:
  """Norms as a table: part or layer of the model -> kind -> value.

  Args:
    norms: by their names in metrics.jsonl: see `norm_lines`.
  """
  table: dict[str, dict[str, float]] = {}
  for name in sorted(norms, key=place_of):
    kind, place = name.split('/', 1)
    table.setdefault(place, {})[kind] = norms[name]
  return table


def picture(step: int, norms: Mapping[str, float], scored: Sequence[Scored], out: str) -> str:
  """Writes a PNG: a panel for each kind of norm, and one for the documents.

  Args:
    step: counted from 1.
    norms: by their names in metrics.jsonl.
    scored: the pieces of its batch.
    out: the PNG.

  Returns:
    `out`.
  """
  table = by_place(norms)
  kinds = [kind for kind in norm_lines.KINDS if any(kind in row for row in table.values())]
  figure, grid = load_pyplot().subplots(
    1,
    len(kinds) + 1,
    figsize=(3 * len(kinds) + 5, 4.5),
    dpi=120,
    layout='constrained',
    width_ratios=[*[1] * len(kinds), 1.8],
  )
  for axes, kind in zip(grid, kinds, strict=False):
    places = [place for place, row in table.items() if kind in row]
    values = [table[place][kind] for place in places]
    axes.barh(range(len(places)), [x if math.isfinite(x) else 0 for x in values], color='C0')
    for place, value in enumerate(values):
      if not math.isfinite(value):
        axes.text(0, place, f' {value}', color='red', fontsize=7, va='center')
    every = -(-len(places) // 32)
    names = [label(place.replace('/layer_', ' ')) for place in places]
    axes.set_yticks(range(0, len(places), every), names[::every], fontsize=6)
    axes.invert_yaxis()
    axes.set_title(kind, fontsize=9)
  _documents(grid[-1], scored)
  figure.suptitle(f'step {step}', fontsize=10)
  return save_figure(figure, out)


def _documents(axes: Any, scored: Sequence[Scored]) -> None:
  """A point for each document; those whose numbers are not finite are named in red."""
  sound = [x for x in scored if math.isfinite(x.loss) and math.isfinite(x.gradient)]
  axes.scatter([x.loss for x in sound], [x.gradient for x in sound], 12, 'C1', linewidths=0)
  for one in ranked(sound, 'loss')[:_NAMED]:
    axes.annotate(_name(one), (one.loss, one.gradient), fontsize=6, ha='right', va='bottom')
  bad = ranked([x for x in scored if x not in sound], 'loss')
  said = [f'{x.loss:.4g}: {_name(x)}' for x in bad[:_NAMED]]
  if more := len(bad) - len(said):
    said.append(f'and {more} more')
  axes.text(
    0.02, 0.98, '\n'.join(said), color='red', fontsize=7, va='top', transform=axes.transAxes
  )
  axes.set_xlabel('loss, nats a token')
  axes.set_ylabel("norm of what it adds to the batch's gradient")
  axes.set_title('documents of the batch', fontsize=9)


def _name(one: Scored) -> str:
  return label(one.piece.name[-40:])
