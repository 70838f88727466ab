# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loss and its metrics as sums, so that parts of a batch add up exactly."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layers
from gpt_jax.core.nn.activations import SOWN, Activations
from gpt_jax.core.nn.router_stats import RouterStats

Params = Any
Batch = dict[str, jax.Array]
# The name in a micro-batch of what belongs to the run, each []: `done`, its
# fraction, with `Needs.progress`; `stage`, in training in stages.
RUN = 'run'


class Mean(NamedTuple):
  """A mean as its two sums, so that parts of a batch add up exactly."""

  sum: jax.Array
  weight: jax.Array

  @classmethod
  def of(cls, values: jax.Array, weights: jax.Array) -> 'Mean':
    """The weighted mean of values."""
    return cls(jnp.sum(values * weights), jnp.sum(weights))


Means = tuple[Mean, ...]  # a sum of means over different sets of tokens


class Largest(NamedTuple):
  """A maximum: that of a batch is the largest of its parts."""

  value: jax.Array


def added(left: Any, right: Any) -> Any:
  """Two trees of sums, and of maxima as `Largest`, of parts of a batch as one."""

  def add(x: Any, y: Any) -> Any:
    return jax.tree.map(jnp.maximum, x, y) if is_largest(x) else x + y

  return jax.tree.map(add, left, right, is_leaf=is_largest)


def is_largest(x: Any) -> bool:
  """Whether a node of a tree is a maximum."""
  return isinstance(x, Largest)


# What the layers of a stack report, and what the names of their activations
# begin with among the metrics.
ACTIVATIONS = SOWN
LayerStats = RouterStats | Activations


class Term(NamedTuple):
  """A further loss, the mean of values times factors over its own weight.

  Attributes:
    values: a sum, or the loss of each row.
    factors: one for all values, or one for each.
  """

  values: jax.Array
  factors: jax.Array | float

  def sum(self, share: jax.Array | float = 1.0) -> jax.Array:
    """The sum, if each value counts `share` times."""
    return jnp.sum(self.values * (self.factors * share))


class Loss(NamedTuple):
  """The loss of a batch: `totals` and `means` of parts of it add up exactly.

  Attributes:
    sum: [], of the loss over the tokens that count; minimised.
    weight: [], number of tokens that count, or the sum of their weights.
    penalty: [], the part of `sum` that does not measure the model, such as
      z-loss: reports subtract it. Not differentiated separately.
    metrics: means by name.
    terms: further losses, whose weights `Objective.weights` has by name.
    stats: what the layers report, of `forward.stats`; training adds the
      penalties of routers.
  """

  sum: jax.Array
  weight: jax.Array
  penalty: jax.Array | float = 0.0
  metrics: Mapping[str, Mean | Means] = {}
  terms: Mapping[str, Term] = {}
  stats: Mapping[str, LayerStats] = {}

  def means(self, weights: Mapping[str, jax.Array]) -> Means:
    """The reported loss of a batch with these `Objective.weights`.

    Each mean has its own weight, so that a held-out loss does not depend on how
    rows are divided into batches.
    """
    terms = [Mean(term.sum(), weights[name]) for name, term in self.terms.items()]
    return (Mean(self.sum - self.penalty, self.weight), *terms)

  def totals(
    self, weights: Mapping[str, jax.Array]
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, dict[str, Mean | Means | Largest]]]:
    """What training sums over micro-batches, to divide it by weights[''].

    Args:
      weights: `Objective.weights` of the whole batch.

    Returns:
      The sum that is minimised; and the same without penalties, the weight, and
      all metrics.
    """
    total, penalty = self.sum, self.penalty
    metrics: dict[str, Mean | Means | Largest] = {**self.metrics}
    for name, term in self.terms.items():
      total += term.sum(share(weights[''], weights[name]))
    # Replicas have equally many rows, but not equally many tokens that count. A
    # mean over all their rows gets the mean weight in each replica.
    weight = layers.over_replicas(self.weight)
    for place, stats in self.stats.items():
      if isinstance(stats, Activations):
        metrics |= _measured(place, stats)
        continue
      # Routers also see tokens that do not count in the loss. The factor
      # `weight` makes the micro-batches' penalties add up like their losses.
      cost = weight * jnp.sum(stats.penalty)
      total, penalty = total + cost, penalty + cost
      for name, value in stats._asdict().items():
        metrics[f'{place}/{name}'] = Mean(weight * value, weight)
    return total, (total - penalty, self.weight, metrics)


def _measured(place: str, stats: Activations) -> dict[str, Mean | Largest]:
  """The activations of each layer, over the real rows."""
  squares_NB, logits_NB = stats
  real_1B = layers.real_rows(squares_NB.shape[1])[None]
  found: dict[str, Mean | Largest] = {
    f'{place}/mean_square': Mean(jnp.sum(squares_NB * real_1B, axis=1), jnp.sum(real_1B))
  }
  if logits_NB is not None:
    largest_N = jnp.max(jnp.where(real_1B > 0, logits_NB, -jnp.inf), axis=1)
    found[f'{place}/largest_logit'] = Largest(largest_N)
  return found


def share(whole: jax.Array, weight: jax.Array) -> jax.Array:
  """The factor that makes a sum, divided by `whole`, a mean over `weight`."""
  return whole / jnp.maximum(weight, 1)
