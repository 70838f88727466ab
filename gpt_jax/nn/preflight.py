# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether the attention backend can serve a config, before anything is built.

Tracing the model would say the same, but only once its data are prepared.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn.backends import BACKENDS, check
from gpt_jax.nn.dot_product import Request, Visibility
from gpt_jax.nn.dropout import DROPOUTS, Dropout
from gpt_jax.nn.layer_sizes import LayerSizes
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.nn.positions import POSITIONS


def check_attention(
  model: Any,
  sizes: LayerSizes,
  attention: str,
  shape_BL: tuple[int, int],
  *,
  packed: bool = False,
  padded: bool = False,
) -> None:
  """Checks what each pattern of a stack will ask of the backend.

  The mesh in context counts, as it does for the backends. A backend may still
  refuse what only the batches show, such as padding.

  Args:
    model: `config.model`.
    sizes: of the stack's layers.
    attention: `model.attention`, or that of the encoder of an encoder-decoder.
    shape_BL: rows of a batch as the model is given it, and their length.
    packed: whether rows hold documents that do not see each other.
    padded: whether they may have padding that is not to be seen.

  Raises:
    UsageError: the backend cannot serve the model.
  """
  backend = spec.build(
    'model.attention_backend', model.attention_backend, BACKENDS
  )
  position = spec.build('model.position', model.position, POSITIONS)
  rates = spec.build('model.dropout', model.dropout, DROPOUTS)

  def heads(number: int, size: int = sizes.head_size) -> Any:
    shape = (*shape_BL, number, size)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(model.dtype))

  segments: Any = jax.ShapeDtypeStruct(shape_BL, jnp.int32)
  mask: Any = jax.ShapeDtypeStruct(shape_BL, jnp.bool_)
  query, key = heads(sizes.num_heads), heads(sizes.num_kv_heads)
  value = heads(sizes.num_kv_heads, sizes.value_size or sizes.head_size)
  biased = position.bias is not None or position.terms is not None
  for pattern in spec.build_all('model.attention', attention, PATTERNS):
    request = Request(
      query,
      key,
      value,
      pattern,
      Visibility(mask if padded else None, segments if packed else None),
      scale=1.0,
      bias=query if biased else None,
      dropout=Dropout(rates.attention) if rates.attention else None,
    )
    check(backend, request)
