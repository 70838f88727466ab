# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A moving average of the weights, to evaluate (Polyak and Juditsky 1992)."""

from collections.abc import Callable
from typing import Any

import jax

from gpt_jax.optim.rounding import to_float32
from gpt_jax.ranges import Fraction

# From the average so far and the new parameters to the new average.
Average = Callable[[Any, Any], Any]


def ema(decay: Fraction = 0.999) -> Average:
  """Average <- decay * average + (1 - decay) * parameters, in float32.

  It starts at the initial parameters; 0.999 averages over about 1000 steps.
  """

  def update(average: Any, params: Any) -> Any:
    return jax.tree.map(
      lambda a, p: a + (1 - decay) * (p - a), average, to_float32(params)
    )

  return update


def none() -> None:
  """No average is kept."""
  return


AVERAGES = {'ema': ema, 'none': none}
