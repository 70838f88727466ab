# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matrix products in int8, for decoding: 8-bit weights, 8-bit activations.

Both are symmetric, x = scale * round(x / scale), |round(x / scale)| <= 127: a
scale for each column of a kernel, made once, and one for each token, made when
it is multiplied (as W8A8 with dynamic quantization is). The sums are exact, so
that a token's result depends on no other token. On CPUs with 8-bit dot products
this is faster than float32; weights alone in 8 bits are not, as they would be
widened first.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.nn.transposed import Layer, change_dense

MOST = 127


def quantize(params: Any) -> Any:
  """Replaces the kernels of dense layers; they get a `scale` each.

  Args:
    params: of a model whose layers are separate.
  """

  def change(layer: Layer) -> Layer:
    kernel_DF, scale_1F = _rounded(layer['kernel'], axis=0)
    return {**layer, 'kernel': kernel_DF, 'scale': scale_1F[0]}

  return change_dense(params, change)


def _rounded(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
  """int8 numbers and what they are multiples of, float32."""
  x = x.astype(jnp.float32)
  largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
  scale = jnp.where(largest > 0, largest, 1) / MOST
  return jnp.round(x / scale).astype(jnp.int8), scale


def dot(x_ND: jax.Array, kernel_DF: jax.Array, scale_F: jax.Array) -> jax.Array:
  """Multiplies x and the kernel: float32 [N, F]."""
  N = len(x_ND)
  if N == 1:
    # XLA on CPU has no fast product of 8-bit numbers for a single row.
    x_ND = jnp.concatenate([x_ND, x_ND])
  rounded_ND, scale_N1 = _rounded(x_ND, axis=1)
  y_NF = jnp.dot(rounded_ND, kernel_DF, preferred_element_type=jnp.int32)
  return (y_NF.astype(jnp.float32) * scale_N1 * scale_F[None])[:N]
