# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The shards of a local checkpoint: who writes each one, and their files.

A file holds shards, then JSON that lists them, with checksums, then the size of
that JSON: a torn write has no such end.
"""

import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from gpt_jax.core.checkpoints.restore import Array
from gpt_jax.core.files import files

_MAGIC = b'gpt_jax1'
# The end of a file: the size of its JSON, and what tells it from others.
_END = 8 + len(_MAGIC)


# Which process writes a shard, and which one gets a copy.


class FailurePlace(NamedTuple):
  """Where a process writes; processes that fail together have the same."""

  machine: str
  slice: int = 0  # of a TPU


class Writers(NamedTuple):
  """The processes that write a shard which they hold, and one that fetches it.

  The latter does so from the first of the others.
  """

  own: tuple[int, ...]
  copy: int | None = None


def ring_step(places: Sequence[FailurePlace]) -> int:
  """How many processes further a copy goes; 0: there is only one machine.

  The smallest step by which most copies go to another slice, or at least to
  another machine.
  """
  machines = np.unique([x.machine for x in places], return_inverse=True)[1]
  slices = np.array([x.slice for x in places])
  several = len({*slices.tolist()}) > 1
  most = len(places) if several else 0, len(places)
  best, found = (0, 0), 0
  for step in range(1, len(places)):
    machine = machines != np.roll(machines, -step)
    other = machine & (slices != np.roll(slices, -step))
    now = int(other.sum()), int(machine.sum())
    if now > best:
      best, found = now, step
    if best == most:
      break
  return found


def assign(
  sizes: Sequence[int], holders: Sequence[Collection[int]], places: Sequence[FailurePlace]
) -> list[Writers]:
  """Who writes each shard, by its size and the processes that hold it.

  The least busy holder does, and the least busy one on another machine, on
  another slice if there is one.
  """
  step, busy = ring_step(places), [0] * len(places)
  found = []
  for size, held in zip(sizes, holders, strict=True):
    first = min(held, key=lambda p: (busy[p], p))
    at = places[first]
    others = [p for p in held if places[p].machine != at.machine]
    copy = None
    if others:
      second = min(others, key=lambda p: (places[p].slice == at.slice, busy[p], p))
      own = first, second
    else:
      own = (first,)
      ring = [(first + step + i) % len(places) for i in range(len(places))]
      copy = next((p for p in ring if places[p].machine != at.machine), None)
    for p in own:
      busy[p] += size
    found.append(Writers(own, copy))
  return found


# The shards of a save.


class ShardManifest(NamedTuple):
  """The arrays of a save and their shards: the same for all processes.

  Shards are numbered array by array, in row-major order; the last one is the
  record of the run.
  """

  run: str
  step: int
  arrays: dict[str, Array]  # with fingerprints
  parts: dict[str, list[int]]  # into how many each axis of an array is split

  @classmethod
  def parse(cls, text: bytes) -> 'ShardManifest':
    """Parses the output of `text`."""
    run, step, arrays, parts = json.loads(text)
    return cls(run, step, {n: Array(*a) for n, a in arrays.items()}, parts)

  def text(self) -> bytes:
    """As JSON."""
    return json.dumps(list(self)).encode()

  @property
  def total(self) -> int:
    """The number of shards."""
    return sum(map(math.prod, self.parts.values())) + 1

  def first(self) -> dict[str, int]:
    """The number of the first shard of each array."""
    counts = map(math.prod, self.parts.values())
    return dict(zip(self.parts, itertools.accumulate(counts, initial=0), strict=False))

  def boxes(self, name: str) -> Iterator[tuple[slice, ...]]:
    """The place of each shard in an array."""
    parts = self.parts[name]
    size = [n // p for n, p in zip(self.arrays[name].shape, parts, strict=True)]
    for at in np.ndindex(*parts):
      yield tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, size, strict=True))

  def name_of(self, number: int) -> str:
    """A shard, in words."""
    for name, first in self.first().items():
      if number < first + math.prod(self.parts[name]):
        return f'part {number - first} of {name}'
    return 'the record of the run'


def number_of(index: Sequence[slice], shape: Sequence[int], parts: list) -> int:
  """The number of a shard in its array, from its place."""
  at = [(i.start or 0) * part // size for i, size, part in zip(index, shape, parts, strict=True)]
  return int(np.ravel_multi_index(at, parts)) if at else 0


def parts_of(x: Any) -> list[int]:
  """Into how many parts each axis of an array is split."""
  shard = x.sharding.shard_shape(x.shape)
  return [n // max(s, 1) for n, s in zip(x.shape, shard, strict=True)]


def missing(total: int, held: Iterable[Iterable[int]]) -> list[int]:
  """The shards of a save that no process has."""
  return sorted({*range(total)}.difference(*held))


def assigned(leaves: Sequence[jax.Array], places: Sequence[FailurePlace]) -> list[Writers]:
  """Who writes each shard of a state, and its record, which process 0 has."""
  known: dict[Any, list[set[int]]] = {}
  sizes, holders = [], []
  for x in leaves:
    parts = parts_of(x)
    key = x.shape, x.sharding
    if key not in known:
      known[key] = [set() for _ in range(math.prod(parts))]
      where = x.sharding.devices_indices_map(x.shape)
      for device, index in where.items():
        number = number_of(index, x.shape, parts)
        known[key][number].add(device.process_index)
    holders += known[key]
    sizes += [x.nbytes // math.prod(parts)] * math.prod(parts)
  return assign([*sizes, 0], [*holders, {0}], places)


# Files of shards.


class File(NamedTuple):
  """A file of shards whose list of contents is sound."""

  path: str
  manifest: ShardManifest
  save: str  # digest of the manifest: names the save
  shards: dict[int, list[int]]  # number -> offset, size, CRC-32

  @classmethod
  def write(cls, path: str, manifest: ShardManifest, shards: Iterable[tuple[int, Any]]) -> 'File':
    """Writes shards, given by number, and reads all of them back.

    Raises:
      OSError: the disk is full, or holds something else than was written.
    """
    text, listed, offset = manifest.text(), {}, 0
    with files.replacing(path) as temporary, open(temporary, 'r+b') as file:
      for number, data in shards:
        view = memoryview(data).cast('B')
        file.write(view)
        listed[number] = [offset, len(view), zlib.crc32(view)]
        offset += len(view)
      contents = json.dumps([text.decode(), [*listed.items()]]).encode()
      digest = hashlib.sha256(contents).hexdigest().encode()
      file.write(digest + contents)
      file.write((len(digest) + len(contents)).to_bytes(8, 'little') + _MAGIC)
    found = cls.read(path)
    if found.shards != listed or found.damaged():
      raise OSError(f'{path}: holds something else than was written')
    return found

  @classmethod
  def read(cls, path: str) -> 'File':
    """Reads the list of contents.

    Raises:
      ValueError: it is cut or changed.
    """
    with open(path, 'rb') as file:
      size = os.fstat(file.fileno()).st_size
      file.seek(max(0, size - _END))
      end = file.read()
      length = int.from_bytes(end[:8], 'little')
      if end[8:] != _MAGIC or length > size - _END:
        raise ValueError('it is cut off')
      file.seek(size - _END - length)
      digest, contents = file.read(64), file.read(length - 64)
    if hashlib.sha256(contents).hexdigest().encode() != digest:
      raise ValueError('its list of shards was changed')
    text, listed = json.loads(contents)
    shards = {number: place for number, place in listed}
    if sum(place[1] for place in shards.values()) != size - _END - length:
      raise ValueError('it is cut off')
    save = hashlib.sha256(text.encode()).hexdigest()
    return cls(path, ShardManifest.parse(text.encode()), save, shards)

  def get(self, number: int) -> bytes:
    """A shard.

    Raises:
      OSError: it was changed.
    """
    with open(self.path, 'rb') as file:
      return self._get(file, number)

  def _get(self, file: BinaryIO, number: int) -> bytes:
    offset, size, crc = self.shards[number]
    file.seek(offset)
    data = file.read(size)
    if zlib.crc32(data) != crc:
      raise OSError(f'{self.path}: {self.manifest.name_of(number)} was changed')
    return data

  def damaged(self) -> list[int]:
    """The numbers of shards that were changed."""
    found = []
    with open(self.path, 'rb') as file:
      for number in self.shards:
        try:
          self._get(file, number)
        except OSError:
          found.append(number)
    return found
