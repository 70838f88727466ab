# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loss and its metrics as sums, so that parts of a batch add up exactly."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = Any
Batch = dict[str, jax.Array]
# The name in a micro-batch of what belongs to the whole batch, each []: the sums
# of `Objective.weights`; `done`, the fraction of the run, with `Needs.progress`;
# `stage`, of training in stages.
WHOLE = 'whole'


class Mean(NamedTuple):
  """A mean as its two sums, so that parts of a batch add up exactly."""

  sum: jax.Array
  weight: jax.Array

  @classmethod
  def of(cls, values: jax.Array, weights: jax.Array) -> 'Mean':
    """The weighted mean of values."""
    return cls(jnp.sum(values * weights), jnp.sum(weights))

  def times(self, factor: float) -> 'Mean':
    """The mean times a factor."""
    return self._replace(sum=factor * self.sum)


Means = tuple[Mean, ...]  # a sum of means over different sets of tokens


class Loss(NamedTuple):
  """Sums, so that micro-batches and evaluation batches add up exactly.

  Attributes:
    sum: [], of the loss over the tokens that count; minimised.
    weight: [], number of tokens that count, or the sum of their weights.
    penalty: [], the part of `sum` that does not measure the model, such as
      z-loss: reports subtract it. Not differentiated separately.
    metrics: means by name; None: none.
    added: in evaluation, further means that are added to `sum` / `weight`: each
      has its own weight, so that a held-out loss does not depend on how rows
      are divided into batches. In training `sum` includes them, weighed by
      `share`.
  """

  sum: jax.Array
  weight: jax.Array
  penalty: jax.Array | float = 0.0
  metrics: Mapping[str, Mean | Means] | None = None
  added: Means = ()

  @property
  def means(self) -> Means:
    """The reported loss."""
    return (Mean(self.sum - self.penalty, self.weight), *self.added)

  def times(self, factor: float) -> 'Loss':
    """The loss times a factor; metrics are not scaled."""
    return self._replace(
      sum=factor * self.sum,
      penalty=factor * self.penalty,
      added=tuple(mean.times(factor) for mean in self.added),
    )


def share(batch: Batch, name: str) -> jax.Array:
  """What makes a loss a mean over its own weights, in training.

  The step divides the sum of all micro-batches by the weight of the whole
  batch; the factor corrects for the weight of one of `Objective.weights`.
  """
  whole: Any = batch[WHOLE]
  return whole[''] / jnp.maximum(whole[name], 1)
