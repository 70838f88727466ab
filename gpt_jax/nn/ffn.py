# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward layer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializers

Activation = Callable[[jax.Array], jax.Array]


class FeedForward(nn.Module):
  """FFN(x) = act(x W_in + b) W_out + b, or, gated, (act(x W_gate) * x W_in)
  W_out (Shazeer 2020, GLU Variants Improve Transformer, eq. 6).
  """

  activation: Activation
  gated: bool
  d_ff: int
  bias: bool
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, D] -> [B, L, D]."""
    dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype)
    widen = functools.partial(
      dense, self.d_ff, ('embed', 'mlp'), self.inits.kernel
    )
    h_BLF = widen(name='in')(x_BLD)
    if self.gated:
      h_BLF *= self.activation(widen(name='gate')(x_BLD))
    else:
      h_BLF = self.activation(h_BLF)
    narrow = dense(
      x_BLD.shape[-1], ('mlp', 'embed'), self.inits.residual, name='out'
    )
    return narrow(h_BLF)


def plain(activation: Activation):
  """A choice without a gate."""
  return lambda: functools.partial(FeedForward, activation, False)


def gated(activation: Activation):
  """A choice whose activation multiplies a second projection."""
  return lambda: functools.partial(FeedForward, activation, True)


def gelu_exact(x: jax.Array) -> jax.Array:
  """X Phi(x), by the error function."""
  return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: jax.Array) -> jax.Array:
  """The tanh form of GELU, which GPT-1, GPT-2 and T5 v1.1 compute."""
  return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
  'relu': jax.nn.relu,
  'gelu': gelu_exact,
  'gelu_tanh': gelu_tanh,
  'silu': jax.nn.silu,
  'tanh': jnp.tanh,
}
FFNS: dict[str, Callable[[], Callable[..., nn.Module]]] = {
  **{name: plain(activation) for name, activation in ACTIVATIONS.items()},
  'glu': gated(jax.nn.sigmoid),
  'bilinear': gated(lambda x: x),
  'reglu': gated(jax.nn.relu),
  'geglu': gated(gelu_exact),
  'geglu_tanh': gated(gelu_tanh),
  'swiglu': gated(jax.nn.silu),
}
