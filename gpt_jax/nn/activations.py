# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The functions between the matrices of a feed-forward layer."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Activation = Callable[[jax.Array], jax.Array]


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


class Form(NamedTuple):
  """How a layer widens: act(x W_in), or, gated, act(x W_gate) * x W_in."""

  activation: Activation
  gated: bool


# The gated ones are those of Shazeer (2020), GLU Variants Improve Transformer.
FORMS: dict[str, Form] = {
  **{name: Form(activation, False) for name, activation in ACTIVATIONS.items()},
  'glu': Form(jax.nn.sigmoid, True),
  'bilinear': Form(lambda x: x, True),
  'reglu': Form(jax.nn.relu, True),
  'geglu': Form(gelu_exact, True),
  'geglu_tanh': Form(gelu_tanh, True),
  'swiglu': Form(jax.nn.silu, True),
}
