# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How Orbax lists and writes checkpoints, damaged ones among them.

Each process writes its arrays into a database of its own; at the end of the
save Orbax merges these into one, which readers open. It finds the databases by
a glob of their whole path, so that in a folder called `[a]` it found none, and
took the save for done. Nothing is deleted before a save is done: where the
merge fails, the older checkpoints stay.
"""

import dataclasses
import datetime
import glob
import os
from collections.abc import Iterator
from typing import Any

import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from etils.epath import gpath

# How Orbax names the databases of the processes.
_PROCESS = 'ocdbt.process_'


class _Literal(gpath.PosixGPath):
  """See `literal`."""

  def glob(self, pattern: str) -> Iterator[Any]:
    """Yields the files in it that match."""
    for name in glob.glob(pattern, root_dir=os.fspath(self)):
      yield self / name


@dataclasses.dataclass(frozen=True)
class _Step(ocp.path.step.Metadata):
  """A checkpoint, whose time Orbax need not read from a file: any will do."""

  @property
  def commit_timestamp(self) -> datetime.datetime:
    """The same for all."""
    return datetime.datetime.fromtimestamp(0, datetime.UTC)


class Names(ocp.path.step.NameFormat[ocp.path.step.Metadata]):
  """Checkpoints are named by their steps.

  Orbax's own reads a file of each checkpoint when it lists them, so that one
  damaged file would hide them all.
  """

  _named = ocp.path.step.standard_name_format()

  def build_name(self, step: int) -> str:
    """The name of a step's folder."""
    return self._named.build_name(step)

  def find_all(
    self, base_path: epath.PathLike
  ) -> Iterator[ocp.path.step.Metadata]:
    """Those that came to their end."""
    for found in self._named.find_all(base_path):
      yield _Step(found.step, found.path)

  def find_step(
    self, base_path: epath.PathLike, step: int
  ) -> ocp.path.step.Metadata:
    """That of a step; raises ValueError where there is none."""
    found = self._named.find_step(base_path, step)
    return _Step(found.step, found.path)


class Handler(ocp.PyTreeCheckpointHandler):
  """Of trees of arrays; looks at what it merged before the save counts."""

  def finalize(self, directory: epath.Path) -> None:
    """Merges, and checks that all arrays are found.

    Args:
      directory: of the arrays, not yet under its final name.

    Raises:
      OSError: the merged database lacks what a process wrote.
    """
    super().finalize(literal(directory))
    merged = _keys(directory)
    parts = [p for p in directory.iterdir() if p.name.startswith(_PROCESS)]
    lost = {key for part in parts for key in _keys(part)} - merged
    if lost or not merged:
      raise OSError(f'not all arrays were merged in {directory}')


def registry(handler: Handler) -> Any:
  """Which handlers save a checkpoint's `state` and `checksums`."""
  made = ocp.handlers.DefaultCheckpointHandlerRegistry()
  made.add('state', ocp.args.PyTreeSave, handler)
  made.add('checksums', ocp.args.JsonSave, ocp.JsonCheckpointHandler())
  return made


def literal(folder: epath.Path) -> epath.Path:
  """The folder, in whose own path no character is a pattern."""
  return folder if is_url(folder) else _Literal(folder)


def is_url(path: epath.PathLike) -> bool:
  """Tells a URL from a path of this machine."""
  return '://' in os.fspath(path)


def database(folder: epath.PathLike) -> dict[str, Any]:
  """TensorStore's spec of the database in a folder.

  A path stands in a spec as it is; in a URL, % and # would mean something.
  """
  path = f'{os.fspath(folder)}/'
  base = path if is_url(path) else {'driver': 'file', 'path': path}
  return {'driver': 'ocdbt', 'base': base}


def _keys(folder: epath.Path) -> set[bytes]:
  return set(ts.KvStore.open(database(folder)).result().list().result())
