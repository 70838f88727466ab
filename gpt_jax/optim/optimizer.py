# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimisers: optax transformations by name, after clipping."""

import optax

from gpt_jax.optim.adafactor import adafactor
from gpt_jax.optim.adam import adam, adamax, adamw, lamb
from gpt_jax.optim.base import Axes, Build
from gpt_jax.optim.decay import decay_mask
from gpt_jax.optim.muon import muon
from gpt_jax.ranges import Fraction, Weight
from gpt_jax.spec import UsageError


def lion(
  b1: Fraction = 0.9, b2: Fraction = 0.99, weight_decay: Weight = 0.1
) -> Build:
  """Lion (Chen et al. 2023, algorithm 2): the sign of a momentum."""

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.lion(
      schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=decay_mask
    )

  return build


def sgd(momentum: Fraction = 0.0, nesterov: bool = False) -> Build:
  """Gradient descent (Sutskever et al. 2013: momentum and Nesterov's).

  v <- momentum * v + g; the step is along v, or along g + momentum * v with
  `nesterov`.
  """
  if nesterov and not momentum:
    raise UsageError('optim.name: sgd(nesterov=True) needs a momentum')

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.sgd(schedule, momentum=momentum or None, nesterov=nesterov)

  return build


def none() -> Build:
  """Changes nothing and keeps nothing: for models that are not trained."""
  return lambda schedule, axes: optax.set_to_zero()


OPTIMIZERS = {
  'adafactor': adafactor,
  'adam': adam,
  'adamax': adamax,
  'adamw': adamw,
  'lamb': lamb,
  'lion': lion,
  'muon': muon,
  'none': none,
  'sgd': sgd,
}
