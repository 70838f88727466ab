# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws what `ablation` found: bars by task, and scores by layers."""

import statistics
from typing import Any

from matplotlib.figure import Figure

from gpt_jax.files import files

_LAYERS = 'layers_'


def bars(scores: dict[str, Any], out: str) -> str:
  """Scores of each task and setting, with those of the seeds as dots.

  Args:
    scores: task -> setting -> seed -> metrics, with `score`.
    out: the PNG.

  Returns:
    Its path.
  """
  figure = Figure(figsize=(7, 4), dpi=120)
  axes = figure.subplots()
  settings = [
    setting
    for setting in dict.fromkeys(s for runs in scores.values() for s in runs)
    if not setting.startswith(_LAYERS)
  ]
  width = 0.8 / max(len(settings), 1)
  for i, setting in enumerate(settings):
    for n, task in enumerate(scores):
      values = _values(scores[task].get(setting, {}))
      if not values:
        continue
      x = n + (i - (len(settings) - 1) / 2) * width
      label = setting.replace('_', ' ') if n == 0 else None
      axes.bar(
        x, statistics.mean(values), 0.9 * width, color=f'C{i}', label=label
      )
      axes.plot([x] * len(values), values, 'k.', ms=3)
  axes.set_xticks(range(len(scores)), [*scores])
  axes.set_ylabel('dev score x 100')
  axes.grid(axis='y', alpha=0.3)
  if settings:
    axes.legend(
      loc='lower center',
      bbox_to_anchor=(0.5, 1),
      frameon=False,
      ncols=len(settings),
    )
  return _save(figure, out)


def layers(scores: dict[str, Any], out: str) -> str | None:
  """Scores by the number of layers transferred (GPT-1, figure 2).

  Arguments as of `bars`; returns None where no such run is. Where all layers
  were transferred ('full') is drawn last.
  """
  numbers = sorted(
    {
      int(setting.removeprefix(_LAYERS))
      for runs in scores.values()
      for setting in runs
      if setting.startswith(_LAYERS)
    }
  )
  if not numbers:
    return None
  places = {f'{_LAYERS}{number}': number for number in numbers}
  names = [str(number) for number in numbers]
  if any('full' in runs for runs in scores.values()):
    places['full'] = numbers[-1] + 1
    names.append('all')
  figure = Figure(figsize=(6, 4), dpi=120)
  axes = figure.subplots()
  for i, (task, runs) in enumerate(scores.items()):
    found = {
      x: _values(runs[name]) for name, x in places.items() if name in runs
    }
    if not {*found} & {*numbers}:
      continue
    means = [statistics.mean(values) for values in found.values()]
    axes.plot([*found], means, f'C{i}o-', label=task)
    low, high = ([f(values) for values in found.values()] for f in (min, max))
    axes.fill_between([*found], low, high, color=f'C{i}', alpha=0.15)
  axes.set_xticks([*places.values()], names)
  axes.set_xlabel('layers transferred, besides the embeddings')
  axes.set_ylabel('dev score x 100')
  axes.grid(alpha=0.3)
  axes.legend()
  return _save(figure, out)


def _values(runs: dict[str, Any]) -> list[float]:
  return [100 * run['score'] for run in runs.values()]


def _save(figure: Figure, out: str) -> str:
  figure.tight_layout()
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format='png')
  return out
