# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimisers: optax transformations by name, after clipping."""

from collections.abc import Callable
from typing import Any

import jax
import optax

# Weights decay; biases, norm scales do not (GPT-1, section 4.1).
DECAYED = ('embedding', 'kernel')


def decay_mask(params: Any) -> Any:
  """True for each parameter that weight decay acts on."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key in DECAYED, params
  )


def adam(
  b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Callable[[optax.Schedule], optax.GradientTransformation]:
  """Adam (Kingma and Ba, algorithm 1)."""
  return lambda schedule: optax.adam(schedule, b1=b1, b2=b2, eps=eps)


def adamw(
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.01,
) -> Callable[[optax.Schedule], optax.GradientTransformation]:
  """AdamW (Loshchilov and Hutter, algorithm 2): decoupled decay.

  Also GPT-1's Adam: its "modified version of L2 regularization" (section 4.1)
  cites the same paper.
  """

  def build(schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
      schedule,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=decay_mask,
    )

  return build


def none() -> Callable[[optax.Schedule], optax.GradientTransformation]:
  """Changes nothing and keeps nothing: for models that are not trained."""
  return lambda schedule: optax.set_to_zero()


OPTIMIZERS = {'adam': adam, 'adamw': adamw, 'none': none}
