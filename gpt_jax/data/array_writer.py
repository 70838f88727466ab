# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes the flat arrays of a token store, shard by shard: see `store`."""

from typing import Annotated, Any, NamedTuple

import numpy as np

from gpt_jax import ranges, spec
from gpt_jax.data import files, manifest

_SHARD_BYTES = 1 << 25  # one file: 16M tokens of two bytes
_CHUNK = 1 << 13  # elements read at once: 4 rows of 2048 tokens


def shard_size(dtype: str) -> int:
  """Elements of an array in one file."""
  return _SHARD_BYTES // np.dtype(dtype).itemsize


def write_shard(
  folder: str,
  name: str,
  dtype: str,
  length: int,
  i: int,
  values: np.ndarray,
  compression: str,
):
  """Writes file `i` of an array of `length` elements, as `ArrayWriter` would.

  Several processes may do so at once, each for other files.
  """
  size = shard_size(dtype)
  array = files.open_array(
    files.join(folder, name),
    metadata=_metadata(dtype, size, compression) | {'shape': [length]},
    store_data_equal_to_fill_value=True,
    keep=False,
    open=True,
    create=True,
  )
  array[i * size : i * size + len(values)].write(values).result()


class Written(NamedTuple):
  """What an `ArrayWriter` wrote."""

  length: int
  crc32: list[int]


class Waiting(NamedTuple):
  """An `ArrayWriter` between two of its flushes."""

  length: int  # on disk
  crc32: list[int]  # of these
  values: np.ndarray  # after these


class ArrayWriter:
  """Writes a flat array as a stream; holds one shard and what was added."""

  def __init__(
    self,
    folder: str,
    name: str,
    dtype: str,
    resumed: Waiting | None = None,
    compression: str = 'none',
  ):
    """Makes the array, or goes on from where a writer was.

    Raises:
      ValueError: the array to go on with is not there.
    """
    self._dtype = np.dtype(dtype)
    self._shard = shard_size(dtype)
    # So that the checksums of the shards are those of the whole.
    assert self._shard % manifest.BLOCK == 0
    self._waiting: list[np.ndarray] = []
    self._num_waiting = 0
    self._length = 0
    self._crc32: list[int] = []
    path = files.join(folder, name)
    if resumed is None:
      self._array = files.open_array(
        path,
        metadata=_metadata(dtype, self._shard, compression),
        store_data_equal_to_fill_value=True,
        keep=False,
        create=True,
      )
      return
    self._length, self._crc32 = resumed.length, list(resumed.crc32)
    self._waiting, self._num_waiting = [resumed.values], len(resumed.values)
    array = files.open_array(
      path, store_data_equal_to_fill_value=True, keep=False, open=True
    )
    if array.shape[0] < resumed.length:
      raise ValueError(f'{path} is too short')
    # What was written after that moment is written again.
    self._array = array.resize(exclusive_max=[resumed.length]).result()

  def waiting(self) -> Waiting:
    """Where the writer is, for going on after the process died."""
    values = np.concatenate([np.empty(0, self._dtype), *self._waiting])
    return Waiting(self._length, list(self._crc32), values)

  @property
  def length(self) -> int:
    """What is on disk."""
    return self._length

  def add(self, values: np.ndarray):
    """Appends `values`, which fit into the array's dtype."""
    self._waiting.append(values.astype(self._dtype))
    self._num_waiting += len(values)
    if self._num_waiting >= self._shard:
      self._flush(self._num_waiting // self._shard * self._shard)

  def close(self) -> Written:
    """Writes what is left."""
    self._flush(self._num_waiting)
    return Written(self._length, self._crc32)

  def _flush(self, count: int):
    """Writes the first `count` waiting values; whole shards until the last."""
    if not count:
      return
    waiting = np.concatenate(self._waiting)
    values, rest = waiting[:count], waiting[count:]
    self._waiting, self._num_waiting = [rest.copy()], len(rest)
    self._crc32 += manifest.checksums(values)
    stop = self._length + count
    self._array = self._array.resize(
      exclusive_max=[stop], expand_only=True
    ).result()
    self._array[self._length : stop].write(values).result()
    self._length = stop


def token_dtype(vocab_size: int) -> str:
  """Returns the smallest type of the format that holds all ids."""
  return 'uint16' if vocab_size <= 1 << 16 else 'uint32'


def codec(compression: str) -> list[dict[str, Any]]:
  """The codecs of zarr3 that `data.compression` names.

  Raises:
    UsageError: it names none.
  """
  return spec.build('data.compression', compression, COMPRESSIONS)


def none() -> list[dict[str, Any]]:
  """As they are: two or four bytes a token."""
  return []


def zstd(
  level: Annotated[int, ranges.whole(1, 19)] = 3,
) -> list[dict[str, Any]]:
  """Zstandard: smaller on the disk, and where a network is read from."""
  return [{'name': 'zstd', 'configuration': {'level': level}}]


def _metadata(dtype: str, shard: int, compression: str) -> dict:
  checked = [
    {'name': 'bytes', 'configuration': {'endian': 'little'}},
    {'name': 'crc32c'},
  ]
  sharding = {
    'chunk_shape': [_CHUNK],
    'codecs': [checked[0], *codec(compression), checked[1]],
    'index_codecs': checked,
  }
  return {
    'data_type': dtype,
    'shape': [0],
    'fill_value': 0,
    'chunk_grid': {
      'name': 'regular',
      'configuration': {'chunk_shape': [shard]},
    },
    'codecs': [{'name': 'sharding_indexed', 'configuration': sharding}],
  }


COMPRESSIONS = {'none': none, 'zstd': zstd}
