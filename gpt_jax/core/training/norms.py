# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms by layer, of a training step: what one looks at when a loss spikes.

In every `log.norms_every_steps`th step they are computed, for each layer and
each other part of the model, of its gradients, parameters and updates, and of
the layers' activations. `norm_lines` writes them.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.layers import Measure
from gpt_jax.core.objectives.loss import ACTIVATIONS


def of_step(
  measure: Measure, gradients: Any, parameters: Any, updates: Any, metrics: dict[str, Any]
) -> dict[str, jax.Array]:
  """The norms of a step; zeros but in every Nth.

  Args:
    measure: in which steps they are computed.
    gradients: by part of the model, as the parameters.
    parameters: that the step trains.
    updates: as they are added.
    metrics: of the step; the activations are taken out.

  Returns:
    float32 [layers], or [] of a part without layers, by `KIND/STACK` or
    `KIND/PART`.
  """
  activations = {}
  for name in [x for x in metrics if x.startswith(f'{ACTIVATIONS}/')]:
    _, stack, what = name.split('/')
    value = metrics.pop(name)
    if what == 'mean_square':
      activations[f'activation_rms/{stack}'] = jnp.sqrt(value)
    else:
      activations[f'{what}/{stack}'] = value

  def norms() -> dict[str, jax.Array]:
    trees = {'gradient_norm': gradients, 'parameter_norm': parameters, 'update_norm': updates}
    return {
      f'{kind}/{part}': norm for kind, tree in trees.items() for part, norm in by_part(tree).items()
    }

  return {**measure.compute(norms), **activations}


def by_part(tree: Any) -> dict[str, jax.Array]:
  """The Euclidean norm of each part of a model: [layers] of stacks, or [].

  Of parameters that layers share, each layer has those that it takes. The parts
  of an auxiliary model, such as ELECTRA's generator, begin with its name.
  """
  norms = {}
  for name, part in tree.items():
    if name == 'parts':
      for model, its in part.items():
        norms |= {f'{model}.{inner}': x for inner, x in by_part(its).items()}
    elif isinstance(part, Mapping) and 'periods' in part:
      norms[name] = _by_layer(part['periods'])
      rest = {inner: x for inner, x in part.items() if inner != 'periods'}
      norms |= {f'{name}.{inner}': x for inner, x in by_part(rest).items()}
    else:
      norms[name] = jnp.sqrt(sum(map(_squares, jax.tree.leaves(part)), jnp.float32(0)))
  return norms


def _by_layer(periods: Any) -> jax.Array:
  """The norm of each layer: leaves have a leading axis of sets of parameters."""
  runs = max(len(x) for x in jax.tree.leaves(periods))
  blocks = sorted(periods, key=lambda name: int(name.removeprefix('block_')))

  def of_block(block: Any) -> jax.Array:
    total = jnp.zeros(runs, jnp.float32)
    for leaf in jax.tree.leaves(block):
      # Run i of N takes set i * sets // N: see `nn.stack`.
      taken = np.arange(runs) * len(leaf) // runs
      total += _squares(leaf, axes=tuple(range(1, leaf.ndim)))[taken]
    return jnp.sqrt(total)

  return jnp.stack([of_block(periods[name]) for name in blocks], axis=1).reshape(-1)


def _squares(x: jax.Array, axes: tuple[int, ...] | None = None) -> jax.Array:
  return jnp.sum(jnp.square(x.astype(jnp.float32)), axis=axes)
