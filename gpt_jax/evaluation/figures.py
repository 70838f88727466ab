# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Figures with their standard errors."""

import math
from collections.abc import Sequence

import numpy as np

Figures = dict[str, float]


def mean(name: str, values: Sequence[float]) -> Figures:
  """The mean over examples and its standard error, s / sqrt(n)."""
  array = np.asarray(values, np.float64)
  error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else 0.0
  return {name: float(array.mean()), f'{name}_stderr': float(error)}


def mean_of_groups(name: str, groups: Sequence[Sequence[float]]) -> Figures:
  """The mean of the groups' means; each group counts the same.

  The groups are independent: the error is sqrt(sum of squared errors) / n.
  """
  found = [mean('x', values) for values in groups]
  error = math.sqrt(sum(f['x_stderr'] ** 2 for f in found)) / len(found)
  return {
    name: float(np.mean([f['x'] for f in found])),
    f'{name}_stderr': error,
  }


def perplexity(name: str, losses: Sequence[float]) -> Figures:
  """Exp of the mean loss, in nats; its error to first order, p s / sqrt(n)."""
  found = mean('x', losses)
  value = math.exp(found['x'])
  return {name: value, f'{name}_stderr': value * found['x_stderr']}
