# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Empty caches and memories of a model, for `Transformer.__call__`.

A cache has a slot for each token; the state of a recurrent layer has none.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn import layout
from gpt_jax.nn.attend import Cache, KVCache, LstmState, SegmentMemory
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.masks import Recurrent
from gpt_jax.nn.stack import UNSTACKED, Caches
from gpt_jax.nn.transformer import DTYPES, Transformer
from gpt_jax.spec import UsageError


def init_caches(
  model: Transformer, batch_size: int, length: int, memory_length: int = 0
) -> Caches:
  """Empty caches for `batch_size` rows of at most `length` tokens.

  With a `memory_length` they also keep the keys and values of `memory_BMD`.
  """
  # One cache for each entry of the layer pattern, stacked over the depth; or
  # one for each layer.
  choices = ModelChoices.of(model)
  entries, depth = len(choices.decoder), ()
  if model.loop == UNSTACKED:
    entries = model.num_layers
  else:
    depth = (model.num_layers // entries,)

  zeros = functools.partial(jnp.zeros, dtype=DTYPES[model.dtype])
  if recurrent := choices.recurrent:
    shape = *depth, batch_size

    def state(layer: Recurrent) -> LstmState:
      cross = None
      if memory_length and layer.attends:
        width = choices.memory_width
        cross = KVCache(
          zeros((*shape, 1, width, memory_length)),
          zeros((*shape, 1, memory_length, width)),
        )
      hidden, cells = zeros((*shape, layer.width)), (*shape, layer.cells)
      return LstmState(hidden, jnp.zeros(cells), cross)

    return tuple(map(state, (recurrent * entries)[:entries]))

  def cache(length: int, cross: KVCache | None) -> KVCache:
    outer = *depth, batch_size, model.num_kv_heads
    key_BGKM, value_BGMK = (
      zeros((*outer, model.head_size, length)),
      zeros((*outer, length, model.value_size or model.head_size)),
    )
    return KVCache(key_BGKM, value_BGMK, cross)

  return tuple(
    cache(length, cache(memory_length, None) if memory_length else None)
    for _ in range(entries)
  )


def num_memory(caches: Caches) -> int:
  """The slots for the encoder's output; 0: there are none."""
  crosses = (getattr(cache, 'cross', None) for cache in caches)
  return max((cross.num_slots for cross in crosses if cross), default=0)


def constrain(caches: Caches) -> Caches:
  """Splits caches by `mesh.rules`: over rows and key/value heads."""
  return jax.tree.map(_constrain, caches)


def take_rows(
  caches: Caches,
  index_B: np.ndarray,
  length: int,
  memory_length: int = 0,
  *,
  index_of_memory: np.ndarray | None = None,
) -> Caches:
  """Takes rows of the caches of an unstacked model, and resizes their slots.

  Removed slots are lost; new slots hold zeros.

  Args:
    caches: of an unstacked model.
    index_B: the rows.
    length: slots of self-attention.
    memory_length: slots of the encoder's output.
    index_of_memory: the rows of the encoder's output, if they differ: several
      beams share one.
  """
  if index_of_memory is None:
    index_of_memory = index_B

  def take(
    cache: KVCache, index_B: np.ndarray, length: int, cross: KVCache | None
  ) -> KVCache:
    key_BGKM = _take(cache.key_BGKM, index_B, length=length, axis=3)
    value_BGMK = _take(cache.value_BGMK, index_B, length=length, axis=2)
    return KVCache(key_BGKM, value_BGMK, cross)

  out: list[Cache] = []
  for cache in caches:
    assert isinstance(cache, KVCache | LstmState)
    cross = None
    if cache.cross is not None:
      cross = take(cache.cross, index_of_memory, memory_length, None)
    if isinstance(cache, LstmState):
      hidden_BP, cell_BS = (_rows(x, index_B) for x in cache[:2])
      out.append(LstmState(hidden_BP, cell_BS, cross))
      continue
    out.append(take(cache, index_B, length, cross))
  return tuple(out)


def reorder(caches: Caches, index_B: jax.Array) -> Caches:
  """Reorders rows of self-attention, but not of the encoder's output."""

  def take(cache: Any) -> Cache:
    if isinstance(cache, LstmState):
      hidden_BP, cell_BS = (x[index_B] for x in cache[:2])
      return LstmState(hidden_BP, cell_BS, cache.cross)
    keys, values = cache.key_BGKM, cache.value_BGMK
    return KVCache(keys[index_B], values[index_B], cache.cross)

  return tuple(map(take, caches))


def put_rows(
  caches: Caches, rows_B: np.ndarray, new: Caches, index_B: np.ndarray
) -> Caches:
  """Replaces some rows, in the memory of `caches`.

  Args:
    caches: of an unstacked model.
    rows_B: the rows to replace; numbers past the last mean none.
    new: caches with the new rows, with no more slots.
    index_B: the row of `new` for each.
  """
  return jax.tree.map(lambda x, y: _put(x, rows_B, y, index_B), caches, new)


def seeing(caches: Caches, num_slots: int | None) -> Caches:
  """Caches of whose slots new tokens see the first only; None: all."""

  def first(cache: Any) -> Cache:
    if isinstance(cache, LstmState):
      return cache
    seen_N = None if num_slots is None else jnp.arange(num_slots)
    return cache._replace(seen_N=seen_N)

  return tuple(map(first, caches))


# One array at a time: most have the same shape, so few programs are compiled.
@functools.partial(jax.jit, static_argnames=('length', 'axis'))
def _take(x, index_B, *, length, axis):
  """Rows of an array of a cache, whose slots are on `axis`."""
  most = min(length, x.shape[axis])
  taken = jax.lax.slice_in_dim(x, 0, most, axis=axis)[index_B]
  more = [(0, length - most if i == axis else 0) for i in range(4)]
  return _constrain(jnp.pad(taken, more))


@jax.jit
def _rows(x, index_B):
  return _constrain(x[index_B])


@functools.partial(jax.jit, donate_argnums=0)
def _put(x, rows_B, new, index_B):
  inside = tuple(slice(size) for size in new.shape[1:])
  return _constrain(x.at[rows_B, *inside].set(new[index_B], mode='drop'))


def _constrain(x: jax.Array) -> jax.Array:
  axes = ('batch', 'kv_heads', None, None)
  return layout.constrain(x, axes if x.ndim == 4 else ('batch', None))


def init_memories(
  model: Transformer, batch_size: int, *, real: bool = True
) -> Caches:
  """The memories before the first segment: zeros, which count as tokens.

  If not `real`, they are masked: nothing precedes the first segment.

  Each call of the model returns those for the next segment as `caches`. A
  call without caches sees no memory, and returns none.
  """
  choices = ModelChoices.of(model)
  position = choices.position
  if not position.memory:
    raise UsageError(
      f'model.position={model.position!r}: keeps no memory; take '
      'transformer_xl(memory=...)'
    )
  entries = len(choices.decoder)
  shape = (model.num_layers // entries, batch_size)
  shape += (position.memory, model.d_model)
  zeros = jnp.zeros(shape, DTYPES[model.dtype])
  seen = None if real else jnp.zeros(shape[:-1], bool)
  return (SegmentMemory(zeros, seen),) * entries
