# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which functions of gpt_jax a training step of a config runs: where to read.

The step is traced with a profiler's hook, for shapes alone: no array is made
and nothing is compiled, so that a model of any size takes seconds.
"""

import os
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.costs import totals
from gpt_jax.core.training import compiled
from gpt_jax.core.training import parts as parts_lib

_PACKAGE = pathlib.Path(__file__).parents[1]


class Function(NamedTuple):
  """A function that the step runs, where it is first entered.

  Attributes:
    depth: number of functions of gpt_jax around it.
    name: with its class, as in `Block.__call__`.
    file: relative to the package, as in `core/nn/block.py`.
  """

  depth: int
  name: str
  file: str
  line: int


def functions(config: Config) -> list[Function]:
  """The functions of one training step in order, each where it comes first.

  Args:
    config: of `config_lib.resolve_model`. The step is that of one device: all
      axes of the mesh are set to 1.
  """
  totals.check_vocabulary(config)
  config = config.copy_and_resolve_references()
  config.mesh.update(dict.fromkeys(sharding.AXES, 1))
  mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
  parts = parts_lib.build(config, mesh)
  shape = parts.ramp.stages[-1].shape
  jitted, args = compiled.jit_train_step(parts, shape)
  with sharding.use(parts.mesh, parts.rules), entered() as on_path:
    jitted.trace(*args)
  return on_path


@contextmanager
def entered() -> Iterator[list[Function]]:
  """Lists the functions of gpt_jax that are entered inside, each once."""
  folder = f'{_PACKAGE}{os.sep}'
  on_path: list[Function] = []
  codes: set[types.CodeType] = set()
  stack: list[types.CodeType] = []

  def note(frame: types.FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    # A comprehension or a lambda belongs to the function around it.
    if not code.co_filename.startswith(folder) or code.co_name[0] == '<':
      return
    if code.co_filename == __file__:
      return
    if event == 'return':
      stack.pop()
      return
    if event != 'call':
      return
    if code not in codes:
      codes.add(code)
      on_path.append(_function(code, len(stack)))
    stack.append(code)

  before: Callable[..., Any] | None = sys.getprofile()
  sys.setprofile(note)
  try:
    yield on_path
  finally:
    sys.setprofile(before)


def _function(code: types.CodeType, depth: int) -> Function:
  name = code.co_qualname.replace('.<locals>', '')
  file = pathlib.Path(code.co_filename).relative_to(_PACKAGE)
  return Function(depth, name, file.as_posix(), code.co_firstlineno)


def text(on_path: list[Function]) -> str:
  """Lines for people: the functions, indented, with file:line."""
  names = ['  ' * f.depth + f.name for f in on_path]
  width = max(map(len, names))
  return '\n'.join(
    f'{name:{width}}  gpt_jax/{f.file}:{f.line}' for name, f in zip(names, on_path, strict=True)
  )


def rooms(on_path: list[Function]) -> str:
  """A line for each room that the step enters: its files, in that order."""
  by_room: dict[str, dict[str, None]] = {}
  for function in on_path:
    room, _, file = f'gpt_jax/{function.file}'.rpartition('/')
    by_room.setdefault(room, {})[file.removesuffix('.py')] = None
  width = max(map(len, by_room))
  return '\n'.join(f'{room:{width}}  {" ".join(files)}' for room, files in by_room.items())
