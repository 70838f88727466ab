# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the training step knows of an objective."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

Params = Any
Batch = dict[str, jax.Array]


class Loss(NamedTuple):
  """Sums, so that micro-batches and evaluation batches add up exactly."""

  sum: jax.Array  # of the loss over the tokens that count: what is minimised
  weight: jax.Array  # how many tokens count, or the sum of their weights
  # The part of `sum` that is no measure of the model, such as z-loss: reports
  # subtract it. Not differentiated by itself.
  penalty: jax.Array | float = 0.0
  # Means over the tokens that count, each times `weight`; None: none.
  metrics: dict[str, jax.Array] | None = None


class Objective(NamedTuple):
  """Pure functions.

  Attributes:
    make_batch: rows of the global order, int [B, L + 1], to the arrays of a
      batch; NumPy, on the host.
    init: a random key to parameters with logical axes (boxed).
    loss: parameters, batch and a random key to a `Loss`. Without a key it
      evaluates: no dropout, no penalty.
    example: a batch of one row, where `make_batch` does not make batches.
    outputs: parameters and batch to what a task is measured by, [B, K].
  """

  make_batch: Callable[[np.ndarray], dict[str, np.ndarray]]
  init: Callable[[jax.Array], Params]
  loss: Callable[[Params, Batch, jax.Array | None], Loss]
  example: dict[str, np.ndarray] | None = None
  outputs: Callable[[Params, Batch], jax.Array] | None = None
