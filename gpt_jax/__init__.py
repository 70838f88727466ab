# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""gpt_jax: pre-training language models with JAX and Flax on TPUs.

Modules of the core have a public name without `core`, which is stable
(docs/python.md): `gpt_jax.training.run` is `gpt_jax.core.training.run`. The
package itself uses the full names.
"""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
from collections.abc import Sequence

_CORE = frozenset(
  path.stem
  for path in pathlib.Path(__file__).with_name('core').iterdir()
  if path.stem.isidentifier() and not path.stem.startswith('_')
)
# Public modules that are no part of the core.
_ELSEWHERE = {
  'training.models': 'opening.models',
  'posttraining': 'tuning',
  'posttraining.records': 'tuning.records',
}


class _PublicNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds `gpt_jax.X` as `gpt_jax.core.X`: one module under two names."""

  def find_spec(
    self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    package, _, rest = fullname.partition('.')
    if package != __name__:
      return None
    if rest not in _ELSEWHERE and rest.partition('.')[0] not in _CORE:
      return None
    return importlib.machinery.ModuleSpec(fullname, self)

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
    name = spec.name.removeprefix(f'{__name__}.')
    place = _ELSEWHERE.get(name, f'core.{name}')
    module = importlib.import_module(f'{__name__}.{place}')
    spec.loader_state = module.__spec__
    return module

  def exec_module(self, module: types.ModuleType) -> None:
    """Its code has run; the import has replaced its specification."""
    spec = module.__spec__
    module.__spec__ = spec.loader_state if spec else None


sys.meta_path.insert(0, _PublicNames())
