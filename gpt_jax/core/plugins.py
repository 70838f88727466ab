# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows that papers and wings add to the core's tables.

The core has the choices of GPT, LLaMA and Switch. Each other paper is a folder
of `papers/`, and each wing a folder beside them; its file `choices.py` has

  ROWS = {'schedule.name': {'noam': 'gpt_jax.papers.NAME.schedules:noam'}}

by the field that names a choice. The files hold names alone, and all of them
are read; what they name is imported when a config or a device asks for it.
"""

import functools
import importlib
import pathlib
from collections.abc import Mapping

_PACKAGE = pathlib.Path(__file__).parents[1]


@functools.cache
def rows(field: str) -> Mapping[str, str]:
  """'module:attribute' of each choice that folders add for a field."""
  added: dict[str, str] = {}
  for folder in _folders():
    table = importlib.import_module(f'{folder}.choices').ROWS.get(field, {})
    if twice := sorted(table.keys() & added):
      raise ValueError(f'{field}: two folders have a choice {twice[0]}')
    added |= table
  return added


def _folders() -> list[str]:
  """The full names of all folders that add choices, sorted."""
  files = [*_PACKAGE.glob('*/choices.py'), *_PACKAGE.glob('papers/*/choices.py')]
  names = [file.parent.relative_to(_PACKAGE.parent).parts for file in files]
  return sorted(map('.'.join, names))
