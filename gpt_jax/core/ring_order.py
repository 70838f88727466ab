# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""In which order keys go round the chips of a TPU slice: by neighbours.

A mesh axis that has several rows of a slice's chips jumps from the end of each
to the beginning of the next. On v5e such a transfer cannot be asynchronous, and
elsewhere it takes several links. An abstract mesh, which JAX has inside of
compiled functions, does not say where its devices are.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import numpy as np
from jax.sharding import Mesh

Cell = tuple[int, ...]
Order = tuple[int, ...] | None

_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar('mesh', default=None)


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
  """Makes `order` know the devices of a mesh."""
  token = _mesh.set(mesh)
  try:
    yield
  finally:
    _mesh.reset(token)


def order(axes: Sequence[str]) -> Order:
  """`along` an axis of the mesh in use; None where there are several."""
  mesh = _mesh.get()
  return along(mesh, axes[0]) if mesh and len(axes) == 1 else None


def along(mesh: Mesh, axis: str) -> Order:
  """Places along a mesh axis, each a direct neighbour of the one before.

  The last is a neighbour of the first, too. None: nothing is known of the
  devices, or there is no such order but, at best, that of the axis.
  """
  at = mesh.axis_names.index(axis)
  groups = np.moveaxis(mesh.devices, at, -1).reshape(-1, mesh.devices.shape[at])
  if not hasattr(groups[0, 0], 'coords'):
    return None
  coords = np.array([[device.coords for device in group] for group in groups])
  coords -= coords.min(axis=1, keepdims=True)
  if np.any(coords != coords[:1]):
    return None
  places = {tuple(map(int, x)): i for i, x in enumerate(coords[0])}
  shape = tuple(map(int, coords[0].max(axis=0) + 1))
  found = cycle(shape)
  if found is None or set(found) != set(places) or len(places) != len(found):
    return None
  return tuple(places[cell] for cell in found)


def cycle(shape: Sequence[int]) -> list[Cell] | None:
  """All cells of a box, each a neighbour of the next, the last of the first.

  None: there is none, or only round the ends of the one dimension there is.
  """
  dims = [i for i, size in enumerate(shape) if size > 1]
  even = [i for i in dims if shape[i] % 2 == 0]
  if len(dims) < 2 or not even:
    return None
  # A path through the other dimensions makes them one: two are left.
  across = even[0]
  path = snake([1 if i == across else size for i, size in enumerate(shape)])
  first, others = path[0], path[1:]
  cells = []
  for row in range(shape[across]):
    columns = others if row % 2 == 0 else others[::-1]
    cells += [(row, column) for column in columns]
  cells += [(row, first) for row in reversed(range(shape[across]))]
  return [(*column[:across], row, *column[across + 1 :]) for row, column in cells]


def snake(shape: Sequence[int]) -> list[Cell]:
  """All cells of a box, each a neighbour of the next."""
  if not shape:
    return [()]
  rest = snake(shape[1:])
  return [(i, *cell) for i in range(shape[0]) for cell in (rest if i % 2 == 0 else rest[::-1])]
