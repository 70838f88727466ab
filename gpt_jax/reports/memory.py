# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws what takes a chip's memory in a plan."""

from typing import Any

from gpt_jax.core.costs.chips import GIB
from gpt_jax.reports import runs

# Parts of the peak, as `planning.compile.Hbm` names them.
PARTS = {
  'parameters': 'parameters',
  'optimizer': 'optimizer',
  'activations': 'activations kept for all layers',
  'temporaries': 'temporaries, gradients',
}


def chart(plan: dict[str, Any], out: str) -> str:
  """A bar for each stage of the batches: the parts of the peak on a chip.

  Args:
    plan: of `planning.report.to_json`, that fits.
    out: the PNG.

  Returns:
    `out`.
  """
  stages = plan['stages']
  names = [f'{s["rows"]:,} rows of {s["row_tokens"]:,}' for s in stages]
  figure, axes = runs.load_pyplot().subplots(
    figsize=(8, 1.7 + 0.45 * len(stages)), dpi=120, layout='constrained'
  )
  places, left = range(len(stages)), [0.0] * len(stages)
  for i, (part, label) in enumerate(PARTS.items()):
    # Layers that are not scanned have theirs among the temporaries.
    sizes = [(s['hbm'][part] or 0) / GIB for s in stages]
    axes.barh(places, sizes, left=left, color=f'C{i}', label=label)
    left = [a + b for a, b in zip(left, sizes, strict=True)]
  limit = stages[0]['hbm']['limit'] / GIB
  axes.axvline(limit, color='black', ls='--', lw=1, label='allowed')
  for place, peak in zip(places, left, strict=True):
    axes.text(peak, place, f' {peak:.2f}', va='center', fontsize=8)
  axes.set_yticks(places, names)
  axes.invert_yaxis()
  axes.set_xlabel('GiB on a chip')
  title = runs.label(f'{plan["config"]} on {plan["topology"]}')
  axes.set_title(title, fontsize=10)
  figure.legend(loc='outside lower center', ncols=3, fontsize=8, frameon=False)
  return runs.save_figure(figure, out)
