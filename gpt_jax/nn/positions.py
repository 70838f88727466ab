# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a token knows where it stands."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.nn.init import Initializer


class LearnedPositions(nn.Module):
  """x + Wp[position]: one trained vector for each position (GPT-1, eq. 2)."""

  context_length: int
  initializer: Initializer

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None
  ) -> jax.Array:
    """Adds the vectors; `positions_BL` None means 0, 1, 2, ... in each row."""
    shape = (self.context_length, x_BLD.shape[-1])
    table = parameter(
      self, 'embedding', self.initializer, shape, ('length', 'embed')
    )
    table = table.astype(x_BLD.dtype)
    if positions_BL is None:
      # A slice, since the gradient of a gather is a slow scatter.
      return x_BLD + table[None, : x_BLD.shape[1]]
    return x_BLD + jnp.take(table, positions_BL, axis=0)


class NoPositions(nn.Module):
  """x: order is known from the causal mask alone."""

  context_length: int
  initializer: Initializer

  def __call__(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None
  ) -> jax.Array:
    """Returns `x_BLD`."""
    del positions_BL
    return x_BLD


def learned() -> Callable[..., nn.Module]:
  """Learned absolute positions."""
  return functools.partial(LearnedPositions)


def none() -> Callable[..., nn.Module]:
  """No positions."""
  return functools.partial(NoPositions)


POSITIONS = {'learned': learned, 'none': none}
