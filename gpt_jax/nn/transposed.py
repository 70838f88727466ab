# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kernels that are stored transposed, for decoding on a CPU.

XLA on CPU rearranges the right side of a matrix product in each call. In
decoding that is the kernel, which is far larger than the tokens: transposed, it
is the left side, and a product of 2 to 64 tokens takes two thirds of the time.
"""

from collections.abc import Callable
from typing import Any

import jax

Layer = dict[str, Any]


def transpose(params: Any) -> Any:
  """Has each dense layer's `kernel`, [D, F], as `transposed`, [F, D]."""

  def change(layer: Layer) -> Layer:
    out = {**layer, 'transposed': layer['kernel'].T}
    del out['kernel']
    return out

  return change_dense(params, change)


def change_dense(params: Any, change: Callable[[Layer], Layer]) -> Any:
  """Changes the parameters of each dense layer.

  Those of routers stay as they are, and those of experts, which are no
  matrices; so do embeddings and the output.

  Args:
    params: of a model whose layers are separate.
    change: from a layer's `kernel`, and what else it has, to what it gets.
  """
  out = dict(params)
  for name in ('decoder', 'encoder', 'source'):
    if name in out:
      out[name] = _changed(out[name], change)
  return out


def _changed(tree: Any, change: Callable[[Layer], Layer]) -> Any:
  out = {}
  for name, value in tree.items():
    if not isinstance(value, dict):
      out[name] = value
    elif name == 'router' or getattr(value.get('kernel'), 'ndim', 0) != 2:
      out[name] = _changed(value, change)
    else:
      out[name] = change(value)
  return out


def dot(x_ND: jax.Array, kernel_FD: jax.Array) -> jax.Array:
  """Multiplies x and the kernel: [N, F]."""
  # Without the barriers XLA would exchange the sides again.
  x_DN = jax.lax.optimization_barrier(x_ND.T)
  y_FN = jax.lax.optimization_barrier(kernel_FD @ x_DN)
  return y_FN.T
