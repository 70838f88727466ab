# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which devices a collective of a compiled program connects."""

import math
import re
from typing import Any

import numpy as np
from jax.sharding import Mesh

from gpt_jax.planning.hlo import Instruction


def members(x: Instruction, mesh: Mesh) -> list[int]:
  """Devices of the first group, or of a permutation's first pair.

  Numbered in the mesh's own order. A multi-slice program is that of one slice,
  with the device numbers of the first.
  """
  text = x.attributes
  if found := re.search(r'source_target_pairs=\{\{([\d,{} ]*)\}\}', text):
    pairs = [p.split(',') for p in found[1].replace(' ', '').split('},{')]
    moved = [(int(a), int(b)) for a, b in pairs if int(a) != int(b)]
    return list(moved[0]) if moved else [0]
  if found := re.search(r'replica_groups=\{\{([\d, ]*)\}', text):
    return [int(n) for n in found[1].split(',')]
  if found := re.search(rf'replica_groups=\[([\d,]+)\]<={_ORDER}', text):
    return _ids(found[2], found[3]).reshape(_ints(found[1]))[0].ravel().tolist()
  if found := re.search(
    rf'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_ORDER}\))? '
    r'\{([^}]*)\}',
    text,
  ):
    return _members_by_name(found[1], found[4], found[2], found[3])
  if 'replica_groups={}' in text:
    return list(range(mesh.size))
  raise ValueError(f'{x.name}: groups in a form that is not known')


_ORDER = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'


def _ids(dims: str, order: str | None) -> np.ndarray:
  """`[4,2]T(1,0)`: an iota of this shape, transposed."""
  shape = _ints(dims)
  ids = np.arange(math.prod(shape)).reshape(shape)
  return ids.transpose(_ints(order)) if order else ids


def _members_by_name(
  axes: str, used: str, dims: str | None, order: str | None
) -> list[int]:
  """Parses `'x'=2,'y'=4` with `'y'`, or with part of an axis: `'y':(2)2`."""
  sizes = {a: int(n) for a, n in re.findall(r"'([^']+)'=(\d+)", axes)}
  shape = list(sizes.values())
  ids = _ids(dims or str(math.prod(shape)), order).reshape(shape)
  names = list(sizes)
  chosen: list[Any] = [slice(0, 1)] * len(names)
  for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", used):
    stride = sizes[name] // (int(before) * int(size)) if size else 1
    stop = stride * int(size) if size else None
    chosen[names.index(name)] = slice(0, stop, stride)
  return ids[tuple(chosen)].ravel().tolist()


def _ints(text: str | None) -> list[int]:
  return [int(n) for n in text.split(',')] if text else []


def axes(members: list[int], mesh: Mesh) -> tuple[str, ...]:
  """The axes of the mesh along which the members of a group differ."""
  if len(members) < 2:
    return ('?',)
  at = np.array(np.unravel_index(members, mesh.devices.shape))
  return tuple(
    name
    for name, along in zip(mesh.axis_names, at, strict=True)
    if np.any(along != along[0])
  )
