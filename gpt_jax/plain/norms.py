# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms."""

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.recipe import NORM_EPSILON
from gpt_jax.plain.types import Params


def layer_norm(x: Array, p: Params) -> Array:
  """(x - mean) / sqrt(variance + epsilon) * scale + bias, in float32 (Ba et al., 2016, eq. 4)."""
  y = x.astype(jnp.float32)
  y -= jnp.mean(y, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
  y *= jax.lax.rsqrt(variance + NORM_EPSILON)
  return (y * p['scale'] + p['bias']).astype(x.dtype)


def standardize(x: Array, p: Params) -> Array:
  """(x - mean) / sqrt(variance + epsilon), in float32: a LayerNorm without parameters."""
  y = x.astype(jnp.float32)
  y -= jnp.mean(y, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
  return (y * jax.lax.rsqrt(variance + NORM_EPSILON)).astype(x.dtype)


def rms_norm(x: Array, p: Params) -> Array:
  """RMSNorm: x / sqrt(mean(x^2) + epsilon) * scale, in float32 (Zhang and Sennrich, 2019)."""
  y = x.astype(jnp.float32)
  y *= jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + NORM_EPSILON)
  return (y * p['scale']).astype(x.dtype)
