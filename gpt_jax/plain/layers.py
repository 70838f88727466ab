# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers: a parameter is float32, and cast where it is used."""

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.recipe import BIASES, DTYPE
from gpt_jax.plain.types import Params


def dense(x: Array, p: Params) -> Array:
  """The dense layer x W + b."""
  y = x @ p['kernel'].astype(DTYPE)
  return y + p['bias'].astype(DTYPE) if BIASES else y


def dropout(x: Array, rate: float, key: Array | None) -> Array:
  """Zeroes a part of the values, and scales up the others; without a key, none."""
  if key is None:
    return x
  kept = jax.random.bernoulli(key, 1 - rate, x.shape)
  return jnp.where(kept, x / (1 - rate), 0)


def folded(key: Array | None, number: int) -> Array | None:
  """The key of a layer; without a key, none."""
  return None if key is None else jax.random.fold_in(key, number)


def split(key: Array | None, count: int) -> list[Array | None]:
  """As many keys of one; without a key, none."""
  return [None] * count if key is None else [*jax.random.split(key, count)]


def gelu(x: Array) -> Array:
  """The tanh form of GELU (Hendrycks and Gimpel, 2016, section 2)."""
  return jax.nn.gelu(x, approximate=True)


def gelu_exact(x: Array) -> Array:
  """GELU: x times the normal distribution's function at x (Hendrycks and Gimpel, 2016)."""
  return jax.nn.gelu(x, approximate=False)
