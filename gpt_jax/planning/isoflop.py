# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chinchilla's approach 2: the minimum of each IsoFLOP curve.

Hoffmann et al., 2022, section 3.2: a parabola in the logarithm of the
parameters is fitted to the losses of each budget, and power laws to the minima.
Tokens are treated the same way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.planning.power import Frontier, Point, power_law

MIN_SIZES = 3


class Profile(NamedTuple):
  """The runs of one budget, and the optimum of the parabola through them."""

  budget: float
  points: list[Point]
  parabola: np.ndarray  # loss against log N, highest power first
  parameters: float  # at the minimum
  tokens: float
  loss: float


def profiles(points: Sequence[Point]) -> tuple[list[Profile], list[str]]:
  """The profiles with a minimum, and a message for each budget without."""
  found, missing = [], []
  for budget in sorted({p.budget for p in points}):
    runs = [p for p in points if p.budget == budget]
    runs.sort(key=lambda p: p.parameters)
    if len(runs) < MIN_SIZES:
      missing.append(
        f'{budget:g} FLOPs: a parabola needs {MIN_SIZES} sizes, not {len(runs)}'
      )
      continue
    parabola, n = _minimum([p.parameters for p in runs], runs)
    d = _minimum([p.tokens for p in runs], runs)[1]
    if n is None or d is None:
      ends = runs[-1].loss - runs[0].loss
      missing.append(
        f'{budget:g} FLOPs: no minimum of the loss between '
        f'{runs[0].parameters:,} and {runs[-1].parameters:,} parameters; add '
        f'{"larger" if ends < 0 else "smaller"} sizes to sweep.sizes, or leave '
        'the budget out'
      )
      continue
    loss = float(np.polyval(parabola, np.log(n)))
    found.append(Profile(budget, runs, parabola, n, d, loss))
  return found, missing


def frontier(found: Sequence[Profile]) -> Frontier:
  """Fits the power laws through the minima.

  Raises:
    ValueError: there are fewer than two.
  """
  if len(found) < 2:
    raise ValueError('approach 2 needs minima at two budgets')
  # Runs consist of whole steps: use what they spent, not what was asked for.
  spent = [float(np.mean([p.flops for p in f.points])) for f in found]
  return (
    power_law(spent, [f.parameters for f in found]),
    power_law(spent, [f.tokens for f in found]),
  )


def bootstrap(
  found: Sequence[Profile], samples: int, seed: int
) -> list[Frontier]:
  """Refits the power laws to `samples` sets of resampled residuals.

  A budget whose parabola has no minimum in a sample is dropped from it, and the
  sample as a whole if only one budget is left. Returns no samples if no budget
  has more than `MIN_SIZES` sizes, since there are no residuals.
  """
  rng = np.random.default_rng(seed)
  fitted = [
    np.polyval(f.parabola, np.log([p.parameters for p in f.points]))
    for f in found
  ]
  # 3 parameters fitted to n points: the residuals are too small by this factor.
  by_budget = [
    (np.array([p.loss for p in f.points]) - at)
    * np.sqrt(len(at) / (len(at) - 3))
    for f, at in zip(found, fitted, strict=True)
    if len(at) > 3
  ]
  if not by_budget:
    return []
  residuals, out = np.concatenate(by_budget), []
  for _ in range(samples):
    drawn = [
      p._replace(loss=float(loss))
      for f, at in zip(found, fitted, strict=True)
      for p, loss in zip(
        f.points, at + rng.choice(residuals, len(at)), strict=True
      )
    ]
    again = profiles(drawn)[0]
    if len(again) > 1:
      out.append(frontier(again))
  return out


def _minimum(
  xs: Sequence[float], runs: Sequence[Point]
) -> tuple[np.ndarray, float | None]:
  """The parabola in log x, and its minimum if that lies within the data."""
  logs = np.log(xs)
  parabola = np.polyfit(logs, [p.loss for p in runs], 2)
  if parabola[0] <= 0:
    return parabola, None
  at = -parabola[1] / (2 * parabola[0])
  if not logs.min() <= at <= logs.max():
    return parabola, None
  return parabola, float(np.exp(at))
