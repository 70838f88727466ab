# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws how tokenizers compare."""

import numpy as np

from gpt_jax.tokenizers.report import Report


def draw(reports: dict[str, Report], out: str) -> str:
  """Draws bytes per token, and how much of each vocabulary is used."""
  # Imported here: it takes most of a second.
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, (left, right) = pyplot.subplots(
    1, 2, figsize=(10, 4.5), dpi=120, width_ratios=(2, 3)
  )
  names = list(reports)
  bars = left.barh(names, [r.bytes_per_token for r in reports.values()])
  left.bar_label(bars, fmt='%.2f', padding=3)
  left.invert_yaxis()
  left.margins(x=0.15)
  left.set_xlabel('bytes per token (more is shorter)')
  for name, r in reports.items():
    times, pieces = np.unique(r.counts[r.counts > 0], return_counts=True)
    at_least = pieces[::-1].cumsum()[::-1] / r.vocab_size * 100
    right.semilogx(times, at_least, label=name, drawstyle='steps-pre')
  right.set_xlabel('times that a piece occurs, at least')
  right.set_ylabel('% of the vocabulary')
  right.set_ylim(0, None)
  right.legend(frameon=False)
  for axes in (left, right):
    axes.spines[['top', 'right']].set_visible(False)
  figure.tight_layout()
  figure.savefig(out, format='png')
  pyplot.close(figure)
  return out
