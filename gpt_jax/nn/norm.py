# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Normalisation over the features of each position, in float32."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.dense import parameter
from gpt_jax.ranges import Epsilon


def layer_norm(
  x: jax.Array,
  scale_D: jax.Array | None,
  bias_D: jax.Array | None,
  *,
  epsilon: float,
) -> jax.Array:
  """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al., 2016)."""
  lead = (1,) * (x.ndim - 1) + (-1,)
  y: Any = standardize(x.astype(jnp.float32), epsilon)
  if scale_D is not None:
    y *= scale_D.reshape(lead)
  if bias_D is not None:
    y += bias_D.reshape(lead)
  return y.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def standardize(x: jax.Array, epsilon: float) -> jax.Array:
  """(x - mean) / sqrt(variance + epsilon) over the last axis.

  The variance is that of the centred values: E[x^2] - E[x]^2 would cancel.
  The gradient is written out, since it needs the result alone: small models
  train 4% faster on a CPU than with the one found automatically.
  """
  return _standardize(x, epsilon)[0]


def _standardize(x, epsilon):
  x -= jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  inverse = jax.lax.rsqrt(variance + epsilon)
  return x * inverse, (x * inverse, inverse)


def _standardize_gradient(epsilon, saved, dy):
  del epsilon
  y, inverse = saved
  mean = functools.partial(jnp.mean, axis=-1, keepdims=True)
  return (inverse * (dy - mean(dy) - y * mean(dy * y)),)


standardize.defvjp(_standardize, _standardize_gradient)


class LayerNorm(nn.Module):
  """Owns the scale and the bias of `layer_norm`."""

  epsilon: float
  scale: bool
  bias: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    shape = x.shape[-1:]
    ones, zeros = nn.initializers.ones, nn.initializers.zeros
    scale_D = bias_D = None
    if self.scale:
      scale_D = parameter(self, 'scale', ones, shape, ('norm',))
    if self.bias:
      bias_D = parameter(self, 'bias', zeros, shape, ('norm',))
    return layer_norm(x, scale_D, bias_D, epsilon=self.epsilon)


def rms_norm(x: jax.Array, scale_D: jax.Array, *, epsilon: float) -> jax.Array:
  """X / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019)."""
  x_f32 = x.astype(jnp.float32)
  mean = jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True)
  y = x_f32 * jax.lax.rsqrt(mean + epsilon)
  return (y * scale_D.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class RMSNorm(nn.Module):
  """Owns the scale of `rms_norm`, or what it differs from one by."""

  epsilon: float
  plus_one: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    init = nn.initializers.zeros if self.plus_one else nn.initializers.ones
    scale_D = parameter(self, 'scale', init, x.shape[-1:], ('norm',))
    if self.plus_one:
      scale_D = 1 + scale_D
    return rms_norm(x, scale_D, epsilon=self.epsilon)


def layernorm(
  epsilon: Epsilon = 1e-5, scale: bool = True, bias: bool = True
) -> Callable[..., nn.Module]:
  """LayerNorm.

  Args:
    epsilon: the default is that of GPT-1 and GPT-2.
    scale: whether each feature has a learned factor; False: all are 1.
    bias: whether each feature has a learned bias.
  """
  return functools.partial(LayerNorm, epsilon=epsilon, scale=scale, bias=bias)


def rmsnorm(
  epsilon: Epsilon = 1e-6, plus_one: bool = False
) -> Callable[..., nn.Module]:
  """RMSNorm.

  Args:
    epsilon: the default is that of T5 and LLaMA.
    plus_one: features are multiplied by 1 + scale, which starts at 0 (Gemma).
  """
  return functools.partial(RMSNorm, epsilon=epsilon, plus_one=plus_one)


NORMS = {'layernorm': layernorm, 'rmsnorm': rmsnorm}
