# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A batch is taken in parts, whose losses and gradients add up."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from gpt_jax import sharding
from gpt_jax.nn import batch_rows, layout
from gpt_jax.nn.batch_rows import Rows
from gpt_jax.optim.micro_batches import MicroBatches


def summed(
  function: Callable[[Any], Any], batch: Any, parts: MicroBatches
) -> Any:
  """The sum of what a function makes of each part; of several in float32.

  Nothing but rounding depends on the parts.
  """
  num_rows = len(jax.tree.leaves(batch)[0])
  filled = parts.filled(num_rows)
  if filled > num_rows:
    batch = jax.tree.map(
      lambda x: _over_devices(
        jnp.pad(x, [(0, filled - num_rows), *[(0, 0)] * (x.ndim - 1)])
      ),
      batch,
    )

  def of(part: Any) -> Any:
    arrays, numbers_B = part
    with batch_rows.use(Rows(numbers_B, num_rows, filled > num_rows)):
      return function(arrays)

  given = batch, jnp.arange(filled)
  if parts.num_micro == 1:
    return of(given)
  # Part i is every n-th row from row i on, so that each device finds its share
  # of every part among the rows that it already holds.
  each = jax.tree.map(
    lambda x: x.reshape(-1, parts.num_micro, *x.shape[1:]).swapaxes(0, 1), given
  )
  over = parts.num_replicas > 1
  run = _by_replica(of, parts.num_replicas) if over else of

  def add(sums, part):
    sums = jax.tree.map(jnp.add, sums, run(part))
    return _apart(sums) if over else sums, None

  shapes = jax.eval_shape(run, jax.tree.map(lambda x: x[0], each))
  start = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
  sums, _ = jax.lax.scan(add, _apart(start) if over else start, each)
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums) if over else sums


def _over_devices(x: jax.Array) -> jax.Array:
  return layout.constrain(x, ('batch', *[None] * (x.ndim - 1)))


def _by_replica(
  function: Callable[[Any], Any], replicas: int
) -> Callable[[Any], Any]:
  """The function of the rows of each replica: all results [replicas, ...].

  Left to itself the compiler adds up the gradients of all devices for each
  micro-batch, since what a loop carries on is then the same everywhere.
  """
  mapped = jax.vmap(
    function,
    axis_name=batch_rows.REPLICAS,
    spmd_axis_name=sharding.REPLICAS,
  )

  def run(part: Any) -> Any:
    split = jax.tree.map(lambda x: x.reshape(replicas, -1, *x.shape[1:]), part)
    with sharding.within_replica():
      return mapped(_apart(split))

  return run


def _apart(tree: Any) -> Any:
  """Arrays [replicas, ...]: each replica's on its own devices."""

  def split(x):
    rest = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
    spec = PartitionSpec(sharding.REPLICAS, *rest)
    return jax.lax.with_sharding_constraint(x, spec)

  return jax.tree.map(split, tree)
