# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matplotlib, drawing into PNG files."""

from gpt_jax.data import files


def load_pyplot():
  """Matplotlib's pyplot, which draws into files."""
  # Imported here: it takes most of a second, which other commands need not
  # spend.
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  return pyplot


def save_figure(figure, out: str) -> str:
  """Writes the PNG as a whole."""
  figure.tight_layout()
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format='png')
  load_pyplot().close(figure)
  return out
