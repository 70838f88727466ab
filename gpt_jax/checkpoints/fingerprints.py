# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of its arrays: names, shapes, dtypes, fingerprints."""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.optim import host_state

# Names in an error message, of each kind of difference.
SHOWN = 20


def fingerprint(tree: Any) -> np.ndarray:
  """One uint32 for each array: sum of bits[i] * (2 i + 1) modulo 2^32.

  The sum of integers does not depend on its order, hence not on the number of
  devices. A change of any one element always shows, since 2 i + 1 is odd.
  """
  # A function of one array is compiled once for each shape; one program for
  # all would take seconds, in the first save. One after the other: on virtual
  # CPU devices the sums of several at a time wait for each other.
  prints = [np.asarray(_fingerprint(x)) for x in jax.tree.leaves(tree)]
  return np.array(prints, np.uint32)


@jax.jit
def _fingerprint(x: jax.Array) -> jax.Array:
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
  bits = jax.lax.bitcast_convert_type(host_state.near(x), unsigned)
  bits = bits.astype(jnp.uint32)
  # The index of each element in row-major order, built axis by axis so that
  # a sharded array is neither moved nor flattened.
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):
    index = index * jnp.uint32(size)
    index += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  return jnp.sum(bits * (2 * index + 1), dtype=jnp.uint32)


class Running:
  """The fingerprint of an array that comes in parts, in any order.

  `sums[index][...] = part`, where `index` is of leading axes.
  """

  # Elements at a time: their indices take as much memory as they do.
  _STEP = 1 << 20

  def __init__(self, shape: tuple[int, ...]):
    """`shape` is that of the whole array."""
    self._shape = shape
    self._parts: dict[tuple[int, ...], int] = {}

  @property
  def total(self) -> int:
    """The fingerprint, once all parts have come."""
    return sum(self._parts.values()) % 2**32

  def __getitem__(self, index: tuple[int, ...]) -> '_Place':
    """Where a part goes."""
    return _Place(self, index)

  def __setitem__(self, index: Any, part: np.ndarray) -> None:
    """Adds a part; `...` is the whole array."""
    index = () if index is ... else index
    size = math.prod(self._shape[len(index) :])
    leading = self._shape[: len(index)]
    start = int(np.ravel_multi_index(index, leading)) * size if index else 0
    flat = np.ascontiguousarray(part).reshape(-1)
    assert flat.size == size, (flat.shape, self._shape, index)
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[flat.dtype.itemsize]
    bits, total = flat.view(kind), 0
    for at in range(0, size, self._STEP):
      some = bits[at : at + self._STEP].astype(np.uint32)
      odd = np.arange(some.size, dtype=np.uint32) * 2
      odd += np.uint32((2 * (start + at) + 1) % 2**32)
      total += int(np.sum(some * odd, dtype=np.uint32))
    self._parts[index] = total


class _Place(NamedTuple):
  """A part of `Running`, which is written as a view of an array is."""

  sums: Running
  index: tuple[int, ...]

  def __setitem__(self, whole: Any, part: np.ndarray) -> None:
    """`whole` is `...`."""
    self.sums[self.index] = part


class Array(NamedTuple):
  """What a checkpoint says of one array."""

  shape: list[int]
  dtype: str
  fingerprint: int | None = None

  def __str__(self):
    """`float32[64,48]`."""
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


def arrays(state: Any, prints: Iterable[int] | None = None) -> dict[str, Array]:
  """`{'params/embed/embedding': Array, ...}` in the order of the leaves."""
  leaves = jax.tree_util.tree_leaves_with_path(state)
  numbers = [None] * len(leaves) if prints is None else [int(n) for n in prints]
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): Array(
      list(x.shape), str(x.dtype), number
    )
    for (path, x), number in zip(leaves, numbers, strict=True)
  }


class Contents(NamedTuple):
  """What a checkpoint says of itself."""

  arrays: dict[str, Array]
  record: Any = None  # of the run's past, plain JSON; None: it has none


def signed(contents: Contents) -> dict[str, Any]:
  """As JSON, with the checksum of that JSON."""
  rows = {name: list(array) for name, array in contents.arrays.items()}
  return {
    'arrays': rows,
    'record': contents.record,
    'sha256': _digest(rows, contents.record),
  }


def verified(text: str) -> Contents:
  """Reads the JSON text of `signed`, now or before there was a record.

  Raises:
    ValueError: it was changed.
  """
  content = json.loads(text)
  rows, record = content['arrays'], content.get('record')
  if content['sha256'] != _digest(rows, record):
    raise ValueError('the list of checksums was changed')
  return Contents({name: Array(*row) for name, row in rows.items()}, record)


def _digest(rows: dict[str, list], record: Any) -> str:
  # Without a record it is as it was when there were none.
  signed = rows if record is None else [rows, record]
  return hashlib.sha256(json.dumps(signed).encode()).hexdigest()


def difference(saved: dict[str, Array], wanted: dict[str, Array]) -> str:
  """What differs, by name; '' where nothing does."""
  parts = {
    'lacks': [n for n in wanted if n not in saved],
    'has besides': [n for n in saved if n not in wanted],
    'has otherwise': [
      f'{n} ({saved[n]}, not {wanted[n]})'
      for n in wanted
      if n in saved and str(saved[n]) != str(wanted[n])
    ],
  }
  return '; '.join(
    f'{what} {", ".join(names[:SHOWN])}'
    + (f' and {len(names) - SHOWN} more' if len(names) > SHOWN else '')
    for what, names in parts.items()
    if names
  )
