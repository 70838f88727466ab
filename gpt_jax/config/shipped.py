# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The configs that come with gpt_jax: `configs/` of a clone, or of a wheel.

A config of the user's own starts from one of them with `from configs import
smoke`, wherever it lies. `configs` is a namespace package, one name for several
folders: a file of the user's own comes before one of ours of the same name.
"""

import importlib
import os
import sys

from gpt_jax.spec import UsageError

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def root() -> str:
  """The folder in which `configs/` lies, '' if it was not installed."""
  # In a wheel inside of the package, in a clone beside it.
  for folder in (os.path.join(_ROOT, 'shipped'), os.path.dirname(_ROOT)):
    if os.path.isfile(os.path.join(folder, 'configs', 'base.py')):
      return folder
  return ''


def find(path: str) -> str:
  """The path of 'configs/gpt2.py' among ours, '' if there is none."""
  if os.path.isabs(path) or not path.startswith('configs/'):
    return ''
  found = os.path.join(root(), path)
  return found if root() and os.path.isfile(found) else ''


def importable(first: str) -> None:
  """Makes `from configs import ...` find the user's files, and then ours.

  Args:
    first: the folder in which the user's `configs/` lies, or would.

  Raises:
    UsageError: the user's configs/__init__.py fails.
  """
  if first in sys.path:
    sys.path.remove(first)
  sys.path.insert(0, first)
  ours = root()
  if not ours:
    return
  if ours not in sys.path:
    sys.path.append(ours)
  importlib.invalidate_caches()
  try:
    package = importlib.import_module('configs')
  except Exception as e:
    raise UsageError(
      f'{first}/configs/__init__.py: {type(e).__name__}: {e}; mend it'
    ) from e
  folder = os.path.join(ours, 'configs')
  if folder not in package.__path__:
    # A package of the user's own, with an __init__.py, is one folder.
    package.__path__.append(folder)
