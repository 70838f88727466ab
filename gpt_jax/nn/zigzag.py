# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens of causal rows that are split over devices go to which device.

The last tokens of a row see many keys, its first ones few. So rows are cut
into two chunks for each device, and device i of c has the chunks i and
2c - 1 - i: all have the same to do (Llama 3, section 3.3.2).
"""

from typing import Any

import numpy as np

from gpt_jax import spec
from gpt_jax.nn import layout, split_backends
from gpt_jax.nn.choices import build
from gpt_jax.nn.pattern import period

# Of `model.attention_backend`: what leaves out blocks of keys that no query
# sees, and where each device has all heads of its tokens.
UNEVEN = ('all_gather', 'auto', 'ring')


def places(model: Any, length: int) -> np.ndarray | None:
  """Of each token its place in the row, int32 [length]; None: rows in order.

  Rows stay in order where all devices have the same to do (without layers that
  see all earlier tokens), and where something depends on the order: dropout
  and experts, whose random numbers and whose capacity would come to depend on
  the mesh.

  Args:
    model: a `Transformer`; the mesh is the one in context.
    length: of the rows.
  """
  parts = layout.num_parts('length')
  if parts == 1 or length % (2 * parts) or model.num_encoder_layers:
    return None
  backend = spec.parse('model.attention_backend', model.attention_backend)[0]
  position = build(model, 'position')
  whole = backend.name == 'auto' and split_backends.kept_in_order(
    length, model.num_heads, model.head_size
  )
  layers = period(model.attention, model.ffn)
  patterns = [layer.attention for layer in layers]
  if (
    backend.name not in UNEVEN
    or (whole and not position.bias)
    or not any(p.causal and p.window is None for p in patterns)
    or any(p.blocks for p in patterns)
    or any(layer.ffn.router for layer in layers)
    or any(build(model, 'dropout'))
    or position.terms
  ):
    return None
  return zigzag(length, parts)


def zigzag(length: int, parts: int) -> np.ndarray:
  """The places that the parts have, one part after the other, int32."""
  chunks = np.arange(length, dtype=np.int32).reshape(2 * parts, -1)
  pairs = np.stack([chunks[:parts], chunks[: parts - 1 : -1]], axis=1)
  return pairs.reshape(-1)
