# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward layer: FFN(x) = act(x W_in + b) W_out + b."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializers


class FeedForward(nn.Module):
  """Two dense layers with an activation between them."""

  activation: Callable[[jax.Array], jax.Array]
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, D] -> [B, L, D]."""
    dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype)
    h_BLF = dense(
      self.d_ff, ('embed', 'mlp'), initializer=self.inits.kernel, name='in'
    )(x_BLD)
    return dense(
      x_BLD.shape[-1],
      ('mlp', 'embed'),
      initializer=self.inits.residual,
      name='out',
    )(self.activation(h_BLF))


def relu() -> Callable[..., nn.Module]:
  """max(0, x) (the Transformer)."""
  return functools.partial(FeedForward, activation=jax.nn.relu)


def gelu() -> Callable[..., nn.Module]:
  """X Phi(x), by the error function."""
  exact = functools.partial(jax.nn.gelu, approximate=False)
  return functools.partial(FeedForward, activation=exact)


def gelu_tanh() -> Callable[..., nn.Module]:
  """The tanh form of GELU, which GPT-1 and GPT-2 compute."""
  return functools.partial(FeedForward, activation=jax.nn.gelu)


FFNS = {'relu': relu, 'gelu': gelu, 'gelu_tanh': gelu_tanh}
