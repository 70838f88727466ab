# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The matrix products of attention: of queries and keys, and of the values."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_einsum(
  subscripts: str, left: jax.Array, right: jax.Array
) -> jax.Array:
  """`jnp.einsum` whose result is not rounded to the dtype of its inputs.

  Its gradient is rounded to it before it is multiplied on: products of float32
  and bfloat16 would leave the matrix units.
  """
  return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _float32_einsum(subscripts, left, right):
  return float32_einsum(subscripts, left, right), (left, right)


def _float32_einsum_gradient(subscripts, inputs, gradient):
  left, right = inputs
  gradient = gradient.astype(left.dtype)
  of_left = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, x, right), left
  )
  of_right = jax.linear_transpose(
    lambda x: jnp.einsum(subscripts, left, x), right
  )
  return *of_left(gradient), *of_right(gradient)


float32_einsum.defvjp(_float32_einsum, _float32_einsum_gradient)
