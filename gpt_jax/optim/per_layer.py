# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations on whole tensors, done for each layer's tensor by itself.

Scanned layers keep their parameters in one array with a leading axis `layers`,
experts in one more with `expert`. The norm of such an array is no layer's norm:
what the papers say of a tensor is applied here to each slice.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec

# Leading logical axes along which an array holds tensors of their own.
STACKED = ('layers', 'expert')


def num_stacked(names: PartitionSpec) -> int:
  """How many leading axes of a parameter stack tensors, by their names."""
  count = 0
  while count < len(names) and names[count] in STACKED:
    count += 1
  return count


def per_layer(
  inner: optax.GradientTransformation, axes: Any
) -> optax.GradientTransformation:
  """Applies `inner` to each layer's and each expert's tensor alone.

  Args:
    inner: treats each leaf without regard to the others.
    axes: for each parameter its logical axes, a `PartitionSpec`.

  Returns:
    A transformation whose state is a tree like the parameters, with a state of
    `inner` for each, stacked as the parameter is.
  """

  def slices(function: Callable, names: PartitionSpec) -> Callable:
    for _ in range(num_stacked(names)):
      function = jax.vmap(function)
    return function

  def init(params):
    return jax.tree.map(
      lambda p, names: slices(inner.init, names)(p), params, axes
    )

  def update(updates, state, params=None):
    leaves, tree = jax.tree.flatten(updates)
    parts = (tree.flatten_up_to(part) for part in (state, params, axes))
    pairs = [
      slices(inner.update, names)(u, s, p)
      for u, s, p, names in zip(leaves, *parts, strict=True)
    ]
    new_updates, new_state = zip(*pairs, strict=True)
    return tree.unflatten(new_updates), tree.unflatten(new_state)

  return optax.GradientTransformation(init, update)
