# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adafactor (Shazeer and Stern 2018), and PaLM's form of it."""

import optax

from gpt_jax.optim.base import Axes, Build
from gpt_jax.optim.decay import decay_mask
from gpt_jax.optim.per_layer import per_layer
from gpt_jax.ranges import (
  Count,
  Fraction,
  NotNegative,
  Positive,
  Weight,
  Whole,
)

# Epsilon 2 of the paper: a parameter of zeros moves as if its root mean square
# were this.
MIN_SCALE = 1e-3


def adafactor(
  b1: Fraction = 0.0,
  decay: Positive = 0.8,
  factored: bool = True,
  min_size: Count = 128,
  clip: NotNegative = 1.0,
  parameter_scale: bool = True,
  weight_decay: Weight = 0.0,
  weight_decay_power: Whole = 1,
) -> Build:
  """Adafactor (Shazeer and Stern, algorithms 4 and 5).

  With the defaults it is theirs; PaLM's (section 5) is `adafactor(b1=0.9,
  factored=False, clip=0.0, weight_decay=1.0, weight_decay_power=2)`.

  Args:
    b1: of the mean of the updates, after all scaling; 0 keeps none.
    decay: beta2 of step k is 1 - k^-decay.
    factored: keep of each matrix's second moment only the means of its rows
      and columns.
    min_size: both sides of a matrix that is factored have this size at least.
    clip: d, the bound of the root mean square of a tensor's update before the
      rate; 0: none.
    parameter_scale: multiply the rate by max(1e-3, root mean square of the
      parameter).
    weight_decay: a step takes weight_decay * rate^weight_decay_power of each
      weight. PaLM does not say that norm scales are spared, as they are here.
    weight_decay_power: see `weight_decay`.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    of_tensor = [
      optax.scale_by_factored_rms(
        factored, decay_rate=decay, min_dim_size_to_factor=min_size
      )
    ]
    if clip:
      of_tensor.append(optax.clip_by_block_rms(clip))
    if parameter_scale:
      of_tensor.append(optax.scale_by_param_block_rms(MIN_SCALE))
    parts = [
      per_layer(optax.chain(*of_tensor), axes),
      optax.scale_by_learning_rate(schedule),
    ]
    if b1:
      parts.append(optax.ema(b1, debias=False))
    if weight_decay:
      parts.append(
        optax.add_decayed_weights(
          lambda step: -weight_decay * schedule(step) ** weight_decay_power,
          decay_mask,
        )
      )
    return optax.chain(*parts)

  return build
