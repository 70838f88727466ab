# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all fits work with: points, curves, power laws and intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Point(NamedTuple):
  """Where a training run ended."""

  budget: float  # the IsoFLOP curve that it belongs to
  parameters: int
  tokens: int
  flops: float
  loss: float  # nats a token, held out


class Curve(NamedTuple):
  """The training losses of a run, as they were logged."""

  parameters: int
  flops_per_token: float
  tokens: Sequence[int]
  losses: Sequence[float]


class PowerLaw(NamedTuple):
  """Gives coefficient * x^exponent."""

  coefficient: float
  exponent: float

  def __call__(self, x):
    """Takes numbers or arrays."""
    return self.coefficient * x**self.exponent


# From training FLOPs to the parameters and the tokens of the optimum.
Frontier = tuple[PowerLaw, PowerLaw]


def power_law(xs, ys) -> PowerLaw:
  """Least squares in logarithms."""
  exponent, log_coefficient = np.polyfit(np.log(xs), np.log(ys), 1)
  return PowerLaw(float(np.exp(log_coefficient)), float(exponent))


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
  """The 5th and the 95th percentile of bootstrap samples; None of none."""
  if not samples:
    return None
  low, high = np.percentile(samples, [5, 95])
  return float(low), float(high)
