# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts what a reader of the package meets: `make house`.

Sizes of the core, of each paper and of each wing; closures: all files that a
module leads to by its imports, those inside functions too; names of papers in
the core; names that say nothing; and what a tiny GPT-2 runs on its way from a
config to a traced training step. Run it before and after a change of the
structure:

  make house
  python -m tests.support.house --list importers   # names instead of counts
"""

import argparse
import ast
import collections
import functools
import os
import pathlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / 'gpt_jax'
LISTS = ('importers', 'callers', 'step', 'forward', 'upwards', 'papers', 'words', 'classes')
# Whose closures are counted.
STARTS = ('commands.train', 'core.training.loop', 'core.training.step', 'core.nn.transformer')
MODEL = ('transformer', 'stack', 'block', 'attention', 'attend')
# A name of one of these says how a thing came about, not what it is.
WORDS = frozenset(
  ('found', 'given', 'own', 'known', 'made') + ('taken', 'seen', 'drawn', 'kept', 'wanted')
)
# Folders of papers whose names are the core's words too: its model is a
# `Transformer`, and texts consist of characters.
COMMON = frozenset(('transformer', 'char'))


def module_name(path: pathlib.Path) -> str:
  """`gpt_jax.core.nn.attention`; of a package's `__init__.py` the package."""
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
  return sum(len(path.read_text(encoding='utf-8').splitlines()) for path in folder.rglob('*.py'))


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
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict | ast.Tuple)
  )
  names = {
    name for name, full in bindings(importer).items() if module in (full, full.rpartition('.')[0])
  }
  return any(
    isinstance(node, ast.Name) and node.id in names for table in tables for node in ast.walk(table)
  )


def single_importers() -> list[str]:
  """Modules with exactly one importer, commands and rows of tables aside."""
  return [
    f'{module}  <- {importer}'
    for module, (importer, *others) in sorted(importers().items())
    if not others and not module.startswith('gpt_jax.commands') and not in_a_table(module, importer)
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
  from tests import test_imports

  return [
    f'{test_imports.name(path)} -> {other}'
    for path in test_imports.FILES
    for other in sorted(test_imports.above(path))
  ]


def closure(module: str) -> set[str]:
  """All modules that the imports of a module lead to, and itself."""
  reached: set[str] = set()
  ahead = [module]
  while ahead:
    name = ahead.pop()
    if name not in reached:
      reached.add(name)
      ahead.extend(imported_modules(name))
  return reached


def lines_of(modules: set[str]) -> int:
  """Lines of some modules."""
  files = {module_name(path): path for path in PACKAGE.rglob('*.py')}
  return sum(len(files[m].read_text('utf-8').splitlines()) for m in modules)


def paper_names() -> list[str]:
  """Code of the core that names a paper: identifiers and texts.

  Comments and docstrings cite papers, and are left out.
  """
  folders = {f.name for f in (PACKAGE / 'papers').iterdir() if (f / '__init__.py').exists()}
  name = re.compile(rf'(?<![a-z])({"|".join(sorted(folders - COMMON))})(?![a-z])', re.IGNORECASE)
  places = []
  for module, tree in trees().items():
    if not module.startswith('gpt_jax.core.'):
      continue
    docs = {
      id(node.body[0].value)
      for node in ast.walk(tree)
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
      and node.body
      and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
      for text in _texts(node) if id(node) not in docs else ():
        if match := name.search(text):
          places.append(f'{module}:{getattr(node, "lineno", 0)}  {match[0]}')
  return places


def _texts(node: ast.AST) -> Iterator[str]:
  """The identifiers and texts that stand in a node itself."""
  for field in ('id', 'attr', 'arg', 'name', 'module', 'asname', 'value'):
    if isinstance(text := getattr(node, field, None), str):
      yield text


def empty_names() -> list[str]:
  """Assignments to one of `WORDS`."""
  return [
    f'{module}:{node.lineno}  {node.id}'
    for module, tree in trees().items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in WORDS
  ]


def repeated_classes() -> list[str]:
  """Names of classes that stand in two or more modules."""
  places = collections.defaultdict(list)
  for module, tree in trees().items():
    for node in tree.body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
        places[node.name].append(module)
  return [
    f'{name}: {", ".join(modules)}' for name, modules in sorted(places.items()) if len(modules) > 1
  ]


@contextmanager
def entered() -> Iterator[set[str]]:
  """The files of the package whose functions run inside."""
  from gpt_jax.reports import step_path

  files: set[str] = set()
  with step_path.entered() as functions:
    yield files
  files |= {f'{PACKAGE.name}/{function.file}' for function in functions}


@contextmanager
def parsed() -> Iterator[list[str]]:
  """The fields whose call-strings are parsed inside, not taken from memory."""
  from gpt_jax.core import spec

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
  from gpt_jax.core import config as config_lib
  from gpt_jax.core import sharding
  from gpt_jax.core.training import compiled
  from gpt_jax.core.training import parts as parts_lib

  config = gpt2.get_config('small').unlock()
  config.model.update({'num_layers': 2, 'd_model': 32, 'num_heads': 2, 'context_length': 16})
  config.batch.update({'size': 2, 'micro_rows': 2})
  with entered() as of_step, parsed() as fields:
    parts = parts_lib.build(config_lib.resolve(config))
    compiled.compile_train_step(parts)
  state = parts_lib.abstract_state(parts)
  rows = np.zeros((2, 16), np.int32)
  with entered() as of_forward, sharding.use(parts.mesh, parts.rules):
    jax.eval_shape(parts.model.apply, {'params': state.params}, rows)
  return of_step, of_forward, fields


def sizes(folder: pathlib.Path) -> list[tuple[str, int, int]]:
  """(name, files, lines) of each package in a folder, largest first."""
  packages = [f for f in folder.iterdir() if (f / '__init__.py').is_file()]
  counts = [
    (package.name, len([*package.rglob('*.py')]), num_lines(package)) for package in packages
  ]
  return sorted(counts, key=lambda count: -count[2])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--list', choices=LISTS, help='print the names behind one of the counts')
  args = parser.parse_args()
  of_step, of_forward, fields = journeys()
  lists: dict[str, list[str]] = {
    'importers': single_importers(),
    'callers': single_callers(),
    'step': sorted(of_step),
    'forward': sorted(of_forward),
    'upwards': upward_imports(),
    'papers': paper_names(),
    'words': empty_names(),
    'classes': repeated_classes(),
  }
  if args.list:
    print(*lists[args.list], sep='\n')
    return
  for folder in ('', 'core', 'papers'):
    print(f'gpt_jax/{folder}')
    for name, files, lines in sizes(PACKAGE / folder):
      print(f'  {name:14} {files:4} files {lines:7,} lines')
  print('what the imports of a module lead to')
  for start in STARTS:
    modules = closure(f'gpt_jax.{start}')
    count, lines = len(modules), lines_of(modules)
    print(f'  {start:20} {count:4} files {lines:7,} lines')
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
    'lines of transformer, stack, block, attention, attend': lines_of(
      {f'gpt_jax.core.nn.{name}' for name in MODEL}
    ),
    'names of papers in the core': len(lists['papers']),
    'assignments to found, given, own ...': len(lists['words']),
    'class names used twice or more': len(lists['classes']),
  }
  for name, value in rows.items():
    shown = f'{value:,}' if isinstance(value, int) else value
    print(f'{name:66} {shown}')


if __name__ == '__main__':
  main()
