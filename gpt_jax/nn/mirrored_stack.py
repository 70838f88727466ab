# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An encoder whose layers have the parameters of the decoder's (T5, 3.2)."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from gpt_jax.nn.context import Context
from gpt_jax.nn.stack import SOWN, Caches, Stack


class MirroredStack(nn.Module):
  """A `Stack` without parameters: layer i has those of the decoder's layer i.

  But for attention between the two, which the decoder has by itself.
  """

  blocks: tuple[Callable[..., nn.Module], ...]
  num_layers: int
  remat: str
  loop: str

  def __call__(
    self, x_BLD: jax.Array, context: Context, params: Any
  ) -> tuple[jax.Array, Caches]:
    """As `Stack`'s without caches, by the decoder's `params`."""
    if self.is_initializing():  # the decoder has none yet
      return x_BLD, ()
    rngs = {}
    if self.has_rng('dropout'):
      rngs = {'dropout': self.make_rng('dropout')}
    fields = self.blocks, self.num_layers, self.remat, self.loop
    # By itself, with the name that it has in messages.
    stack: Any = Stack(*fields, parent=None, name='encoder')
    (x_BLD, caches), sown = stack.apply(
      {'params': _without_cross(nn.meta.unbox(params))},
      x_BLD,
      context,
      None,
      rngs=rngs,
      mutable=[name for name in SOWN if self.is_mutable_collection(name)],
    )
    for collection, values in sown.items():
      for name, value in values.items():
        self.put_variable(collection, name, value)
    return x_BLD, caches


def _without_cross(params: Any) -> Any:
  """The parts of all blocks but those of attention to the encoder."""
  return {
    period: {
      block: {n: x for n, x in parts.items() if not n.startswith('cross')}
      for block, parts in blocks.items()
    }
    for period, blocks in params.items()
  }
