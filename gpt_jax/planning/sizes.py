# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes per device of a config's state on a mesh, without building it."""

import math
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.costs import flops
from gpt_jax.optim import frozen_parts
from gpt_jax.optim.average import AVERAGES
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import PRECISIONS
from gpt_jax.training import state as state_lib


class State(NamedTuple):
  """Bytes per device."""

  parameters: float
  optimizer: float
  average: float

  @property
  def total(self) -> float:
    """Sum of the parts."""
    return self.parameters + self.optimizer + self.average


class Leaf(NamedTuple):
  """An array, and the mesh axes that split each dimension."""

  shape: tuple[int, ...]
  itemsize: int
  axes: tuple[tuple[str, ...], ...]

  def size(self, mesh: dict[str, int]) -> float:
    """Elements per device; dimensions that do not divide stay whole."""
    size = 1.0
    for n, axes in zip(self.shape, self.axes, strict=True):
      parts = math.prod(mesh[axis] for axis in axes)
      size *= n if n % parts else n / parts
    return size


class Split(NamedTuple):
  """The state of a config under its rules, for any mesh sizes."""

  abstract: Any  # parameters with their logical axes
  params: list[Leaf]
  trained: list[Leaf]  # of these, what has gradients
  opt_state: list[Leaf]
  ema: list[Leaf]
  parameters: int  # their number
  matmul: float  # parameters in matrix products, per token

  def state(self, mesh: dict[str, int]) -> State:
    """Bytes per device on a mesh."""
    return State(
      *(
        sum(leaf.itemsize * leaf.size(mesh) for leaf in part)
        for part in (self.params, self.opt_state, self.ema)
      )
    )

  def gradients(self, mesh: dict[str, int]) -> float:
    """Bytes per device of the gradients, in float32."""
    return sum(4 * leaf.size(mesh) for leaf in self.trained)


class Sizes:
  """Caches a `Split` for each model, optimizer and set of rules."""

  def __init__(self):
    """Starts empty."""
    self._known: dict[Any, Split] = {}

  def split(self, config: Config, rules: sharding.Rules) -> Split:
    """Returns the split of a resolved config."""
    # Leave out fields of the model that its parameters do not depend on.
    model = {**config.model, 'remat': '', 'attention_backend': ''}
    parts = config.models.to_json()
    key = (str(model), parts, config.optim.to_json(), rules)
    if key not in self._known:
      self._known[key] = _split(config, rules)
    return self._known[key]


def _split(config: Config, rules: sharding.Rules) -> Split:
  one = jax.sharding.AbstractMesh((1,) * len(sharding.AXES), sharding.AXES)
  objective = config_lib.objective(config)
  optimizer = spec.build('optim.name', config.optim.name, OPTIMIZERS)(
    config_lib.schedule(config), state_lib.logical_axes(objective)
  )
  average = spec.build('optim.ema', config.optim.ema, AVERAGES)
  precision = spec.build('optim.precision', config.optim.precision, PRECISIONS)
  init = state_lib.make_init(objective, optimizer, precision, average)
  shapes = jax.eval_shape(init, jax.random.key(0))
  placed: Any = state_lib.state_shardings(
    objective,
    optimizer,
    one,
    rules,
    average,
    on_host=config.optim.state == 'host',
  )

  abstract = jax.eval_shape(objective.init, jax.random.key(0))
  return Split(
    abstract,
    _leaves(shapes.params, placed.params),
    _leaves(
      frozen_parts.trained(shapes.params, objective.frozen),
      frozen_parts.trained(placed.params, objective.frozen),
    ),
    _leaves(shapes.opt_state, placed.opt_state),
    _leaves(shapes.ema, placed.ema),
    sum(x.size for x in jax.tree.leaves(shapes.params)),
    flops.met_parameters(config, abstract),
  )


def _leaves(shapes: Any, placed: Any) -> list[Leaf]:
  pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(placed), strict=True)
  return [
    Leaf(x.shape, x.dtype.itemsize, _axes(s.spec, len(x.shape)))
    for x, s in pairs
    if s.memory_kind != 'pinned_host'
  ]


def _axes(spec: Any, ndim: int) -> tuple[tuple[str, ...], ...]:
  """The mesh axes that split each dimension."""
  parts = [(part,) if isinstance(part, str) else part or () for part in spec]
  return (*map(tuple, parts), *(((),) * (ndim - len(parts))))
