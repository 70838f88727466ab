# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of one config."""

import ast
import functools
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt_jax.core.config import Config, loading
from gpt_jax.ejecting import parts, program

WIDTH = 100


def described(argv: list[str]) -> tuple[str, str]:
  """The title of a config's file, and what it differs in from its ancestor.

  A config of ours begins with the name of its paper, authors and year, and says what differs in
  `DIFFERS`.

  Args:
    argv: the command line.
  """
  given = loading.without_file(['', *argv])[0] or ''
  path, _ = loading.existing(given)
  tree = ast.parse(Path(path).read_text(encoding='utf-8'))
  paper = ' '.join((ast.get_docstring(tree) or '').partition(':')[0].split())
  title = f'{paper}), {given}.' if '(' in paper and ')' not in paper else f'{given}.'
  for node in tree.body:
    match node:
      case ast.Assign(targets=[ast.Name(id='DIFFERS')], value=value):
        return title, ast.literal_eval(value)
  return title, ''


def text(config: Config, title: str, differs: str = '') -> str:
  """The file's text.

  Args:
    config: resolved.
    title: of the recipe: the paper and the config.
    differs: what differs from its ancestor; '': not known.
  """
  recipe = parts.of(config)
  found = program.of(recipe.parts, recipe.constants)
  blocks = [_docstring(title, differs)]
  blocks += ['\n'.join(lines) for lines in found.imports if lines]
  blocks.append(_constants(found.constants, recipe.constants))
  out = '\n\n'.join(blocks) + '\n'
  for name, texts in found.sections.items():
    if name != 'Types.':
      out += f'\n\n# --- {name.removesuffix(".")}\n{texts[0]}'
      texts = texts[1:]
    out += ''.join(f'\n\n{one}' for one in texts)
  out += "\n\nif __name__ == '__main__':\n  main()\n"
  return formatted(out)


# How to run it, and the letters of its comments.
_USE = """
Printed by gpt-jax eject. It needs JAX alone (pip install jax), and tokens that gpt_jax prepared:

  gpt-jax prepare --config CONFIG --out STORE
  python FILE STORE --out run.npz

trains on one device, saves, and writes a sample; started again it resumes. Letters in comments:
B rows, L tokens of a row, M keys, D width, K width of a head, V vocabulary.
"""


def _docstring(title: str, differs: str) -> str:
  lines = textwrap.wrap(f'{differs[0].upper()}{differs[1:]}.', WIDTH) if differs else []
  return '\n'.join([f'"""{title}', *([''] + lines if lines else []), f'{_USE}"""'])


def _constants(names: list[str], values: Mapping[str, Any]) -> str:
  lines = []
  for name in names:
    _, comment = program.recipe()[name]
    line = f'{name} = {literal(values[name])}'
    if comment and len(f'{line}  # {comment}') > WIDTH:
      lines += [f'# {comment[0].upper()}{comment[1:]}.', line]
    else:
      lines.append(f'{line}  # {comment}' if comment else line)
  return '\n'.join(lines)


def literal(value: Any) -> str:
  """A constant as Python's text: long numbers with underscores."""
  if isinstance(value, bool) or not isinstance(value, int | float | tuple | str):
    return repr(value)
  if isinstance(value, tuple):
    return f'({", ".join(map(literal, value))}{"," * (len(value) == 1)})'
  if isinstance(value, str):
    return value
  if isinstance(value, int) and abs(value) >= 10_000:
    return f'{value:_}'
  return re.sub(r'e([-+])0', r'e\1', repr(value))  # 1e-5, not 1e-05


@functools.cache
def _ruff() -> str | None:
  beside = Path(sys.executable).with_name('ruff')
  return str(beside) if beside.exists() else shutil.which('ruff')


SETTINGS = (
  f'line-length={WIDTH}',
  'indent-width=2',
  "format.quote-style='single'",
  'format.skip-magic-trailing-comma=true',
)


def formatted(source: str) -> str:
  """The text as ruff formats it, if it is at hand."""
  ruff = _ruff()
  if ruff is None:
    return source
  settings = [x for setting in SETTINGS for x in ('--config', setting)]
  command = [ruff, 'format', '--isolated', *settings, '--stdin-filename', 'ejected.py', '-']
  done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
  return done.stdout
