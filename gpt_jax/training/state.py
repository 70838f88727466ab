# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step changes: the step count, parameters and optimizer state."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh

from gpt_jax import sharding
from gpt_jax.objectives.base import Objective
from gpt_jax.optim import train_state
from gpt_jax.optim.optimizer import is_matrix
from gpt_jax.optim.rounding import Average, Precision, to_float32
from gpt_jax.optim.train_state import TrainState


def init_params(objective: Objective, key: jax.Array) -> Any:
  """The first parameters, without their logical axes."""
  return nn.meta.unbox(objective.init(key))


def logical_axes(objective: Objective) -> Any:
  """For each trained parameter the names of its axes: a `PartitionSpec`."""
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  return nn.get_partition_spec(train_state.trained(boxed, objective.frozen))


def make_init(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  precision: Precision | None = None,
  average: Average | None = None,
):
  """Returns the pure function from a random key to the first state.

  The optimizer sees parameters in float32, so that its moments are too.
  """

  def init(key: jax.Array) -> TrainState:
    params = init_params(objective, key)
    opt_state = optimizer.init(train_state.trained(params, objective.frozen))
    if precision:
      params = precision(params)
    ema = None
    if average:
      ema = to_float32(train_state.trained(params, objective.frozen))
    return TrainState(jnp.int32(0), params, opt_state, ema)

  return init


def state_shardings(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh | AbstractMesh,
  rules: sharding.Rules,
  average: Average | None = None,
  *,
  on_host: bool = False,
) -> TrainState:
  """A `NamedSharding` for each leaf of the state.

  Optimizer moments are split as their parameters are; whatever else the
  optimizer keeps (counts, the factors of a moment) is small and replicated.
  With `on_host` the moments of kernels and tables are in the hosts' memory.
  """
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  sharding.check_divisible(boxed, mesh, rules)
  params = sharding.param_shardings(boxed, mesh, rules)
  whole = sharding.replicated(mesh)
  shapes = nn.meta.unbox(boxed)
  split = {
    _names(path): (leaf.shape, sharding)
    for (path, leaf), sharding in zip(
      jax.tree_util.tree_leaves_with_path(shapes),
      jax.tree.leaves(params),
      strict=True,
    )
  }

  def of_moment(path, leaf):
    # The names on the way to a moment end with those of its parameter.
    names = _names(path)
    for start in range(len(names)):
      shape, sharding = split.get(names[start:], (None, None))
      if shape is not None and leaf.shape == shape:
        # Small arrays are not worth a copy.
        far = on_host and is_matrix(_keys(path))
        return sharding.with_memory_kind('pinned_host') if far else sharding
    return whole

  opt_state = jax.tree_util.tree_map_with_path(
    of_moment,
    jax.eval_shape(
      optimizer.init, train_state.trained(shapes, objective.frozen)
    ),
  )
  ema = train_state.trained(params, objective.frozen) if average else None
  return TrainState(whole, params, opt_state, ema)


def _names(path: Any) -> tuple[str, ...]:
  """The names in a path through a tree, without its fields and indices."""
  return tuple(key.key for key in _keys(path))


def _keys(path: Any) -> list[Any]:
  return [key for key in path if isinstance(key, jax.tree_util.DictKey)]
