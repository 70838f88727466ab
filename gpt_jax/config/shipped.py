# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The configs that come with gpt_jax: `configs/` of a clone, or of a wheel.

A config of the user's own starts from one of them with `from configs import
smoke`, wherever it lies, and imports what lies beside it. It shadows nothing:
ours, and whatever is installed, come first.
"""

import contextlib
import filecmp
import glob
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from gpt_jax.spec import UsageError

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAME = 'configs'
# Its folders.
_PACKAGES = (_NAME, f'{_NAME}.finetune')


def root() -> str:
  """The folder in which `configs/` lies, '' if it was not installed."""
  # In a wheel inside of the package, in a clone beside it.
  for folder in (os.path.join(_ROOT, 'shipped'), os.path.dirname(_ROOT)):
    if os.path.isfile(os.path.join(folder, _NAME, 'base.py')):
      return folder
  return ''


def find(path: str) -> str:
  """The path of 'configs/gpt2.py' among ours, '' if there is none."""
  if os.path.isabs(path) or not path.startswith(f'{_NAME}/'):
    return ''
  found = os.path.join(root(), path)
  return found if root() and os.path.isfile(found) else ''


def papers() -> dict[str, ModuleType]:
  """Our configs that say what a paper `DIFFERS` in, by file name, sorted."""
  found = {}
  with importable():
    for file in sorted(glob.glob(os.path.join(root(), _NAME, '*.py'))):
      name = os.path.basename(file).removesuffix('.py')
      module = importlib.import_module(f'{_NAME}.{name}')
      if hasattr(module, 'DIFFERS'):
        found[name] = module
  return found


@contextlib.contextmanager
def importable(file: str = '') -> Iterator[None]:
  """Lets what is run inside import our configs, and what lies beside a config.

  Beside a config in a folder `configs`, or in a folder of it, lie the modules
  of that folder: `from configs import x` finds them after ours. What was
  imported is forgotten at the end, since the helpers of the next config may
  have the same names.

  Args:
    file: the config file of the user; '': there is none.

  Raises:
    UsageError: a config of ours was imported, and beside `file` lies another
      of the same name.
  """
  folder = os.path.dirname(os.path.abspath(file)) if file else ''
  ours = os.path.join(root(), _NAME) if root() else ''
  own = _own_configs(folder, ours)
  kept = {name: sys.modules.pop(name) for name in _imported()}
  before = {*sys.modules}
  for name in _PACKAGES:
    inside = name.split('.')[1:]
    found = [os.path.join(part, *inside) for part in (ours, own) if part]
    sys.modules[name] = _package(name, found)
  if folder:
    # At the end, where it shadows neither Python's modules nor installed ones.
    sys.path.append(folder)
  importlib.invalidate_caches()
  try:
    yield
    _check_names(file, ours, own)
  finally:
    if folder in sys.path:  # the config may have changed it
      last = len(sys.path) - 1 - sys.path[::-1].index(folder)
      del sys.path[last]
    beside = [
      name
      for name in {*sys.modules} - before
      if _lies_in(name.partition('.')[0], folder)
    ]
    for name in {*_imported(), *beside}:
      del sys.modules[name]
    sys.modules.update(kept)


def _own_configs(folder: str, ours: str) -> str:
  """The user's folder `configs` that a config file lies in, or ''."""
  for part in (folder, os.path.dirname(folder)):
    if os.path.basename(part) == _NAME:
      return '' if os.path.realpath(part) == os.path.realpath(ours) else part
  return ''


def _package(name: str, folders: list[str]) -> ModuleType:
  """A package of the modules in some folders; no `__init__.py` is run."""
  spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
  spec.submodule_search_locations = folders
  return importlib.util.module_from_spec(spec)


def _imported() -> list[str]:
  """The names of `configs` and of what was imported of it."""
  return [name for name in sys.modules if name.partition('.')[0] == _NAME]


def _lies_in(name: str, folder: str) -> bool:
  """Whether a module or package was found in a folder."""
  spec = getattr(sys.modules.get(name), '__spec__', None)
  if spec is None or not folder:
    return False
  where = spec.submodule_search_locations
  found = [spec.origin] if where is None else where
  return any(part and os.path.dirname(part) == folder for part in found)


def _check_names(file: str, ours: str, own: str) -> None:
  """Refuses another file of the name of a config of ours that was imported."""
  for name in _imported() if own else []:
    if name in _PACKAGES:
      continue
    path = os.path.join(*name.split('.')[1:]) + '.py'
    mine, other = os.path.join(ours, path), os.path.join(own, path)
    if not os.path.isfile(mine) or not os.path.isfile(other):
      continue
    # A config may start from ours of its own name.
    if os.path.samefile(other, file) or filecmp.cmp(mine, other, shallow=False):
      continue
    raise UsageError(
      f'--config={file}: imports {name}, which is {mine}, and beside it lies '
      f'another, {other}; give that another name'
    )
