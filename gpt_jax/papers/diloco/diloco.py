# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DiLoCo: replicas that train apart, and the outer step that combines them.

Douillard et al. 2023, algorithm 1. `TrainState.params` are the outer
parameters, theta: those of the last outer step, from which all replicas
continued. Whatever reads a checkpoint reads these. The parameters of the
replicas are beside the state of their optimizers, with a leading axis of
replicas, which the mesh axis `data` splits. Between two outer steps nothing is
sent over it:
each replica clips and skips by its own gradient, and metrics are averaged where
they are read.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.core import sharding
from gpt_jax.core.nn import layout
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import Batch
from gpt_jax.core.optim import rounding, train_state
from gpt_jax.core.optim.rounding import Average
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.ranges import Count, Fraction, Positive
from gpt_jax.core.training import step as step_lib


class ReplicaStates(NamedTuple):
  """`TrainState.opt_state`: the replicas, and the outer optimizer."""

  params: Any  # trained ones of each replica: [replicas, ...]
  opt_state: Any  # of their optimizers: [replicas, ...]
  outer: Any  # the outer optimizer's state
  grad_norm: Any  # float32 []: of the last outer gradient; 0 before the first


class ReplicaOutputs(NamedTuple):
  """The metrics of a step."""

  of_each: Any  # by name, as of `step.train_step`: [replicas, ...]
  outer: Any  # by name


@dataclass(frozen=True)
class DiLoCo:
  """DiLoCo (Douillard et al. 2023, algorithm 1); the paper's values.

  Each replica takes `steps` steps of `optim.name` on its share of each batch.
  Then the mean of what they moved by is the gradient of an outer step, with
  Nesterov's momentum, and all go on from where it leads. Implements
  `optim.outer.Outer`.

  Attributes:
    steps: H, of each replica between two outer steps.
    replicas: k; mesh.data divides it.
    learning_rate: of the outer steps.
    momentum: of the outer steps; 0: gradient descent.
  """

  steps: Count = 500
  replicas: Count = 8
  learning_rate: Positive = 0.7
  momentum: Fraction = 0.9

  @functools.cached_property
  def optimizer(self) -> optax.GradientTransformation:
    """Of the parameters that the replicas start from."""
    return optax.sgd(
      self.learning_rate, momentum=self.momentum or None, nesterov=bool(self.momentum)
    )

  def init(self, params: Any, opt_state: Any) -> ReplicaStates:
    """The first state: all replicas are the same."""
    return ReplicaStates(
      jax.tree.map(self._copies, params),
      jax.tree.map(self._copies, opt_state),
      self.optimizer.init(rounding.to_float32(params)),
      jnp.float32(0),
    )

  def state_shardings(self, params: Any, opt_state: Any, outer: Any) -> ReplicaStates:
    """A `NamedSharding` for each leaf of a `ReplicaStates`."""

    def several(one: NamedSharding) -> NamedSharding:
      spec = PartitionSpec(sharding.REPLICAS, *one.spec)
      return NamedSharding(one.mesh, spec)

    return ReplicaStates(
      jax.tree.map(several, params),
      jax.tree.map(several, opt_state),
      outer,
      sharding.replicated(jax.tree.leaves(params)[0].mesh),
    )

  def output_shardings(self, mesh: Mesh) -> ReplicaOutputs:
    """Metrics of each replica are where it is."""
    apart = NamedSharding(mesh, PartitionSpec(sharding.REPLICAS))
    return ReplicaOutputs(apart, sharding.replicated(mesh))

  def train_step(
    self,
    state: TrainState,
    batch: Batch,
    average_start: jax.Array | None = None,
    *,
    objective: Objective,
    seed: int,
    average: Average | None,
    num_steps: int,
    **inner: Any,
  ) -> tuple[TrainState, ReplicaOutputs]:
    """Takes a step in each replica, and after every `steps` the outer one.

    The last step of the run ends a round too, however short.

    Args:
      state: donated by the caller; its `opt_state` is a `ReplicaStates`.
      batch: arrays [rows, ...]; each replica takes as many successive rows.
      average_start: see `step.train_step`.
      objective: see `step.train_step`.
      seed: of the run; the randomness of a replica depends on its number too.
      average: of the outer parameters, if one is kept; it counts all steps.
      **inner: further arguments of `step.train_step`, of one replica.
    """
    replicas: ReplicaStates = state.opt_state
    theta = train_state.trained(state.params, objective.frozen)

    def step(
      params: Any, opt_state: Any, batch: Batch, number: jax.Array
    ) -> tuple[Any, Any, dict[str, Any]]:
      whole = train_state.with_frozen(params, state.params, objective.frozen)
      new, metrics = step_lib.train_step(
        TrainState(state.step, whole, opt_state),
        batch,
        objective=objective,
        seed=seed,
        replica=number,
        num_steps=num_steps,
        **inner,
      )
      params = train_state.trained(new.params, objective.frozen)
      return params, new.opt_state, metrics

    split = jax.tree.map(lambda x: x.reshape(self.replicas, -1, *x.shape[1:]), batch)
    with layout.within(sharding.REPLICAS):
      params, opt_state, metrics = jax.vmap(step, spmd_axis_name=sharding.REPLICAS)(
        replicas.params, replicas.opt_state, step_lib.apart(split), jnp.arange(self.replicas)
      )
    done = state.step + 1
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    key = jax.random.fold_in(key, step_lib.ROUNDING)

    def join(theta: Any, own: Any, outer_state: Any, _: Any) -> Any:
      gradient = jax.tree.map(
        lambda old, each: old.astype(jnp.float32) - jnp.mean(each.astype(jnp.float32), axis=0),
        theta,
        own,
      )
      updates, outer_state = self.optimizer.update(gradient, outer_state)
      theta = rounding.add(theta, updates, key)
      own = jax.tree.map(self._copies, theta)
      return theta, own, outer_state, optax.tree.norm(gradient)

    # `planning.hlo` reads in this name how often the branch runs.
    with jax.named_scope(f'every_{self.steps}_steps'):
      theta, params, outer_state, norm = jax.lax.cond(
        (done % self.steps == 0) | (done == num_steps),
        join,
        lambda *same: same,
        theta,
        params,
        replicas.outer,
        replicas.grad_norm,
      )
    ema = None
    if average:
      ema = average.update(state.ema, theta, done, average_start)
    new = TrainState(
      done,
      train_state.with_frozen(theta, state.params, objective.frozen),
      ReplicaStates(params, opt_state, outer_state, norm),
      ema,
    )
    return new, ReplicaOutputs(metrics, {'outer_grad_norm': norm})

  def pooled(self, outputs: Sequence[ReplicaOutputs]) -> list[dict[str, Any]]:
    """The metrics of some steps: means over the replicas."""
    return [jax.tree.map(lambda x: jnp.mean(x, axis=0), one.of_each) | one.outer for one in outputs]

  def _copies(self, x: Any) -> jax.Array:
    return jnp.broadcast_to(x, (self.replicas, *jnp.shape(x)))
