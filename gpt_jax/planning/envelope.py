# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chinchilla's approach 1: the envelope of all training curves.

Hoffmann et al., 2022, section 3.1: the curves are smoothed and interpolated;
at each of 1,500 numbers of FLOPs, evenly spaced in logarithms, the run with the
least loss gives parameters and tokens; power laws go through these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.planning.power import Curve, Frontier, power_law

NUM_FLOPS = 1500


class Envelope(NamedTuple):
  """The best run at each number of FLOPs."""

  flops: np.ndarray
  losses: np.ndarray
  parameters: np.ndarray
  tokens: np.ndarray


def smooth(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
  """Smooths a curve with a moving average over a tenth of its points."""
  flops = np.array(curve.tokens) * curve.flops_per_token
  losses = np.array(curve.losses)
  width = max(1, len(losses) // 10)
  kernel = np.full(width, 1 / width)
  # Only where the window fits.
  return (
    np.exp(np.convolve(np.log(flops), kernel, 'valid')),
    np.convolve(losses, kernel, 'valid'),
  )


def envelope(curves: Sequence[Curve], least: float, most: float) -> Envelope:
  """The envelope between `least` and `most` FLOPs.

  Past the end of a budget's runs, those of the next budget still have high
  learning rates and a higher loss than was already reached. Points that do not
  improve on it are dropped.
  """
  flops = np.geomspace(least, most, NUM_FLOPS)
  losses = np.array(
    [
      np.interp(np.log(flops), np.log(xs), ys, left=np.inf, right=np.inf)
      for xs, ys in map(smooth, curves)
    ]
  )
  best, lowest = losses.argmin(0), losses.min(0)
  before = np.minimum.accumulate([np.inf, *lowest[:-1]])
  kept = lowest < before
  parameters = np.array([c.parameters for c in curves], float)[best]
  per_token = np.array([c.flops_per_token for c in curves])[best]
  return Envelope(
    flops[kept],
    lowest[kept],
    parameters[kept],
    (flops / per_token)[kept],
  )


def frontier(found: Envelope) -> Frontier:
  """Fits the power laws through the envelope.

  Raises:
    ValueError: one size is best everywhere.
  """
  if len(set(found.parameters)) < 2:
    raise ValueError('approach 1 needs two sizes on the envelope')
  return (
    power_law(found.flops, found.parameters),
    power_law(found.flops, found.tokens),
  )


def bootstrap(
  curves: Sequence[Curve], least: float, most: float, samples: int, seed: int
) -> list[Frontier]:
  """Refits the power laws to `samples` resamples of the runs."""
  rng = np.random.default_rng(seed)
  out = []
  for _ in range(samples):
    drawn = [curves[i] for i in rng.integers(len(curves), size=len(curves))]
    found = envelope(drawn, least, most)
    if len(set(found.parameters)) > 1:
      out.append(frontier(found))
  return out
