# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters by patterns of their paths: 'encoder/*, embed/embedding'.

A path is what `gpt-jax inspect` shows. In a stack the parameters of all layers
of one place are in one array; entry i of it is also called by i, which stands
after `periods`: 'encoder/periods/0/block_0/attention/*' is the first layer's.
"""

import fnmatch
from typing import Any

import jax
import numpy as np

from gpt_jax.spec import UsageError


def name_of(path: Any) -> str:
  """A path through a tree of parameters as `inspect` shows it."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def matching(params: Any, patterns: str) -> Any:
  """For each parameter where one of the patterns names it.

  Args:
    params: real or abstract.
    patterns: with commas between them; * stands for any text, as in a shell,
      and for / too.

  Returns:
    A tree of bool arrays that broadcast with the parameters.
  """
  wanted = _split(patterns)

  def mask(path: Any, leaf: Any) -> np.ndarray:
    entries = [_named(names, wanted) for names in _names(path, leaf)]
    hits = np.array([bool(found) for found in entries])
    return hits.reshape(-1, *[1] * (leaf.ndim - 1)) if leaf.ndim else hits[0]

  return jax.tree_util.tree_map_with_path(mask, params)


def check(params: Any, patterns: str, field: str) -> None:
  """Checks that each pattern names a parameter.

  Args:
    params: as in `matching`.
    patterns: as there.
    field: that has them.
  """
  wanted = _split(patterns)
  named = {
    pattern
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    for names in _names(path, leaf)
    for pattern in _named(names, wanted)
  }
  for pattern in wanted:
    if pattern not in named:
      raise UsageError(
        f'{field}={patterns!r}: no parameter is called {pattern!r}; gpt-jax '
        'inspect lists their names'
      )


def _split(patterns: str) -> list[str]:
  return [p.strip() for p in patterns.split(',') if p.strip()]


def _names(path: Any, leaf: Any) -> list[tuple[str, ...]]:
  """What the entries along the first axis are called; one for all of them."""
  name = name_of(path)
  before, periods, after = name.partition('/periods/')
  if not periods:
    return [(name,)]
  each = range(leaf.shape[0])
  return [(name, f'{before}/periods/{i}/{after}') for i in each]


def _named(names: tuple[str, ...], wanted: list[str]) -> list[str]:
  return [p for p in wanted if any(fnmatch.fnmatchcase(n, p) for n in names)]
