# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stacks of recurrent layers, and two language models in one."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.layers import Initializers
from gpt_jax.core.nn.masks import Recurrent
from gpt_jax.core.nn.row import Context, Row
from gpt_jax.core.nn.stack import UNSTACKED, Caches, Period, Sharing, Stack
from gpt_jax.core.nn.transformer import Transformer


class TwoDirections(Transformer):
  """Two language models, which share the tables of half the width (ELMo).

  Its states are those of the forward model, then those of the backward one.
  """

  @property
  def embedding_width(self) -> int:
    """The width of each direction."""
    return self.d_model // 2

  def embedded(self, row: Row, side: str = '') -> jax.Array:
    """The same vectors for both, [B, L, D]."""
    x_BLP = self._inputs(row.tokens_BL, row.positions, row.token_types_BL, side=side)
    x_BLD = jnp.concatenate([x_BLP, x_BLP], axis=-1)
    self.sow('intermediates', f'{side}embedded', x_BLD)
    return x_BLD


def make_stack(
  layers: Sequence[Recurrent], model: Any, num_layers: int, *, inits: Initializers, dtype: Any
) -> Stack:
  """A stack that repeats `layers`, with the fields of a `Transformer`."""
  blocks = (functools.partial(x.make, inits=inits, dtype=dtype) for x in layers)
  make = Stack if layers[-1].width == model.d_model else WideningStack
  return make(tuple(blocks), num_layers, model.remat, model.loop, Sharing())


class WideningPeriod(Period):
  """A period whose output is not as wide as its input: no carry of a loop."""

  def __call__(
    self, carry: tuple[()], x_BLD: jax.Array, context: Context, caches: Caches, index: jax.Array
  ) -> tuple[tuple[()], tuple[jax.Array, Caches]]:
    """As `Period`, after the empty carry."""
    return carry, super().__call__(x_BLD, context, caches, index)


class WideningStack(Stack):
  """One period, whose output is not as wide as its input."""

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, context: Context, caches: Caches | None
  ) -> tuple[jax.Array, Caches]:
    """[B, L, D] -> [B, L, P] and the caches, as `Stack`."""
    if self.loop == UNSTACKED:
      return self._unstacked(x_BLD, context, caches)
    assert self.num_periods == 1
    run = self.scanned(WideningPeriod, (0, nn.broadcast, 0, 0))
    args = x_BLD[None], context, caches or self.no_caches, jnp.arange(1)
    _, (x_1BLP, out) = run((), *args)
    return x_1BLP[0], out
