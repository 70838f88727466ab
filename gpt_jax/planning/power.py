# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Points, curves, power laws and intervals, shared by the fits."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Point(NamedTuple):
  """The end of a training run."""

  budget: float  # of its IsoFLOP curve
  parameters: int
  tokens: int
  flops: float
  loss: float  # nats a token, held out


class Curve(NamedTuple):
  """The logged training losses of a run."""

  parameters: int
  flops_per_token: float
  tokens: Sequence[int]
  losses: Sequence[float]


class PowerLaw(NamedTuple):
  """The function coefficient * x^exponent."""

  coefficient: float
  exponent: float

  def __call__(self, x):
    """Evaluates it for numbers or arrays."""
    return self.coefficient * x**self.exponent


# From training FLOPs to the optimal parameters and tokens.
Frontier = tuple[PowerLaw, PowerLaw]


def power_law(xs, ys) -> PowerLaw:
  """Fits by least squares in logarithms."""
  exponent, log_coefficient = np.polyfit(np.log(xs), np.log(ys), 1)
  return PowerLaw(float(np.exp(log_coefficient)), float(exponent))


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
  """The 5th and 95th percentiles of bootstrap samples; None without samples."""
  if not samples:
    return None
  low, high = np.percentile(samples, [5, 95])
  return float(low), float(high)
