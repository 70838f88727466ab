# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The factor on attention scores before the softmax, and their bound."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from gpt_jax.ranges import NotNegative


class Scale(NamedTuple):
  """What becomes of the products of queries and keys.

  Attributes:
    factor: (head size, index of the layer from 0) -> what they are multiplied
      by.
    softcap: scores s become softcap * tanh(s / softcap), within +- softcap;
      0: as they are.
  """

  factor: Callable[[int, jax.Array], float | jax.Array]
  softcap: float = 0.0

  def __call__(self, head_size: int, layer: jax.Array) -> float | jax.Array:
    """The factor of a layer."""
    return self.factor(head_size, layer)


def rsqrt(size: NotNegative = 0, softcap: NotNegative = 0.0) -> Scale:
  """1 / sqrt(K) (Vaswani et al., section 3.2.1).

  Args:
    size: instead of the head size K, 1 / sqrt(size) (Gemma 2's
      `query_pre_attn_scalar`); 0: K.
    softcap: see `Scale` (Gemma 2: 50).
  """
  return Scale(lambda head_size, layer: (size or head_size) ** -0.5, softcap)


def none() -> Scale:
  """1 (T5, GPT-Neo)."""
  return Scale(lambda head_size, layer: 1.0)


def by_layer(per_head: bool = True) -> Scale:
  """1 / (layer + 1), layers from 0, on top of 1 / sqrt(K) if `per_head`.

  GPT-2 in Mistral's stable training (`scale_attn_by_inverse_layer_idx`).
  """

  def scale(head_size: int, layer: jax.Array) -> jax.Array:
    return (head_size**-0.5 if per_head else 1.0) / (layer + 1)

  return Scale(scale)


SCALES = {'by_layer': by_layer, 'none': none, 'rsqrt': rsqrt}
