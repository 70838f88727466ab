# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Empty caches of a model, for `Transformer.__call__`.

A cache has a slot for each token; the state of a recurrent layer has none.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.kv_cache import Cache, KVCache
from gpt_jax.core.nn.masks import Recurrent
from gpt_jax.core.nn.stack import UNSTACKED, Caches
from gpt_jax.core.nn.transformer import DTYPES, Transformer


class LstmState(NamedTuple):
  """What an LSTM carries from token to token.

  `cross` is for the encoder's output, in a layer that attends to it: one head.
  """

  hidden_BP: jax.Array
  cell_BS: jax.Array  # float32
  cross: KVCache | None = None


def init_caches(model: Transformer, batch_size: int, length: int, memory_length: int = 0) -> Caches:
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
          zeros((*shape, 1, width, memory_length)), zeros((*shape, 1, memory_length, width))
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
    cache(length, cache(memory_length, None) if memory_length else None) for _ in range(entries)
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
    length: slots of self-attention.
    memory_length: slots of the encoder's output.
    index_of_memory: the rows of the encoder's output, if they differ: several
      beams share one.
  """
  if index_of_memory is None:
    index_of_memory = index_B

  def take(cache: KVCache, index_B: np.ndarray, length: int, cross: KVCache | None) -> KVCache:
    own = _take(cache._replace(cross=None), index_B, length=length)
    return own._replace(cross=cross)

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


def empty(like: Caches, num_rows: int, length: int, memory_length: int = 0) -> Caches:
  """Zeros for `num_rows` rows, of the kinds of other caches.

  Args:
    like: of an unstacked model.
    length: slots of self-attention.
    memory_length: slots of the encoder's output.
  """

  def zeros(x: jax.Array, length: int, axis: int) -> jax.Array:
    shape = num_rows, *x.shape[1:axis], length, *x.shape[axis + 1 :]
    return _zeros(shape, x.dtype)

  def make(cache: KVCache, length: int, cross: KVCache | None) -> KVCache:
    keys, values = cache.key_BGKM, cache.value_BGMK
    return KVCache(zeros(keys, length, 3), zeros(values, length, 2), cross)

  out: list[Cache] = []
  for cache in like:
    assert isinstance(cache, KVCache | LstmState)
    cross = cache.cross and make(cache.cross, memory_length, None)
    if isinstance(cache, LstmState):
      shapes = ((x.dtype, (num_rows, x.shape[1])) for x in cache[:2])
      hidden_BP, cell_BS = (_zeros(shape, dtype) for dtype, shape in shapes)
      out.append(LstmState(hidden_BP, cell_BS, cross))
      continue
    out.append(make(cache, length, cross))
  return tuple(out)


def take_row(caches: Caches, index: int, length: int, memory_length: int = 0) -> Caches:
  """Takes a row of the caches, cut to `length` and `memory_length` slots."""
  slots = (cache.num_slots for cache in caches if isinstance(cache, KVCache))
  return take_rows(
    caches, np.array([index]), min([length, *slots]), min(memory_length, num_memory(caches))
  )


def put_row(caches: Caches, place: int, row: Caches) -> Caches:
  """Replaces a row, in the memory of `caches`.

  Args:
    caches: of an unstacked model.
    row: caches of a single row, with no more slots.
  """
  place_B = np.array([place])
  pairs = zip(caches, row, strict=True)
  return tuple(_put(cache, place_B, one) for cache, one in pairs)


def seeing(caches: Caches, num_slots: int | None) -> Caches:
  """Caches of whose slots new tokens see the first only; None: all."""

  def first(cache: Any) -> Cache:
    if isinstance(cache, LstmState):
      return cache
    seen_N = None if num_slots is None else jnp.arange(num_slots)
    return cache._replace(seen_N=seen_N)

  return tuple(map(first, caches))


# One layer at a time: most have the same shape, so few programs are compiled.
@functools.partial(jax.jit, static_argnames='length')
def _take(cache: KVCache, index_B: jax.Array, *, length: int) -> KVCache:
  """Rows of a layer's cache, without `cross`."""

  def take(x: jax.Array, axis: int) -> jax.Array:
    most = min(length, x.shape[axis])
    taken = jax.lax.slice_in_dim(x, 0, most, axis=axis)[index_B]
    more = [(0, length - most if i == axis else 0) for i in range(4)]
    return _constrain(jnp.pad(taken, more))

  return KVCache(take(cache.key_BGKM, 3), take(cache.value_BGMK, 2))


@jax.jit
def _rows(x, index_B):
  return _constrain(x[index_B])


@functools.partial(jax.jit, donate_argnums=0)
def _put(cache: Cache, place_B: jax.Array, row: Cache) -> Cache:
  def put(x: jax.Array, new: jax.Array) -> jax.Array:
    inside = tuple(slice(size) for size in new.shape[1:])
    return _constrain(x.at[place_B, *inside].set(new))

  return jax.tree.map(put, cache, row)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _zeros(shape, dtype):
  return _constrain(jnp.zeros(shape, dtype))


def _constrain(x: jax.Array) -> jax.Array:
  axes = ('batch', 'kv_heads', None, None)
  return layout.constrain(x, axes if x.ndim == 4 else ('batch', None))
