# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Empty caches and memories of a model, for `Transformer.__call__`."""

import functools

import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn.context import KVCache, SegmentMemory
from gpt_jax.nn.pattern import period
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.stack import SEPARATE, Caches
from gpt_jax.nn.transformer import DTYPES, Transformer
from gpt_jax.spec import UsageError


def init_caches(
  model: Transformer, batch_size: int, length: int, memory_length: int = 0
) -> Caches:
  """Empty caches for `batch_size` rows of at most `length` tokens.

  With a `memory_length` they also keep the keys and values of `memory_BMD`.
  """
  # One for each entry of the layer pattern, stacked over the depth; or one for
  # each layer.
  entries, depth = _period(model), ()
  if model.loop == SEPARATE:
    entries = model.num_layers
  else:
    depth = (model.num_layers // entries,)

  def cache(length: int, cross: KVCache | None) -> KVCache:
    shape = (*depth, batch_size, length)
    shape += (model.num_kv_heads, model.head_size)
    zeros = functools.partial(jnp.zeros, shape, DTYPES[model.dtype])
    return KVCache(zeros(), zeros(), cross)

  return tuple(
    cache(length, cache(memory_length, None) if memory_length else None)
    for _ in range(entries)
  )


def init_memories(model: Transformer, batch_size: int) -> Caches:
  """The memories before the first segment: zeros, which count as tokens.

  Each call of the model returns those for the next segment as `caches`. A
  call without caches sees no memory, and returns none.

  Raises:
    UsageError: the model keeps none.
  """
  position = spec.build('model.position', model.position, POSITIONS)
  if not position.memory:
    raise UsageError(
      f'model.position={model.position!r}: keeps no memory; take '
      'transformer_xl(memory=...)'
    )
  entries = _period(model)
  shape = (model.num_layers // entries, batch_size)
  shape += (position.memory, model.d_model)
  return (SegmentMemory(jnp.zeros(shape, DTYPES[model.dtype])),) * entries


def _period(model: Transformer) -> int:
  """One cache for each entry of the layer pattern, stacked over the depth."""
  return len(period(model.attention, model.ffn))
