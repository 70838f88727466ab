# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum, orthogonalised, for the matrices between the layers."""

import math
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from gpt_jax.optim.base import Axes, Build
from gpt_jax.optim.decay import decay_mask
from gpt_jax.optim.per_layer import num_stacked
from gpt_jax.ranges import Count, Epsilon, Fraction, NotNegative, Weight


def muon(
  momentum: Fraction = 0.95,
  nesterov: bool = True,
  num_steps: Count = 5,
  rms: NotNegative = 0.2,
  weight_decay: Weight = 0.1,
  b1: Fraction = 0.9,
  b2: Fraction = 0.95,
  eps: Epsilon = 1e-8,
) -> Build:
  """Muon (Jordan et al. 2024; Liu et al. 2025, algorithm 1) beside AdamW.

  Kernels go through Newton-Schulz, each layer's and each expert's by itself;
  tables, biases and norm scales through AdamW, at the same rate.

  Args:
    momentum: of the gradients of kernels.
    nesterov: look one step ahead. optax corrects the bias of both terms, as
      Nadam does, which differs from Jordan's code in the first steps.
    num_steps: iterations of Newton-Schulz, with Jordan's coefficients.
    rms: an update is scaled by rms * sqrt(max(rows, columns)), to the root
      mean square of AdamW's (Liu et al., section 2.2: 0.2); 0: by
      sqrt(max(1, columns / rows)), kernels being [in, out] (Jordan).
    weight_decay: of kernels and tables, times the rate.
    b1: of AdamW.
    b2: of AdamW.
    eps: of AdamW.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    def label(path: Any, x: jax.Array, names: PartitionSpec) -> str:
      matrix = x.ndim - num_stacked(names) == 2
      return 'muon' if matrix and 'kernel' in path[-1].key else 'adamw'

    def labels(params: Any) -> Any:
      return jax.tree_util.tree_map_with_path(label, params, axes)

    kernels = optax.chain(
      scale_by_muon(
        ns_steps=num_steps,
        beta=momentum,
        nesterov=nesterov,
        weight_dimension_numbers=_last_two,
      ),
      optax.stateless(lambda updates, _: jax.tree.map(scale, updates)),
      optax.add_decayed_weights(weight_decay),
      optax.scale_by_learning_rate(schedule),
    )
    rest = optax.adamw(
      schedule,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=decay_mask,
    )
    return optax.partition({'muon': kernels, 'adamw': rest}, labels)

  def scale(update: jax.Array) -> jax.Array:
    rows, columns = update.shape[-2:]
    if rms:
      return update * (rms * math.sqrt(max(rows, columns)))
    return update * math.sqrt(max(1, columns / rows))

  return build


def _last_two(updates: Any) -> Any:
  """Every kernel is a matrix in its last two axes; those before are stacked."""
  return jax.tree.map(lambda _: MuonDimensionNumbers(-2, -1), updates)
