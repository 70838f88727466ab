# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the runs of several configs and seeds ended: one table."""

import math
import re
import statistics

from gpt_jax import config as config_lib
from gpt_jax.training import metrics
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.metrics import HELD_OUT

SPEED = 'tokens_per_second'
# Of one layer with experts.
DROPPED = re.compile(r'router/.*/dropped')


def summary(workdir: str) -> dict[str, float]:
  """Where a run ended, how fast it was, and what its experts dropped.

  Raises:
    RuntimeError: it has no such metrics.
  """
  length = config_lib.row_tokens(trained_lib.read_config(workdir))
  lines = metrics.read(workdir)
  rates = [m[SPEED] / m.get('row_tokens', length) for m in lines if SPEED in m]
  losses = [m[HELD_OUT] for m in lines if HELD_OUT in m]
  if not rates or not losses:
    raise RuntimeError(
      f'{workdir}: metrics.jsonl has no {SPEED if losses else HELD_OUT}; '
      'compare needs held-out text (data.holdout)'
    )
  found = {
    'validation_loss': losses[-1],
    # Rows a second; the first line has the warm-up.
    'examples_per_second': statistics.median(rates[1:] or rates),
  }
  dropped = [x for m in lines for name, x in m.items() if DROPPED.match(name)]
  # NaN where the update was skipped.
  dropped = [x for x in dropped if math.isfinite(x)]
  if dropped:
    # Over all layers with experts and the whole run.
    found['dropped_fraction'] = statistics.mean(dropped)
  return found


def table(result: dict[str, list[dict[str, float]]]) -> str:
  """A Markdown table: the mean over the seeds, and each seed's loss."""
  columns = list(dict.fromkeys(c for runs in result.values() for c in runs[0]))
  head = ['run', *(c.replace('_', ' ') for c in columns), 'loss of each seed']
  lines = [head, ['---'] * len(head)]
  for name, runs in result.items():
    means = [
      f'{statistics.mean(run[c] for run in runs):.4g}' if c in runs[0] else '-'
      for c in columns
    ]
    seeds = ', '.join(f'{run["validation_loss"]:.4f}' for run in runs)
    lines.append([name, *means, seeds])
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
