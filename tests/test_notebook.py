# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/python.md: its notebook runs, and uses public names that are documented.

Public are the names in the table at its end. Each has a docstring that explains
every argument, what it returns, and its errors.
"""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support import notebook

_ROW = re.compile(r'^\| `(gpt_jax[\w.]*)` \| `([\w.]+)` \| (.*) \|$', re.M)
_ARRAY = re.compile(r'Array|Batch|ndarray')
# An array whose name tells its dimensions, as `tokens_BL`.
_SHAPED = re.compile(r'_[A-Z]+$')


def public():
  """The table: 'MODULE.NAME' to its explanation."""
  _, _, table = notebook.PAGE.read_text().partition(notebook.NAMES)
  return {f'{m}.{name}': about for m, name, about in _ROW.findall(table)}


def found(name):
  """What a dotted name stands for."""
  module, rest = name, []
  while True:
    try:
      value = importlib.import_module(module)
      break
    except ModuleNotFoundError:
      module, _, last = module.rpartition('.')
      rest.insert(0, last)
  for part in rest:
    value = getattr(value, part)
  return value


def used(code):
  """The dotted names of ours that code imports, and takes from modules."""
  tree, names = ast.parse(code), {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module.startswith('gpt_jax'):
      for alias in node.names:
        names[alias.asname or alias.name] = f'{node.module}.{alias.name}'
    elif isinstance(node, ast.Import):
      for alias in node.names:
        assert not alias.name.startswith('gpt_jax'), 'from gpt_jax import ...'
  taken = {
    f'{names[node.value.id]}.{node.attr}'
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute)
    and isinstance(node.value, ast.Name)
    and node.value.id in names
  }
  imported = {n for n in names.values() if not inspect.ismodule(found(n))}
  return imported | taken


def problems(name, value):
  """What the docstring of a public name lacks."""
  text = inspect.getdoc(value) or ''
  if inspect.isclass(value):
    if hasattr(value, '_fields'):
      said = text.partition('Attributes:\n')[2]
      return [x for x in value._fields if f'\n  {x}:' not in f'\n{said}']
    return [] if text and (value.__doc__ or '').strip() else ['a docstring']
  lacking = [x for x in ('Raises:',) if f'{x}\n' not in text]
  signature = inspect.signature(value)
  if not re.search(r'^(Returns|Yields):\n', text, re.M):
    lacking.append('Returns:')
  said = f'\n{text.partition("Args:")[2]}'
  for parameter in signature.parameters.values():
    if parameter.name in ('self', 'cls'):
      continue
    if f'\n  {parameter.name}:' not in said:
      lacking.append(f'the argument {parameter.name}')
    of_arrays = _ARRAY.search(str(parameter.annotation))
    if of_arrays and not _SHAPED.search(parameter.name) and '[' not in text:
      lacking.append(f'the shape of {parameter.name}')
  return lacking


def test_the_notebook_is_that_of_the_page():
  assert notebook.NOTEBOOK.read_text() == notebook.notebook(), (
    'python -m tests.support.notebook > docs/notebook.ipynb'
  )


def test_the_notebook_is_short():
  cells = notebook.cells()
  assert 8 <= len(cells) <= 12
  for cell in cells:
    assert len(cell.code.splitlines()) <= 16


def test_the_notebook_uses_public_names_alone():
  code = '\n'.join(cell.code for cell in notebook.cells())
  assert len(used(code)) > 10
  assert used(code) <= {*public()}


def test_names_that_are_not_public_are_found():
  code = 'from gpt_jax.core import sharding, spec\nsharding.make_mesh(1)\n'
  assert used(code) == {'gpt_jax.core.sharding.make_mesh'}
  code = 'from gpt_jax.core.training.step import train_step as step\n'
  assert used(code) == {'gpt_jax.core.training.step.train_step'}


@pytest.mark.parametrize('name', public())
def test_a_public_name_is_documented(name):
  value = found(name)
  assert not problems(name, value)
  first = inspect.getdoc(value).splitlines()[0]
  assert public()[name] == first.replace('|', '\\|').replace('[', '\\['), first


def test_a_docstring_that_says_less_is_found():
  def short(batch: np.ndarray, key):
    """One line."""

  assert problems('short', short) == [
    'Raises:',
    'Returns:',
    'the argument batch',
    'the shape of batch',
    'the argument key',
  ]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
  env = os.environ | {'PYTHONPATH': str(notebook.ROOT), 'JAX_PLATFORMS': 'cpu'}
  env.pop('XLA_FLAGS', None)  # one device, as on a laptop
  done = subprocess.run(
    [sys.executable, '-m', 'tests.support.notebook', 'run'],
    cwd=tmp_path,
    env=env,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert json.loads(done.stdout) == [c.printed for c in notebook.cells()]
