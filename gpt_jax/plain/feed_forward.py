# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Feed-forward layers."""

from jax import Array
from jax.nn import silu as gate_activation

from gpt_jax.plain.layers import dense
from gpt_jax.plain.layers import gelu as activation
from gpt_jax.plain.types import Params


def mlp(x: Array, p: Params) -> Array:
  """The feed-forward layer: activation(x W_in) W_out."""
  return dense(activation(dense(x, p['in'])), p['out'])


def gated(x: Array, p: Params) -> Array:
  """(activation(x W_gate) * x W_in) W_out (Shazeer, 2020, eq. 6)."""
  return dense(gate_activation(dense(x, p['gate'])) * dense(x, p['in']), p['out'])
