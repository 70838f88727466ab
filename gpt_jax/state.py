# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step changes: the step count, parameters and optimizer state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from gpt_jax import sharding
from gpt_jax.objectives.base import Objective


class TrainState(NamedTuple):
  """All that a checkpoint holds. The data order follows from `step` alone."""

  step: Any  # int32 scalar: steps done
  params: Any
  opt_state: Any


def init_params(objective: Objective, key: jax.Array) -> Any:
  """The first parameters, without their logical axes."""
  return nn.meta.unbox(objective.init(key))


def make_init(objective: Objective, optimizer: optax.GradientTransformation):
  """Returns the pure function from a random key to the first state."""

  def init(key: jax.Array) -> TrainState:
    params = init_params(objective, key)
    return TrainState(jnp.int32(0), params, optimizer.init(params))

  return init


def state_shardings(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  rules: sharding.Rules,
) -> TrainState:
  """A `NamedSharding` for each leaf of the state.

  Optimizer moments are split as their parameters are; whatever else the
  optimizer keeps (counts) is replicated.
  """
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  sharding.check_divisible(boxed, mesh, rules)
  params = sharding.param_shardings(boxed, mesh, rules)
  whole = sharding.replicated(mesh)
  opt_state = jax.eval_shape(optimizer.init, nn.meta.unbox(boxed))
  moments = optax.tree.map_params(
    optimizer,
    lambda _, split: split,
    opt_state,
    params,
    transform_non_params=lambda _: whole,
  )
  return TrainState(whole, params, moments)
