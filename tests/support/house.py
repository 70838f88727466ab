# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts what a reader of the package meets: `make house`.

Sizes of the rooms, modules with a single importer, functions with a single
caller, and what a tiny GPT-2 runs on its way from a config to a traced training
step. It shows where an idea is spread over too many places. Run it before and
after a change of the structure:

  make house
  python -m tests.support.house --list importers   # names instead of counts
"""

import argparse
import ast
import collections
import functools
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / 'gpt_jax'
LISTS = ('importers', 'callers', 'step', 'forward', 'upwards')


def module_name(path: pathlib.Path) -> str:
  """`gpt_jax.nn.attention`; of a package's `__init__.py` the package."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


@functools.cache
def trees() -> dict[str, ast.Module]:
  """The syntax tree of each module of the package, by its full name."""
  return {
    module_name(path): ast.parse(path.read_text(encoding='utf-8'))
    for path in sorted(PACKAGE.rglob('*.py'))
  }


def num_lines(folder: pathlib.Path) -> int:
  """Lines of all Python files below a folder."""
  return sum(
    len(path.read_text(encoding='utf-8').splitlines())
    for path in folder.rglob('*.py')
  )


@functools.cache
def bindings(module: str) -> dict[str, str]:
  """What a module's imports bind: local name to the full name it stands for."""
  found = {}
  for node in ast.walk(trees()[module]):
    if isinstance(node, ast.Import):
      for alias in node.names:
        found[alias.asname or alias.name.partition('.')[0]] = alias.name
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        found[alias.asname or alias.name] = f'{node.module}.{alias.name}'
  return found


def imported_modules(module: str) -> set[str]:
  """The modules of the package that a module imports, or takes names from."""
  found = set()
  for full in bindings(module).values():
    known = full if full in trees() else full.rpartition('.')[0]
    if known in trees() and known != module:
      found.add(known)
  return found


def importers() -> dict[str, set[str]]:
  """The modules that import each module."""
  found = collections.defaultdict(set)
  for module in trees():
    for other in imported_modules(module):
      found[other].add(module)
  return found


def in_a_table(module: str, importer: str) -> bool:
  """Whether an importer uses a module as a row of one of its tables.

  A table is a dict or tuple in capitals at the top level of a module.
  """
  tables = (
    node.value
    for node in trees()[importer].body
    if isinstance(node, ast.Assign | ast.AnnAssign)
    and isinstance(node.value, ast.Dict | ast.Tuple)
  )
  names = {
    name
    for name, full in bindings(importer).items()
    if module in (full, full.rpartition('.')[0])
  }
  return any(
    isinstance(node, ast.Name) and node.id in names
    for table in tables
    for node in ast.walk(table)
  )


def single_importers() -> list[str]:
  """Modules with exactly one importer, commands and rows of tables aside."""
  return [
    f'{module}  <- {importer}'
    for module, (importer, *others) in sorted(importers().items())
    if not others
    and not module.startswith('gpt_jax.commands')
    and not in_a_table(module, importer)
  ]


def _references(module: str) -> Iterator[tuple[str, str]]:
  """(top-level definition around it, full name) of each name that is used."""
  bound = bindings(module)
  for top in trees()[module].body:
    owner = getattr(top, 'name', '')
    for node in ast.walk(top):
      if isinstance(node, ast.Name):
        yield owner, bound.get(node.id, f'{module}.{node.id}')
      elif isinstance(node, ast.Attribute):
        path = ast.unparse(node)
        first, _, rest = path.partition('.')
        if first in bound and rest:
          yield owner, f'{bound[first]}.{rest}'


def single_callers() -> list[str]:
  """Top-level functions that exactly one place of the package refers to."""
  functions = {
    f'{module}.{node.name}'
    for module, tree in trees().items()
    for node in tree.body
    if isinstance(node, ast.FunctionDef)
  }
  used = collections.Counter(
    full
    for module in trees()
    for owner, full in _references(module)
    if full in functions and full != f'{module}.{owner}'
  )
  return sorted(name for name in functions if used[name] == 1)


def upward_imports() -> list[str]:
  """Imports of a room from its own floor or from one above it."""
  from tests.test_imports import FLOOR

  def room(module: str) -> str:
    return module.split('.')[1]

  return [
    f'{module} -> {other}'
    for module in trees()
    if '.' in module
    for other in sorted(imported_modules(module))
    if '.' in other
    and room(other) != room(module)
    and FLOOR[room(other)] >= FLOOR[room(module)]
  ]


@contextmanager
def entered() -> Iterator[set[str]]:
  """The files of the package whose functions run inside, and class bodies."""
  files = set()

  def note(frame: Any, event: str, _: Any) -> None:
    code = frame.f_code
    if event == 'call' and code.co_name != '<module>':
      files.add(code.co_filename)

  inside = f'{PACKAGE}{os.sep}'
  found: set[str] = set()
  sys.setprofile(note)
  try:
    yield found
  finally:
    sys.setprofile(None)
    found |= {os.path.relpath(f, ROOT) for f in files if f.startswith(inside)}


@contextmanager
def parsed() -> Iterator[list[str]]:
  """The fields whose call-strings are parsed inside, not taken from memory."""
  from gpt_jax import spec

  fields: list[str] = []
  parse = spec.parse
  spec._parsed.cache_clear()

  def counted(field: str, text: str) -> Any:
    before = spec._parsed.cache_info().misses
    found = parse(field, text)
    fields.extend([field] * (spec._parsed.cache_info().misses - before))
    return found

  spec.parse = counted
  try:
    yield fields
  finally:
    spec.parse = parse


def journeys() -> tuple[set[str], set[str], list[str]]:
  """Traces a tiny GPT-2: files of a step and of a forward pass, and parses.

  Returns:
    The files run from `resolve` to one traced training step, those that its
    forward pass enters, and the fields whose call-strings were parsed on the
    way to the step.
  """
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  # Imported here: counting lines needs no JAX.
  import jax
  import numpy as np

  from configs import gpt2
  from gpt_jax import config as config_lib
  from gpt_jax import sharding
  from gpt_jax.training import compiled
  from gpt_jax.training import parts as parts_lib

  config = gpt2.get_config('small').unlock()
  config.model.update(
    {'num_layers': 2, 'd_model': 32, 'num_heads': 2, 'context_length': 16}
  )
  config.batch.update({'size': 2, 'micro_rows': 2})
  with entered() as of_step, parsed() as fields:
    parts = parts_lib.build(config_lib.resolve(config))
    compiled.compile_train_step(parts)
  state = parts_lib.abstract_state(parts)
  rows = np.zeros((2, 16), np.int32)
  with entered() as of_forward, sharding.use(parts.mesh, parts.rules):
    jax.eval_shape(parts.model.apply, {'params': state.params}, rows)
  return of_step, of_forward, fields


def room_sizes() -> list[tuple[str, int, int]]:
  """(room, files, lines) of each folder of the package, largest first."""
  rooms = [f for f in PACKAGE.iterdir() if (f / '__init__.py').is_file()]
  sizes = [
    (room.name, len([*room.rglob('*.py')]), num_lines(room)) for room in rooms
  ]
  return sorted(sizes, key=lambda size: -size[2])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument(
    '--list', choices=LISTS, help='print the names behind one of the counts'
  )
  args = parser.parse_args()
  of_step, of_forward, fields = journeys()
  lists: dict[str, list[str]] = {
    'importers': single_importers(),
    'callers': single_callers(),
    'step': sorted(of_step),
    'forward': sorted(of_forward),
    'upwards': upward_imports(),
  }
  if args.list:
    print(*lists[args.list], sep='\n')
    return
  for room, files, lines in room_sizes():
    print(f'  {room:14} {files:4} files {lines:7,} lines')
  repeated = collections.Counter(fields)
  rows = {
    'files of gpt_jax': len(trees()),
    'lines of gpt_jax': num_lines(PACKAGE),
    'files of tests': len([*(ROOT / 'tests').rglob('*.py')]),
    'lines of tests': num_lines(ROOT / 'tests'),
    'modules with one importer': len(lists['importers']),
    'functions with one caller': len(lists['callers']),
    'files run from resolve to one traced step': len(of_step),
    'files entered by a forward pass': len(of_forward),
    'call-strings parsed on the way to the step': len(fields),
    'most often parsed': ' '.join(map(str, repeated.most_common(1)[0])),
    'imports upwards': len(lists['upwards']),
  }
  for name, value in rows.items():
    shown = f'{value:,}' if isinstance(value, int) else value
    print(f'{name:44} {shown}')


if __name__ == '__main__':
  main()
