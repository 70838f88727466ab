# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The functions of `gpt_jax.plain` that one recipe uses, specialised to it."""

import ast
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt_jax import plain
from gpt_jax.ejecting import specialise

FOLDER = pathlib.Path(plain.__file__).parent
# In the order of a file that is read from top to bottom.
MODULES = (
  'types',
  'norms',
  'layers',
  'positions',
  'feed_forward',
  'attention',
  'blocks',
  'switch',
  'decoder',
  'encoder',
  'encoder_decoder',
  'initial',
  'losses',
  'optimizers',
  'schedules',
  'store',
  'tokenizer',
  'order',
  'rows',
  'sentences',
  'pairs',
  'corruption',
  'sampling',
  'training',
)
_IMPORTS = {
  'jax': 'import jax',
  'jnp': 'import jax.numpy as jnp',
  'np': 'import numpy as np',
  'Array': 'from jax import Array',
  'Any': 'from typing import Any',
  'partial': 'from functools import partial',
}
_STANDARD = ('argparse', 'functools', 'hashlib', 'json', 'math', 'os', 'time', 'zlib')


class Module(NamedTuple):
  """A module of `plain`.

  Attributes:
    title: the first line of its docstring.
    functions: their texts, by name.
    constants: texts of assignments, by name.
    aliases: a name, and the function that it stands for.
    imported: names as they are elsewhere.
  """

  title: str
  functions: dict[str, str]
  constants: dict[str, str]
  aliases: dict[str, str]
  imported: list[str]


@functools.cache
def module(name: str) -> Module:
  """A module, read from its file."""
  source = specialise.Source((FOLDER / f'{name}.py').read_text(encoding='utf-8'))
  found = Module((ast.get_docstring(source.tree) or '').split('\n')[0], {}, {}, {}, [])
  for node in source.tree.body:
    lines = source.text[source.line(node.lineno) : source.line(node.end_lineno + 1)]  # pyright: ignore
    match node:
      case ast.ImportFrom():
        found.aliases.update({x.asname: x.name for x in node.names if x.asname})
        found.imported.extend(x.name for x in node.names if not x.asname)
      case ast.FunctionDef():
        first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
        start, stop = source.line(first), source.line(node.end_lineno + 1)  # pyright: ignore
        found.functions[node.name] = source.text[start:stop]
      case ast.Assign(targets=[ast.Name(id=given)], value=ast.Name(id=value)) if value.islower():
        found.aliases[given] = value
      case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
        found.aliases.update({a.id: b.id for a, b in zip(names, values, strict=True)})  # pyright: ignore
      case ast.Assign(targets=[ast.Name(id=given)]):
        found.constants[given] = lines
  return found


@functools.cache
def recipe() -> dict[str, tuple[str, str]]:
  """Type and comment of each constant of a recipe, in order."""
  found = {}
  for line in (FOLDER / 'recipe.py').read_text(encoding='utf-8').split('\n'):
    name, colon, rest = line.partition(': ')
    if colon and name.isupper():
      kind, _, value = rest.partition(' = ')
      found[name] = kind, value.partition('  # ')[2]
  return found


class Program(NamedTuple):
  """What a recipe uses.

  Attributes:
    sections: title of a module -> texts of its functions and constants.
    constants: names of the recipe's constants.
    imports: lines of standard libraries, and of others.
  """

  sections: dict[str, list[str]]
  constants: list[str]
  imports: tuple[list[str], list[str]]


def of(parts: Mapping[str, str], constants: Mapping[str, Any]) -> Program:
  """The program of a recipe.

  Args:
    parts: alias -> the function that the recipe takes; others stand for those of GPT-2. A constant
      -> the one that it is equal to.
    constants: the values of all names in `recipe`.
  """
  texts: dict[str, str] = {}
  modules = [name for name in MODULES if (FOLDER / f'{name}.py').exists()]
  fixed = {n: text for name in modules for n, text in module(name).constants.items()}
  assigned = {a: b for name in modules for a, b in module(name).aliases.items()}
  for name in modules:
    found = module(name)
    found = found._replace(
      aliases=found.aliases | {n: assigned[n] for n in found.imported if n in assigned}
    )
    names = found.aliases | {a: b for a, b in parts.items() if a in found.aliases or a.isupper()}
    for function, text in found.functions.items():
      text = specialise.renamed(text, names)
      texts[function] = specialise.folded(text, constants)
  program = specialise.without_unused(_reached(texts))
  program = {name: specialise.folded(text, constants) for name, text in program.items()}
  program = specialise.without_unused(_reached(program))
  used: set[str] = set()
  for text in program.values():
    used |= _names(text)
  while more := {n for name in used & fixed.keys() for n in _names(fixed[name])} - used:
    used |= more
  sections: dict[str, list[str]] = {}
  for name in modules:
    found = module(name)
    kept = [text for n, text in found.constants.items() if n in used]
    kept_functions = [program[n] for n in found.functions if n in program]
    if kept or kept_functions:
      sections[found.title] = ([''.join(kept)] if kept else []) + kept_functions
  standard = [_IMPORTS.get(n, f'import {n}') for n in _STANDARD if n in used]
  standard += [_IMPORTS[n] for n in ('partial', 'Any') if n in used]
  return Program(
    sections,
    [name for name in recipe() if name in used],
    (standard, [_IMPORTS[n] for n in ('jax', 'jnp', 'np', 'Array') if n in used]),
  )


def _names(text: str) -> set[str]:
  """The names that a function, or a constant, takes from outside of it."""
  nodes = [*ast.walk(ast.parse(text))]
  used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
  own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
  return used - own - {n.arg for n in nodes if isinstance(n, ast.arg)}


def _reached(texts: Mapping[str, str]) -> dict[str, str]:
  """The functions that `main` needs, in the order of the modules."""
  reached, waiting = {'main'}, ['main']
  while waiting:
    new = (_names(texts[waiting.pop()]) & texts.keys()) - reached
    reached |= new
    waiting += sorted(new)
  return {name: text for name, text in texts.items() if name in reached}
