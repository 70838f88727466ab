# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The dense layer, and how a parameter gets its logical axes."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import devices, int8, layout, transposed
from gpt_jax.nn.init import Initializer


def parameter(
  module: nn.Module,
  name: str,
  init: Initializer,
  shape: tuple[int, ...],
  axes: tuple[str, ...],
) -> jax.Array:
  """A parameter of `module` whose dimensions are named by `axes`.

  It starts in float32; `optim.precision` says in what it is kept.
  """
  if module.has_variable('params', name):
    # Flax traces the initializer again, only to compare the shape.
    init = nn.initializers.zeros
  boxed: Any = nn.with_logical_partitioning(init, axes)
  return module.param(name, boxed, shape, jnp.float32)


class Dense(nn.Module):
  """y = x @ kernel + bias, over the last axis.

  The kernel is stored as a matrix even where its columns are heads times head
  size: XLA forms the gradient reduce-scatter for two-dimensional weights only.
  In decoding it may be one of `int8.quantize` or of `transposed.transpose`.
  """

  features: int
  axes: tuple[str, str]
  initializer: Initializer
  bias: bool
  dtype: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., in] -> [..., features]."""
    # As one matrix: XLA on CPU would transpose a [B, L, D] input to contract
    # two axes at once for the kernel's gradient. But of parts of rows no matrix
    # can be made without the other parts.
    rows = x
    if devices.num_parts('length') == 1:
      rows = x.reshape(-1, x.shape[-1])
    if self.has_variable('params', 'transposed'):
      kernel_FD = self.get_variable('params', 'transposed')
      y = transposed.dot(rows, kernel_FD.astype(self.dtype))
    else:
      shape = (x.shape[-1], self.features)
      kernel = parameter(self, 'kernel', self.initializer, shape, self.axes)
      if kernel.dtype == jnp.int8:
        scale = self.get_variable('params', 'scale')
        y = int8.dot(rows, kernel, scale).astype(self.dtype)
      else:
        y = jnp.dot(rows, layout.weight(kernel, self.axes, self.dtype))
    if self.bias:
      zeros, shape = nn.initializers.zeros, (self.features,)
      bias = parameter(self, 'bias', zeros, shape, self.axes[1:])
      y += bias.astype(self.dtype)[(None,) * (y.ndim - 1)]
    return y.reshape(*x.shape[:-1], self.features)
