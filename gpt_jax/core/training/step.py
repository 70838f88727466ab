# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training step: clipped gradients of one batch, and their update."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from gpt_jax.core import sharding
from gpt_jax.core.nn import layers, layout
from gpt_jax.core.nn.layers import Measure, Rows
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import RUN, Batch, Largest, Mean, Means, added, is_largest
from gpt_jax.core.optim import rounding, train_state, wrappers
from gpt_jax.core.optim.micro_batches import MicroBatches
from gpt_jax.core.optim.rounding import Average
from gpt_jax.core.optim.schedules import Schedule
from gpt_jax.core.optim.train_state import Rates, TrainState
from gpt_jax.core.spec import Table
from gpt_jax.core.training import exact as exact_lib
from gpt_jax.core.training.exact import Exact

# Norms by layer: imported where `log.norms_every_steps` asks for them.
NORMS = Table(
  {
    'of_step': 'gpt_jax.core.training.norms:of_step',
    'lines': 'gpt_jax.core.training.norm_lines:lines',
  }
)

# Micro-batches: gradient accumulation within one step.

REPLICA_AXIS = 'replicas'


def summed(
  function: Callable[[Any], Any], batch: Any, parts: MicroBatches, measure: Measure | None = None
) -> Any:
  """The sum of a function over micro-batches, in float32 if there are several.

  The division affects only rounding. Of `Largest` it is the maximum.

  Args:
    function: of some rows of the batch.
    batch: arrays [rows, ...].
    parts: how the rows are divided.
    measure: see `layers.Rows`.
  """
  num_rows = len(jax.tree.leaves(batch)[0])
  filled = parts.filled(num_rows)
  if filled > num_rows:
    batch = jax.tree.map(
      lambda x: _over_devices(jnp.pad(x, [(0, filled - num_rows), *[(0, 0)] * (x.ndim - 1)])), batch
    )

  over = parts.num_micro > 1 and parts.num_replicas > 1
  replica_axis = REPLICA_AXIS if over else None

  def of(part: Any) -> Any:
    arrays, numbers_B = part
    rows = Rows(numbers_B, num_rows, filled > num_rows, replica_axis, measure)
    with layers.use_rows(rows):
      return function(arrays)

  given = batch, jnp.arange(filled)
  if parts.num_micro == 1:
    return of(given)
  # Micro-batch i is every n-th row from row i on, so each device already holds
  # its share of every micro-batch.
  each = jax.tree.map(lambda x: x.reshape(-1, parts.num_micro, *x.shape[1:]).swapaxes(0, 1), given)
  run = _by_replica(of, parts.num_replicas) if over else of

  def add(sums, part):
    sums = added(sums, run(part))
    return apart(sums) if over else sums, None

  shapes = jax.eval_shape(run, jax.tree.map(lambda x: x[0], each))
  start = jax.tree.map(_nothing, shapes, is_leaf=is_largest)
  sums, _ = jax.lax.scan(add, apart(start) if over else start, each)
  return jax.tree.map(_over_replicas, sums, is_leaf=is_largest) if over else sums


def _nothing(x: Any) -> Any:
  if is_largest(x):
    return Largest(jnp.full(x.value.shape, -jnp.inf, x.value.dtype))
  return jnp.zeros(x.shape, jnp.float32)


def _over_replicas(x: Any) -> Any:
  return Largest(jnp.max(x.value, axis=0)) if is_largest(x) else jnp.sum(x, axis=0)


def _over_devices(x: jax.Array) -> jax.Array:
  return layout.constrain(x, ('batch', *[None] * (x.ndim - 1)))


def _by_replica(function: Callable[[Any], Any], replicas: int) -> Callable[[Any], Any]:
  """Maps the function over each replica's rows: results [replicas, ...].

  Otherwise the compiler sums the gradients over all devices after every
  micro-batch, to keep the loop's carry replicated.
  """
  mapped = jax.vmap(function, axis_name=REPLICA_AXIS, spmd_axis_name=sharding.REPLICAS)

  def run(part: Any) -> Any:
    split = jax.tree.map(lambda x: x.reshape(replicas, -1, *x.shape[1:]), part)
    with layout.within(sharding.REPLICAS):
      return mapped(apart(split))

  return run


def apart(tree: Any) -> Any:
  """Places arrays [replicas, ...] on the devices of their replicas."""

  def split(x):
    rest = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
    spec = PartitionSpec(sharding.REPLICAS, *rest)
    return jax.lax.with_sharding_constraint(x, spec)

  return jax.tree.map(split, tree)


Metrics = dict[str, Any]  # arrays, and arrays by name
# The rates of a run that trains all parameters all along.
ALL = Rates()
# Folded into a step's key for the stochastic rounding of parameters.
ROUNDING = 2**32 - 1


def train_step(
  state: TrainState,
  batch: Batch,
  average_start: jax.Array | None = None,
  *,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  schedule: Schedule,
  seed: int,
  clip_norm: float,
  num_micro: int,
  num_shards: int = 1,
  num_replicas: int = 1,
  rates: Rates = ALL,
  average: Average | None = None,
  num_steps: int | None = None,
  replica: jax.Array | None = None,
  norms_every: int = 0,
  exact: Exact | None = None,
) -> tuple[TrainState, Metrics]:
  """Takes one optimizer step.

  Args:
    state: donated by the caller.
    batch: arrays [rows, ...] by name.
    average_start: int32 [], see `Average.start_of`; None: evaluations do not
      decide it.
    objective: scores the parameters on the batch.
    optimizer: of the trained parameters: see `optimizer.Build`.
    schedule: from the number of steps done to the learning rate.
    seed: of the run; the step's randomness is a function of (seed, step).
    clip_norm: bound of the gradient's global norm; 0 means none.
    num_micro: number of micro-batches, computed one after the other to save
      memory. The result is the mean over all tokens.
    num_shards: see `MicroBatches`.
    num_replicas: see `MicroBatches`.
    rates: of the parameters, and the stages of training.
    average: the average of the parameters, if one is kept.
    num_steps: of the run, for objectives with `Needs.progress`.
    replica: int32 [], the number of this replica, if several train apart; the
      randomness depends on it, too.
    norms_every: steps between two that return norms by layer; 0: none does, and
      the program has nothing of them.
    exact: adds all sums in an order that no mesh changes, and divides the batch
      in its own way; None: as micro-batches and the compiler do.

  Returns:
    The next state, and the step's metrics: `loss` (without penalties), before
    clipping `grad_norm` and `grad_norms` (for each part of the model and each
    auxiliary model), the metrics of the objective, and the `norms` of
    `norms.of_step`. If loss or gradient is not finite, only the step count of the
    state changes; the learning rate still follows the step count.

  Raises:
    KeyError: the batch lacks an array of the objective.
  """
  state, key = begun(state, optimizer=optimizer, rates=rates, seed=seed)
  if replica is not None:
    key = jax.random.fold_in(key, replica)
  measure = None
  if norms_every:
    measure = Measure((state.step + 1) % norms_every == 0, norms_every)
  loss, metrics, grads = mean_gradients(
    state.params,
    batch,
    key,
    state.step,
    objective=objective,
    rates=rates,
    num_steps=num_steps,
    num_micro=num_micro,
    num_shards=num_shards,
    num_replicas=num_replicas,
    measure=measure,
    exact=exact,
  )
  measured, norm = (exact.squares(grads), exact_lib.norm) if exact else (grads, optax.tree.norm)
  unclipped, grad_norm = grads, norm(measured)
  named = {**measured, **measured.get('parts', {})}
  grad_norms = {name: norm(part) for name, part in named.items() if name != 'parts'}
  if clip_norm:
    scale = jnp.minimum(1.0, clip_norm / (grad_norm + 1e-6))
    grads = jax.tree.map(lambda g: g * scale, grads)
  old_params = train_state.trained(state.params, objective.frozen)
  # Decided on the device: the host only learns of it when it logs.
  sound = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  # The rate is a function of the step, which counts skipped updates too. The
  # moments' own counts do not: a skipped gradient did not enter the moments.
  updates, opt_state = optax.with_extra_args_support(optimizer).update(
    grads, state.opt_state, old_params, rate=jnp.float32(schedule(state.step)), sound=sound
  )
  updates = rates.scaled(updates, state.step)
  if measure is not None:
    metrics['norms'] = NORMS['of_step'](measure, unclipped, old_params, updates, metrics)
  new_params = rounding.add(old_params, updates, jax.random.fold_in(key, ROUNDING))
  params = train_state.with_frozen(new_params, state.params, objective.frozen)
  ema = None
  if average:
    # Of several tasks, the heads without a step count too.
    untrained = train_state.trained(params, state.never_trained)
    ema = average.update(state.ema, untrained, state.step + 1, average_start)
  new = TrainState(state.step + 1, params, opt_state, ema)
  old = state._replace(step=new.step)
  state = jax.tree.map(lambda n, o: n if wrappers.is_there(o) else jnp.where(sound, n, o), new, old)
  metrics |= {'loss': loss, 'grad_norm': grad_norm, 'grad_norms': grad_norms}
  return state, metrics


def begun(
  state: TrainState, *, optimizer: optax.GradientTransformation, rates: Rates, seed: int
) -> tuple[TrainState, jax.Array]:
  """The state for a step, reset if a stage begins, and the step's random key."""
  key = jax.random.fold_in(jax.random.key(seed), state.step)
  if rates.stages:
    state = train_state.entered(state, rates.stages, optimizer)
  return state, key


def mean_gradients(
  params: Any,
  batch: Batch,
  key: jax.Array,
  step: jax.Array | int = 0,
  *,
  objective: Objective,
  rates: Rates = ALL,
  num_steps: int | None = None,
  num_micro: int,
  num_shards: int = 1,
  num_replicas: int = 1,
  measure: Measure | None = None,
  exact: Exact | None = None,
) -> tuple[jax.Array, Metrics, Any]:
  """Loss, metrics and gradients: means over the tokens of the whole batch.

  Sums over the micro-batches are divided once, by the total weight, so a
  micro-batch with fewer tokens counts for less. The gradients include the
  penalties, the returned loss does not. All are summed in float32. Frozen
  parameters have no gradients; those that the step does not train have 0. With
  `measure` the metrics have the activations of `objectives.loss`.
  """

  def gradients(params, part):
    def total(trained):
      trained = rates.stopped(trained, step)
      whole = train_state.with_frozen(trained, params, objective.frozen)
      return objective.loss(whole, part | more, key).totals(weights)

    return jax.grad(total, has_aux=True)(train_state.trained(params, objective.frozen))

  weights = exact.weights(objective, batch) if exact else objective.weights(batch)
  run: Any = {}
  if objective.needs.progress:
    assert num_steps is not None
    run['done'] = jnp.asarray(step / num_steps)
  if rates.stages:
    run['stage'] = rates.stages.at(step)
  more: Any = {RUN: run} if run else {}
  batch = objective.weighed(batch)
  if exact:
    grads, (loss, weight, metrics) = exact.gradients(gradients, params, batch)
  else:
    grads, (loss, weight, metrics) = summed(
      functools.partial(gradients, params),
      batch,
      MicroBatches(num_micro, num_shards, num_replicas),
      measure,
    )
  # Class weights may add up to less than 1, so no max(weight, 1). Without any
  # weight the sums are 0.
  weight = jnp.where(weight > 0, weight, 1)
  loss, grads = jax.tree.map(lambda x: x.astype(jnp.float32) / weight, (loss, grads))
  return loss, {name: _value(mean) for name, mean in metrics.items()}, grads


def _value(found: Mean | Means | Largest) -> jax.Array:
  if isinstance(found, Largest):
    return found.value
  if not isinstance(found, Mean):
    return sum(map(_value, found), jnp.float32(0))
  weight = jnp.where(found.weight > 0, found.weight, 1)
  return found.sum.astype(jnp.float32) / weight


def eval_step(
  params: Any, batch: Batch, *, objective: Objective, exact: Exact | None = None
) -> dict[str, Mean | Means]:
  """Loss and metrics of one batch as sums, without dropout and penalties."""

  def means(params: Any, batch: Batch) -> dict[str, Mean | Means]:
    loss = objective.loss(params, batch, None)
    return {'loss': loss.means(objective.weights(batch)), **loss.metrics}

  return exact.sums(means, params, batch) if exact else means(params, batch)
