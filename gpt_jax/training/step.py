# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training step: gradients of one batch, clipped, into the optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gpt_jax.objectives.base import Batch, Mean, Means, Objective
from gpt_jax.optim import (
  frozen_parts,
  host_state,
  rounding,
  schedule_count,
  stages,
)
from gpt_jax.optim.average import Average
from gpt_jax.optim.micro_batches import MicroBatches
from gpt_jax.optim.train_state import TrainState
from gpt_jax.training import accumulation

Metrics = dict[str, Any]  # arrays, and arrays by name
# Which random numbers of a step round the parameters.
ROUNDING = 2**32 - 1


def train_step(
  state: TrainState,
  batch: Batch,
  *,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  seed: int,
  clip_norm: float,
  num_micro: int,
  num_shards: int = 1,
  num_replicas: int = 1,
  average: Average | None = None,
  num_steps: int | None = None,
) -> tuple[TrainState, Metrics]:
  """Takes one optimizer step.

  Args:
    state: donated by the caller.
    batch: arrays [rows, ...].
    objective: gives the loss.
    optimizer: any optax transformation.
    seed: of the run; the step's randomness is a function of (seed, step).
    clip_norm: bound of the gradient's global norm; 0 means none.
    num_micro: the rows are taken in this many parts, one after the other, to
      save memory. The result is the mean over all tokens.
    num_shards: see `MicroBatches`.
    num_replicas: see `MicroBatches`.
    average: of the parameters, if one is kept.
    num_steps: of the run, for objectives with `progress`.

  Returns:
    The next state, and of this step `loss` (without penalties), `grad_norm`
    and `grad_norms`, that of each part of the model and of each model beside
    it (before clipping), and the metrics of the objective. Where loss or
    gradient is not finite the next state is the old one, one step on; the
    learning rate of the steps after it is that of their number all the same.
  """
  key = jax.random.fold_in(jax.random.key(seed), state.step)
  two = objective.stages
  if two:
    state = stages.entered(state, two, optimizer)
    objective = objective._replace(loss=stages.loss(two, state.step))
  if objective.progress:
    assert num_steps is not None
    batch = objective.progress(batch, state.step / num_steps)
  loss, metrics, grads = mean_gradients(
    state.params,
    batch,
    key,
    objective=objective,
    num_micro=num_micro,
    num_shards=num_shards,
    num_replicas=num_replicas,
  )
  grad_norm = optax.tree.norm(grads)
  named = {**grads, **grads.get('parts', {})}
  grad_norms = {
    name: optax.tree.norm(part)
    for name, part in named.items()
    if name != 'parts'
  }
  if clip_norm:
    scale = jnp.minimum(1.0, clip_norm / (grad_norm + 1e-6))
    grads = jax.tree.map(lambda g: g * scale, grads)
  old_params = frozen_parts.trained(state.params, objective.frozen)
  # Decided on the device: the host learns of it when it logs, steps later.
  sound = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  updates, opt_state = optax.with_extra_args_support(optimizer).update(
    grads,
    schedule_count.at_step(state.opt_state, state.step),
    old_params,
    sound=sound,
  )
  if two:
    updates = stages.moved(updates, two, state.step)
  new_params = rounding.add(
    old_params, updates, jax.random.fold_in(key, ROUNDING)
  )
  ema = average(state.ema, new_params) if average else None
  params = frozen_parts.with_frozen(new_params, state.params, objective.frozen)
  new = TrainState(state.step + 1, params, opt_state, ema)
  old = state._replace(step=new.step)
  state = jax.tree.map(
    lambda n, o: n if host_state.is_there(o) else jnp.where(sound, n, o),
    new,
    old,
  )
  metrics |= {'loss': loss, 'grad_norm': grad_norm, 'grad_norms': grad_norms}
  return state, metrics


def mean_gradients(
  params: Any,
  batch: Batch,
  key: jax.Array,
  *,
  objective: Objective,
  num_micro: int,
  num_shards: int = 1,
  num_replicas: int = 1,
) -> tuple[jax.Array, Metrics, Any]:
  """Loss, metrics and gradients: means over the tokens of the whole batch.

  Sums over the micro-batches are divided once, by the weight of all: a part
  with fewer tokens counts for less. The gradients are those of the loss with
  its penalties, the loss is given without. All are summed in float32. What is
  frozen has none.
  """

  def total(trained, part, key):
    whole = frozen_parts.with_frozen(trained, params, objective.frozen)
    loss = objective.loss(whole, part, key)
    return loss.sum, (loss.sum - loss.penalty, loss.weight, loss.metrics or {})

  trained = frozen_parts.trained(params, objective.frozen)
  gradient = jax.grad(total, has_aux=True)
  if objective.balance:
    batch = objective.balance(batch)
  grads, (loss, weight, metrics) = accumulation.summed(
    lambda part: gradient(trained, part, key),
    batch,
    MicroBatches(num_micro, num_shards, num_replicas),
  )
  # Class weights may add up to less than 1; of nothing the sums are 0.
  weight = jnp.where(weight > 0, weight, 1)
  loss, grads = jax.tree.map(
    lambda x: x.astype(jnp.float32) / weight, (loss, grads)
  )
  return loss, {name: _value(mean) for name, mean in metrics.items()}, grads


def _value(found: Mean | Means) -> jax.Array:
  if not isinstance(found, Mean):
    return sum(map(_value, found), jnp.float32(0))
  weight = jnp.where(found.weight > 0, found.weight, 1)
  return found.sum.astype(jnp.float32) / weight


def eval_step(params: Any, batch: Batch, *, objective: Objective):
  """Sums over one batch, without dropout and penalties: see `Loss`."""
  return objective.loss(params, batch, None)
