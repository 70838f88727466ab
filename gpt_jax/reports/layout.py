# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws which mesh axis splits each dimension of each parameter."""

import math
from typing import NamedTuple

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.spec import UsageError
from gpt_jax.reports import runs

_COLORS = dict(zip(sharding.AXES, ('C7', 'C4', 'C0', 'C2', 'C1', 'C3'), strict=True))
_WHOLE = '#eeeeee'


class ParameterLayout(NamedTuple):
  """How a parameter lies on the devices."""

  name: str
  # For each dimension its logical axis, its size and the mesh axes that split
  # it.
  dimensions: list[tuple[str, int, list[str]]]
  held: int  # elements on one device


def splits(config: Config) -> list[ParameterLayout]:
  """One for each parameter of a resolved config without an open mesh axis."""
  sizes = _sizes(config)
  rules = dict(sharding.parse_rules(config.mesh.rules))
  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    config_lib.objective(config).shapes, is_leaf=lambda x: hasattr(x, 'names')
  ):
    dimensions, held = [], math.prod(leaf.value.shape)
    for logical, size in zip(leaf.names, leaf.value.shape, strict=True):
      by = [axis for axis in rules.get(logical, ()) if sizes[axis] > 1]
      parts = math.prod(sizes[axis] for axis in by)
      if size % parts:  # one of `sharding.MAY_BE_WHOLE`
        by, parts = [], 1
      dimensions.append((logical, size, by))
      held //= parts
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    found.append(ParameterLayout(name, dimensions, held))
  return found


def _sizes(config: Config) -> dict[str, int]:
  sizes = {axis: config.mesh[axis] for axis in sharding.AXES}
  for axis, size in sizes.items():
    if size < 1:
      raise UsageError(
        f'mesh.{axis}={size}: a picture needs the size of each axis; give --config.mesh.{axis}=N'
      )
  return sizes


def sharding_chart(config: Config, out: str) -> str:
  """A line for each parameter, a box for each of its dimensions.

  A box has the dimension's name and size, and the color of the mesh axis that
  splits it. The last column is the number of elements that one device holds.

  Args:
    out: the PNG.

  Returns:
    `out`.
  """
  sizes, found = _sizes(config), splits(config)
  figure, axes = runs.load_pyplot().subplots(figsize=(13, 1.2 + 0.3 * len(found)), dpi=120)
  for y, split in enumerate(reversed(found), start=1):
    axes.text(0, y, runs.label(split.name), va='center', fontsize=8)
    for j, (logical, size, by) in enumerate(split.dimensions):
      label = f'{logical} {size:,}'
      if by:
        count = math.prod(sizes[axis] for axis in by)
        label += f' / {", ".join(by)} {count}'
      x, color = 6 + 1.9 * j, _COLORS[by[0]] if by else _WHOLE
      axes.barh(y, 1.85, left=x, height=0.82, color=color, alpha=0.7)
      axes.text(x + 0.05, y, label, va='center', fontsize=6.5)
    axes.text(14.6, y, f'{split.held:,}', va='center', ha='right', fontsize=8)
  mesh = ', '.join(f'{axis}={size}' for axis, size in sizes.items() if size > 1)
  axes.set_title(
    f'{math.prod(sizes.values())} devices ({mesh or "no axis"}); on the right '
    'the elements that each device holds',
    fontsize=10,
    loc='left',
  )
  axes.set_xlim(0, 14.7)
  axes.set_ylim(0.3, len(found) + 0.7)
  axes.axis('off')
  return runs.save_figure(figure, out)
