# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Minimises training plus inference FLOPs, 6 N D + 2 N D_inf, at fixed loss.

The result is smaller than the Chinchilla-optimal model of the same predicted
loss, and trained for longer. Touvron et al., 2023: LLaMA, section 1; Sardana
and Frankle, 2023: Beyond Chinchilla-Optimal: Accounting for Inference in
Language Model Scaling Laws.
"""

import math
from typing import NamedTuple

from scipy.optimize import minimize_scalar

from gpt_jax.planning.laws import Fit


class Served(NamedTuple):
  """A model that is trained and then served."""

  parameters: float
  tokens: float
  training_flops: float
  inference_flops: float
  loss: float  # predicted

  @property
  def total_flops(self) -> float:
    """Training plus inference."""
    return self.training_flops + self.inference_flops


def serve(
  fit: Fit, flops: float, inference_tokens: float
) -> tuple[Served, Served]:
  """The compute-optimal model, and the one with the fewest total FLOPs.

  Both have the predicted loss of the compute-optimal model for `flops`.
  """
  start = fit.optimum(flops)
  loss = fit.loss(*start)

  def model(parameters: float, tokens: float) -> Served:
    return Served(
      parameters,
      tokens,
      6 * parameters * tokens,
      2 * parameters * inference_tokens,
      fit.loss(parameters, tokens),
    )

  def total(log_n: float) -> float:
    parameters = math.exp(log_n)
    found = model(parameters, fit.tokens(parameters, loss))
    return math.log(found.total_flops) if found.tokens < math.inf else 1e3

  # Bounds: below the first even endless training does not reach the loss, above
  # the second more parameters do not help. In between the total falls, then
  # rises.
  least = (fit.A / (loss - fit.E)) ** (1 / fit.alpha)
  end = minimize_scalar(
    total,
    bounds=(math.log(least), math.log(start.parameters)),
    method='bounded',
    options={'xatol': 1e-8},
  )
  parameters = math.exp(end.x)
  return model(*start), model(parameters, fit.tokens(parameters, loss))
