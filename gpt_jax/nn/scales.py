# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The factor on attention scores before the softmax."""

from collections.abc import Callable

import jax

# (head size, index of the layer from 0) -> factor.
Scale = Callable[[int, jax.Array], float | jax.Array]


def rsqrt() -> Scale:
  """1 / sqrt(K) (Vaswani et al., section 3.2.1)."""
  return lambda head_size, layer: head_size**-0.5


def none() -> Scale:
  """1 (T5, GPT-Neo)."""
  return lambda head_size, layer: 1.0


def by_layer(per_head: bool = True) -> Scale:
  """1 / (layer + 1), layers from 0, on top of 1 / sqrt(K) if `per_head`.

  GPT-2 in Mistral's stable training (`scale_attn_by_inverse_layer_idx`).
  """

  def scale(head_size: int, layer: jax.Array) -> jax.Array:
    return (head_size**-0.5 if per_head else 1.0) / (layer + 1)

  return scale


SCALES = {'by_layer': by_layer, 'none': none, 'rsqrt': rsqrt}
