# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Brings the rows of all documents together by their keys, on one machine.

Rows lie on the disk, sorted within each shard; so many keys are looked at
together as fit into memory. Findings are written to the disk.
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from gpt_jax.data.clean import shards
from gpt_jax.data.clean.steps import Findings, Global, Sketches

# Rows looked at together: 24 bytes each, and as much again for sorting.
_ROWS = 1 << 22

NONE = np.empty((2, 0), np.uint64)


def decide(step: Global, folder: str, num_rows: Sequence[int]) -> str:
  """Writes the findings of a step about the shards of a folder.

  Args:
    step: the step.
    folder: of the phase that wrote its rows.
    num_rows: of each shard.

  Returns:
    A hash of them.
  """
  for name in os.listdir(folder):
    if name.startswith('findings-'):  # of a process that was killed here
      os.unlink(os.path.join(folder, name))
  sketches = _sketches(step, folder, len(num_rows))
  num_ranges = -(-sum(num_rows) // _ROWS) or 1
  edges = [(i << 64) // num_ranges for i in range(1, num_ranges)]
  tables = [
    np.load(shards.path(folder, i, shards.ROWS), mmap_mode='r')
    for i in range(len(num_rows))
  ]
  cuts = [
    [0, *np.searchsorted(table[0], np.array(edges, np.uint64)), table.shape[1]]
    for table in tables
  ]
  parts = []
  for i in range(num_ranges):
    some = [t[:, c[i] : c[i + 1]] for t, c in zip(tables, cuts, strict=True)]
    rows = np.concatenate([np.empty((3, 0), np.uint64), *some], axis=1)
    rows = rows[:, np.lexsort(rows[::-1])]
    found = step.judge(rows[0], rows[1], rows[2], sketches)
    if step.concludes:
      parts.append(found)
    else:
      _save(folder, i, found)
  if step.concludes:
    num_ranges = 1
    joined = (np.concatenate(column) for column in zip(*parts, strict=True))
    _save(folder, 0, step.conclude(Findings(*joined)))
  digest = hashlib.sha256()
  for i in range(num_ranges):
    with open(_path(folder, i), 'rb') as file:
      digest.update(hashlib.file_digest(file, 'sha256').digest())
  return digest.hexdigest()


def findings(folder: str, first: int, stop: int) -> np.ndarray:
  """The findings about the places of an interval; uint64 [2, N], sorted."""
  parts, i = [NONE], 0
  while os.path.exists(_path(folder, i)):
    table = np.load(_path(folder, i), mmap_mode='r')
    start, end = np.searchsorted(table[0], np.array([first, stop], np.uint64))
    parts.append(table[:, start:end])
    i += 1
  table = np.concatenate(parts, axis=1)
  return table[:, np.lexsort(table[::-1])]


def _save(folder: str, number: int, found: Findings):
  table = np.stack(found)
  np.save(_path(folder, number), table[:, np.lexsort(table[::-1])])


def _path(folder: str, number: int) -> str:
  return os.path.join(folder, f'findings-{number:05}.npy')


def _sketches(step: Global, folder: str, num_shards: int) -> Sketches:
  """Looks sketches up, which stay on the disk; places are in memory."""
  empty = np.empty((0, step.sketch_size), np.uint32)
  if not step.sketch_size:
    return lambda places: empty
  shard_places = [
    np.load(shards.path(folder, i, shards.PLACES)) for i in range(num_shards)
  ]
  places = np.concatenate([np.empty(0, np.uint64), *shard_places])
  path = os.path.join(folder, 'sketches.npy')
  together = np.lib.format.open_memmap(
    path, 'w+', np.uint32, (len(places), step.sketch_size)
  )
  start = 0
  for i, part in enumerate(shard_places):
    together[start : start + len(part)] = np.load(
      shards.path(folder, i, shards.SKETCHES)
    )
    start += len(part)
  # Shards ascend by place, and so do all together.
  return lambda wanted: together[np.searchsorted(places, wanted)]
