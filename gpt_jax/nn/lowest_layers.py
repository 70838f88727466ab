# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which entries of the parameters belong to the lowest layers of a decoder.

Layers are scanned: those of one place in the period share an array, with an
axis of periods in front.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# What stands below the first layer.
_BELOW = ('embed', 'segments', 'embed_norm', 'positions', 'decoder_bias')


def lowest(params: Any, num_layers: int, period: int) -> Any:
  """For each parameter where it belongs to the embeddings or lowest layers.

  Args:
    params: real or abstract, of a decoder.
    num_layers: layers from the lowest on; 0: the embeddings alone.
    period: blocks of a period of the layer pattern.

  Returns:
    A tree of bool arrays that broadcast with the parameters.
  """

  def mask(path: Any, leaf: Any) -> np.ndarray:
    names = [key.key for key in path]
    if names[0] == 'decoder':
      block = int(names[2].removeprefix('block_'))
      layers = np.arange(leaf.shape[0]) * period + block
      inside = layers < num_layers
      return inside.reshape(-1, *[1] * (leaf.ndim - 1))
    return np.full((1,) * leaf.ndim, names[0] in _BELOW)

  return jax.tree_util.tree_map_with_path(mask, params)


def rows_before(params: Any, masks: Any, num_rows: int) -> Any:
  """The masks without the rows of token tables from `num_rows` on."""

  def mask(path: Any, leaf: Any, inside: np.ndarray) -> np.ndarray:
    if path[0].key != 'embed' or leaf.ndim != 2:
      return inside
    return inside & (np.arange(leaf.shape[0]) < num_rows)[:, None]

  return jax.tree_util.tree_map_with_path(mask, params, masks)


def combine(masks: Any, inside: Any, outside: Any) -> Any:
  """Entries of one tree where the masks are true, of another elsewhere."""
  return jax.tree.map(
    lambda m, a, b: jnp.where(jnp.broadcast_to(m, jnp.shape(b)), a, b),
    masks,
    inside,
    outside,
  )
