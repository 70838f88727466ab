# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a config's state on one device of a mesh, without building it."""

import math
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import flops, sharding, spec
from gpt_jax import state as state_lib
from gpt_jax.config import Config
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.causal import OBJECTIVES
from gpt_jax.optim.average import AVERAGES
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import PRECISIONS
from gpt_jax.state import TrainState


class State(NamedTuple):
  """Bytes on one device."""

  parameters: float
  optimizer: float
  average: float

  @property
  def total(self) -> float:
    """Of all."""
    return self.parameters + self.optimizer + self.average


class Split(NamedTuple):
  """The state of a config with its rules, for any sizes of the mesh."""

  abstract: Any  # parameters with their logical axes
  leaves: TrainState  # (bytes, axes of the mesh that split it) for each array
  parameters: int  # how many
  matmul: int  # of which so many multiply a token

  def state(self, mesh: dict[str, int]) -> State:
    """Bytes on one device of a mesh."""
    leaves = self.leaves
    params, opt_state, ema = (
      sum(size / _parts(mesh, axes) for size, axes in part)
      for part in (leaves.params, leaves.opt_state, leaves.ema)
    )
    return State(params, opt_state, ema)

  def gradients(self, mesh: dict[str, int]) -> float:
    """Bytes on one device of the gradients, in float32."""
    return sum(
      4 * count / _parts(mesh, axes)
      for count, axes in self.leaves.step  # one for each parameter
    )


class Sizes:
  """Makes a `Split` once for each model and set of rules."""

  def __init__(self):
    """Knows none yet."""
    self._known: dict[Any, Split] = {}

  def split(self, config: Config, rules: sharding.Rules) -> Split:
    """Of a resolved config."""
    # Of the model what its parameters do not depend on does not matter.
    model = {**config.model, 'remat': '', 'attention_backend': ''}
    key = (str(model), config.optim.to_json(), rules)
    if key not in self._known:
      self._known[key] = _split(config, rules)
    return self._known[key]


def _split(config: Config, rules: sharding.Rules) -> Split:
  one = jax.sharding.AbstractMesh((1,) * len(sharding.AXES), sharding.AXES)
  objective = spec.build('objective.name', config.objective.name, OBJECTIVES)(
    Transformer(**config.model)
  )
  optimizer = spec.build('optim.name', config.optim.name, OPTIMIZERS)(
    config_lib.schedule(config), state_lib.logical_axes(objective)
  )
  average = spec.build('optim.ema', config.optim.ema, AVERAGES)
  precision = spec.build('optim.precision', config.optim.precision, PRECISIONS)
  init = state_lib.make_init(objective, optimizer, precision, average)
  shapes = jax.eval_shape(init, jax.random.key(0))
  placed: Any = state_lib.state_shardings(
    objective, optimizer, one, rules, average
  )

  def leaves(shapes: Any, placed: Any, count: bool = False) -> list:
    return [
      (x.size if count else x.size * x.dtype.itemsize, _axes(s.spec))
      for x, s in zip(
        jax.tree.leaves(shapes), jax.tree.leaves(placed), strict=True
      )
    ]

  abstract = jax.eval_shape(objective.init, jax.random.key(0))
  return Split(
    abstract,
    TrainState(
      leaves(shapes.params, placed.params, count=True),
      leaves(shapes.params, placed.params),
      leaves(shapes.opt_state, placed.opt_state),
      leaves(shapes.ema, placed.ema),
    ),
    sum(x.size for x in jax.tree.leaves(shapes.params)),
    flops.matmul_parameters(config, abstract),
  )


def _axes(spec: Any) -> tuple[str, ...]:
  """The mesh axes that split an array."""
  axes = []
  for part in spec:
    axes += [part] if isinstance(part, str) else list(part or ())
  return tuple(axes)


def _parts(mesh: dict[str, int], axes: tuple[str, ...]) -> int:
  return math.prod(mesh[axis] for axis in axes)
