# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of tokens that are split over devices, which evens their load."""

import jax
import numpy as np

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.build import ModelChoices, needs_whole_rows
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import Transformer, requests


def zigzag_places(model: Transformer, shape_BL: tuple[int, ...]) -> np.ndarray | None:
  """The place of each token in rows of a shape, int32 [L]; None: in order.

  Rows stay in order if the load is even anyway (no layer sees all earlier
  tokens), or if results depend on the order: the random numbers of dropout and
  the capacity of experts would depend on the mesh, which is the one in context.
  """
  parts, length = layout.num_parts('length'), shape_BL[1]
  if parts == 1 or length % (2 * parts) or model.num_encoder_layers:
    return None
  choices = ModelChoices.of(model)
  if needs_whole_rows(model) or any(choices.dropout) or any(ffn.router for ffn in choices.ffn):
    return None
  if not any(p.causal and p.window is None for p in choices.attention):
    return None
  row = Row(jax.ShapeDtypeStruct(shape_BL, np.int32))
  asked, backend = requests(model, row), choices.attention_backend
  if not all(backend.zigzag(request) for _, request in asked):
    return None
  return zigzag(length, parts)


def zigzag(length: int, parts: int) -> np.ndarray:
  """The places of the parts' tokens, one part after the other, int32."""
  chunks = np.arange(length, dtype=np.int32).reshape(2 * parts, -1)
  pairs = np.stack([chunks[:parts], chunks[: parts - 1 : -1]], axis=1)
  return pairs.reshape(-1)
