# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers in 8 bits with scales, and the products of decoding with such weights.

Weights and activations have 8 bits, with a scale for each column of a kernel,
computed once, and one for each token, computed at each product (W8A8 with
dynamic quantization). A token's result depends on no other token. On CPUs with
8-bit dot products this is faster than float32; 8-bit weights alone are not, as
they would be widened first. `int8` has the products of training.
"""

import jax
import jax.numpy as jnp

MOST = 127


def dot(x_ND: jax.Array, kernel_DF: jax.Array, scale_F: jax.Array) -> jax.Array:
  """Multiplies x and the kernel: float32 [N, F]."""
  N = len(x_ND)
  if N == 1:
    # XLA on CPU has no fast 8-bit product for a single row.
    x_ND = jnp.concatenate([x_ND, x_ND])
  rounded_ND, scale_N1 = rounded(x_ND, (1,))
  y_NF = jnp.dot(rounded_ND, kernel_DF, preferred_element_type=jnp.int32)
  return (y_NF.astype(jnp.float32) * scale_N1 * scale_F[None])[:N]


def rounded(
  x: jax.Array, axes: tuple[int, ...], noise: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """int8 numbers and their float32 scales: the largest of `axes` becomes 127.

  Args:
    x: any shape.
    axes: that a scale is for; scales have size 1 there.
    noise: int32 of 16 random bits, to round at random; None: to the nearest.
  """
  x = x.astype(jnp.float32)
  # Compared as integers, which order positive floats alike and put NaN above
  # infinity: a maximum of floats loses a NaN among many numbers on CPUs.
  bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
  most = jnp.max(bits, axis=axes, keepdims=True)
  largest = jax.lax.bitcast_convert_type(most, jnp.float32)
  largest = jnp.where(largest == 0, 1, largest)
  if noise is None:
    near = jnp.round(x * (MOST / largest))
    return near.astype(jnp.int8), largest / MOST
  # In 16 bits of fraction: an exact sum of integers, whatever is fused.
  fixed = jnp.round(x * (MOST * 2.0**16 / largest)).astype(jnp.int32)
  at_random = jax.lax.clamp(-MOST, (fixed + noise) >> 16, MOST)
  return at_random.astype(jnp.int8), largest / MOST
