# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which attention and which feed-forward layer each layer has."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.ffn import FFNS, Choice
from gpt_jax.nn.masks import PATTERNS, Pattern
from gpt_jax.nn.sharing import SHARES, Sharing
from gpt_jax.spec import UsageError


class Layer(NamedTuple):
  """The two choices of one layer."""

  attention: Pattern
  ffn: Choice


def period(attention: str, ffn: str, share: str = 'none') -> list[Layer]:
  """The shortest sequence of layers that repeats over the depth.

  Each of the two comma lists repeats by itself: with 'full, local(window=5)'
  and 'gelu, gelu, switch(num_experts=8)' it is six layers; and so do the inner
  layers of a group that `share` names.
  """
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  ffns = spec.build_all('model.ffn', ffn, FFNS)
  length = math.lcm(len(patterns), len(ffns), sharing(share).inner)
  return [
    Layer(patterns[i % len(patterns)], ffns[i % len(ffns)])
    for i in range(length)
  ]


def sharing(share: str) -> Sharing:
  """What `model.share` names."""
  return spec.build('model.share', share, SHARES)


def is_causal(attention: str, ffn: str) -> bool:
  """Whether no token sees a later one in any layer."""
  return all(layer.attention.causal for layer in period(attention, ffn))


def extra_tokens(attention: str) -> int:
  """How many tokens stand before a row that are none of its own."""
  patterns = spec.build_all('model.attention', attention, PATTERNS)
  numbers = {p.blocks.extra if p.blocks else 0 for p in patterns}
  if len(numbers) > 1:
    raise UsageError(
      f'model.attention={attention!r}: only some of the layers have tokens '
      'beside those of the row; give all of them the same extra'
    )
  return numbers.pop()


# Which entries of the parameters belong to the lowest layers of a decoder.
#
# Layers are scanned: those of one place in the period are in one array, with an
# axis of periods in front, or of the sets that layers share.


# What stands below the first layer.
_BELOW = (
  *('embed', 'segments', 'embed_norm', 'embed_projection', 'positions'),
  *('decoder_bias', 'distances', 'convolution', 'relative_biases'),
)


def divides(model: Any, num_layers: int) -> bool:
  """Whether no layer above the lowest shares parameters with one of them."""
  shared = sharing(model.share)
  if not shared.parts:
    return True
  of_group = model.num_layers // shared.groups
  one_run = of_group == len(period(model.attention, model.ffn, model.share))
  return one_run or num_layers % of_group == 0


def lowest(params: Any, num_layers: int, model: Any) -> Any:
  """For each parameter where it belongs to the embeddings or lowest layers.

  Args:
    params: real or abstract, of a decoder.
    num_layers: layers from the lowest on, which it `divides`; 0: the
      embeddings alone.
    model: the decoder.

  Returns:
    A tree of bool arrays that broadcast with the parameters.
  """
  size = len(period(model.attention, model.ffn, model.share))

  def mask(path: Any, leaf: Any) -> np.ndarray:
    names = [key.key for key in path]
    if names[0] == 'decoder':
      block, sets = int(names[2].removeprefix('block_')), leaf.shape[0]
      # The first run of each.
      runs = np.arange(sets) * (model.num_layers // size // sets)
      inside = runs * size + block < num_layers
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

  def pick(mask: np.ndarray, a: Any, b: Any) -> Any:
    # Whole arrays as they are: the compiler then leaves out what made others.
    if mask.all() or not mask.any():
      return a if mask.all() else b
    return jnp.where(jnp.broadcast_to(mask, jnp.shape(b)), a, b)

  return jax.tree.map(pick, masks, inside, outside)
