# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the batch, the learning rate and the tokens of a schedule."""

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.plots.figure import load_pyplot, save_figure


def schedule_curves(config: Config, out: str) -> str:
  """Draws rows, learning rate and tokens of each step; returns `out`."""
  pyplot = load_pyplot()
  ramp, num_steps = config_lib.ramp(config), config.schedule.num_steps
  # The steps before and after each boundary, so that it is drawn upright.
  edges = [s.start + d for s in ramp.stages for d in (-1, 0)]
  even = np.linspace(0, num_steps - 1, 1000).astype(int).tolist()
  # A warm-up is short: the first thousandths of a run again.
  early = np.geomspace(1, num_steps, 200).astype(int).tolist()
  steps = sorted(
    s for s in {*edges, *even, *early} if 0 <= s < max(num_steps, 1)
  )
  rates = np.asarray(config_lib.schedule(config)(np.array(steps)))
  curves = {
    'rows in a batch': [ramp.rows(s) for s in steps],
    'tokens in a row': [ramp.shape(s).length for s in steps],
    'learning rate': rates,
    'tokens': [ramp.tokens(s) for s in steps],
  }
  if len({*curves['tokens in a row']}) == 1:
    del curves['tokens in a row']
  figure, panels = pyplot.subplots(
    len(curves), sharex=True, figsize=(7, 1 + 2 * len(curves)), dpi=120
  )
  for axes, (name, values) in zip(panels, curves.items(), strict=True):
    axes.plot(steps, values)
    axes.set_ylabel(name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
  total = ramp.tokens(num_steps)
  panels[-1].set_xlabel(f'steps ({num_steps:,}; {total:.4g} tokens)')
  return save_figure(figure, out)
