# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adam and what came of it: Adamax, AdamW, LAMB."""

import optax

from gpt_jax.optim.base import Axes, Build
from gpt_jax.optim.decay import decay_mask
from gpt_jax.optim.per_layer import per_layer
from gpt_jax.ranges import Epsilon, Fraction, Weight


def adam(
  b1: Fraction = 0.9,
  b2: Fraction = 0.999,
  eps: Epsilon = 1e-8,
  l2: Weight = 0.0,
) -> Build:
  """Adam (Kingma and Ba, algorithm 1).

  Args:
    b1: of the mean of the gradients.
    b2: of the mean of their squares.
    eps: added to the denominator.
    l2: L2 regularisation, l2 / 2 |theta|^2 in the loss: l2 * theta is added to
      the (clipped) gradient of each weight, not of biases and norm scales.
      GPT-1's is decoupled, hence `adamw`.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    plain = optax.adam(schedule, b1=b1, b2=b2, eps=eps)
    if not l2:
      return plain
    return optax.chain(optax.add_decayed_weights(l2, decay_mask), plain)

  return build


def adamax(
  b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Epsilon = 1e-8
) -> Build:
  """Adamax (Kingma and Ba, algorithm 2), of the infinity norm.

  u <- max(b2 u, |g| + eps), without decay of weights. The paper has no eps, and
  divides by 0 where no gradient was yet; it stands where PyTorch has it.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.adamax(schedule, b1=b1, b2=b2, eps=eps)

  return build


def adamw(
  b1: Fraction = 0.9,
  b2: Fraction = 0.999,
  eps: Epsilon = 1e-8,
  weight_decay: Weight = 0.01,
) -> Build:
  """AdamW (Loshchilov and Hutter, algorithm 2): decoupled decay.

  Also GPT-1's Adam: its "modified version of L2 regularization" (section 4.1)
  cites the same paper.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    del axes
    return optax.adamw(
      schedule,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=decay_mask,
    )

  return build


def lamb(
  b1: Fraction = 0.9,
  b2: Fraction = 0.999,
  eps: Epsilon = 1e-6,
  weight_decay: Weight = 0.01,
) -> Build:
  """LAMB (You et al. 2020, algorithm 2), phi(z) = z.

  AdamW's update of each tensor is scaled to the tensor's norm; to 1 where one
  of the two norms is 0.
  """

  def build(
    schedule: optax.Schedule, axes: Axes
  ) -> optax.GradientTransformation:
    return optax.chain(
      optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
      optax.add_decayed_weights(weight_decay, decay_mask),
      per_layer(optax.scale_by_trust_ratio(), axes),
      optax.scale_by_learning_rate(schedule),
    )

  return build
