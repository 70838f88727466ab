# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layers of a stack over the stages of a mesh axis, in a circular schedule.

Stage s of S has N / (R S) neighbouring layers for each of R repeats: in repeat
r those from (r S + s) N / (R S) on. A micro-batch goes through the stages one
after the other, R times round (Narayanan et al. 2021, section 2.2, where a
device has several model chunks; R = 1 is GPipe, Huang et al. 2019). All stages
compute at once, each on another micro-batch: of R M + S - 1 steps for M
micro-batches a stage is idle in S - 1. It computes then too, and what it
computes is not used.

A step is one function on the devices of each stage. Its arrays have an axis of
stages, split over the mesh, and passing on is a roll along it, which becomes a
collective-permute. So is the movement of micro-batches to the first stage and
of results away from the last one: before and after, each stage holds M / S of
them.

Suffixes: S stages, R repeats, M micro-batches, W = M / S.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from gpt_jax.core.nn import layout
from gpt_jax.core.ranges import Count

# The mesh axis. Layers are split over it, and rows where there are no layers.
STAGE = 'stage'
# That over which parameters are the same.
REPLICAS = 'data'


class Circular(NamedTuple):
  """How micro-batches go round: see `circular`."""

  repeats: int
  rows: int
  weights: str = 'layer'
  # Whether layers need the rows of all devices together, as experts do.
  together: bool = False

  def at_once(self, rows: int) -> int:
    """The rows of a device that go on together: at most `self.rows`."""
    return max(n for n in range(1, self.rows + 1) if rows % n == 0)


def circular(
  repeats: Count = 1, rows: Count = 1, weights: Literal['layer', 'stage'] = 'layer'
) -> Circular:
  """Micro-batches go through the stages of mesh.stage one after the other.

  Of R M + S - 1 steps for M micro-batches, S stages and R repeats a stage is
  idle in S - 1: more rows in batch.micro_rows make more of them.

  Args:
    repeats: how often they go round, each time through as many layers; 1 is
      GPipe. More of them idle less. The layers that a stage then has are not
      neighbours; they move to it at the start of each micro-batch.
    rows: of batch.micro_rows, at most, that go through a stage together.
    weights: those that are gathered over mesh.fsdp at a time. `layer`: of one
      layer, in each step, which also reduces their gradients. `stage`: of all
      layers of a stage, once for batch.micro_rows, and so their gradients; it
      takes 8 bytes of a device for each weight of its stage.
  """
  return Circular(repeats, rows, weights)


class Schedule(NamedTuple):
  """The numbers of stages, repeats and micro-batches."""

  stages: int
  repeats: int
  micro_batches: int

  @property
  def steps(self) -> int:
    """The number of steps."""
    return self.repeats * self.micro_batches + self.stages - 1

  @property
  def bubble(self) -> float:
    """The fraction of the steps in which a stage is idle."""
    return (self.stages - 1) / self.steps


class Parts(NamedTuple):
  """How the rows of a batch lie on the mesh: stages between other axes.

  Each may have become several rows, one after the other: answers to a question.
  """

  rows: int
  before: int
  stages: int
  after: int
  at_once: int  # rows of a device in a micro-batch
  # The mesh axes whose devices have copies of the layers: they sum the
  # gradients of all steps before they exchange them.
  holders: tuple[str, ...]

  def split(self, x: jax.Array) -> jax.Array:
    """[rows, ...] to [S, W, rows of a micro-batch, ...]: nothing moves."""
    rest, each = x.shape[1:], self.at_once * (len(x) // self.rows)
    x = x.reshape(self.before, self.stages, self.after, -1, each, *rest)
    x = jnp.moveaxis(x, (1, 3), (0, 1))
    return over_stages(x.reshape(*x.shape[:2], -1, *rest))

  def joined(self, x: jax.Array) -> jax.Array:
    """The inverse of `split`."""
    W, rest = x.shape[1], x.shape[3:]
    x = x.reshape(self.stages, W, self.before, self.after, -1, *rest)
    return jnp.moveaxis(x, (0, 1), (1, 3)).reshape(-1, *rest)


def parts_of(how: Circular, rows: int) -> Parts | None:
  """How `rows` rows lie on the current mesh; None: it has no stages."""
  if layout.mesh_axes('layers') != (STAGE,):
    return None
  axes, mesh = layout.mesh_axes('batch'), jax.sharding.get_abstract_mesh()
  at, sizes = axes.index(STAGE), [mesh.shape[axis] for axis in axes]
  if rows % math.prod(sizes):
    return None  # a model's parameters are initialized with one row
  holders = tuple(
    axis
    for axis in axes
    if axis != STAGE and not how.together and (how.weights == 'stage' or axis == REPLICAS)
  )
  return Parts(
    rows,
    math.prod(sizes[:at]),
    sizes[at],
    math.prod(sizes[at + 1 :]),
    how.at_once(rows // math.prod(sizes)),
    holders,
  )


def over_stages(x: jax.Array, axis: int = 0, holders: tuple[str, ...] = ()) -> jax.Array:
  """Splits an axis over the stages, and the next one over `holders`, if any.

  Others are left as they are.
  """
  free = PartitionSpec.UNCONSTRAINED
  split = (STAGE, holders) if holders else (STAGE,)
  rest = x.ndim - axis - len(split)
  spec = PartitionSpec(*(free,) * axis, *split, *(free,) * rest)
  return jax.lax.with_sharding_constraint(x, spec)


# Of one stage: its layers [N / (R S), ...], what is the same for all rows, and
# what goes from stage to stage, the rows [b, ...]. It returns the latter, and
# further results of each layer.
Stage = Callable[[Any, Any, Any], tuple[Any, Any]]


def run(
  stage: Stage,
  layers: Any,
  same: Any,
  rows: Any,
  schedule: Schedule,
  keep: Callable[..., bool] | None = None,
  holders: tuple[str, ...] = (),
  weights: Any = None,
) -> tuple[Any, Any]:
  """Runs the rows through all layers.

  Args:
    stage: returns rows as it is given them.
    layers: a tree of arrays [layers, ...].
    same: a tree of what all stages read, with gradients or without.
    rows: a tree of arrays [S, W, b, ...], of `Parts.split`.
    keep: with several repeats, what the forward pass stores of a step. Without
      it a copy of the layers of each step would be stored; with one repeat
      these are the same in all steps.
    holders: see `Parts`. With any, the further results are of rows, [b, ...].
    weights: how the layers read their kernels, None for other arrays; for the
      copies of the holders.

  Returns:
    The rows, and the further results as arrays [layers, M, ...].
  """
  S, R, M = schedule
  tree_map, at_S = jax.tree.map, jnp.arange(S)
  split = tree_map(lambda x: over_stages(x.reshape(R, S, -1, *x.shape[1:]), 1), layers)
  if holders:
    mesh = jax.sharding.get_abstract_mesh()
    P = math.prod(mesh.shape[axis] for axis in holders)
    split = _copies(split, P, holders, weights)
  # Each stage has its own, whose gradients are summed after `_used`.
  same = tree_map(lambda x: over_stages(jnp.stack([x] * S)), same)

  def one(layers, same, rows, repeat, used):
    layers = tree_map(lambda x: x[0] if R == 1 else x[repeat], layers)
    layers, same, rows = _used(used, (_summed_apart(layers), same, rows))
    return stage(layers, same, rows)

  def here(layers, *rest):
    layers = tree_map(lambda x: x[(slice(None), *at_first)], layers)
    out = one(layers, *tree_map(lambda x: x[0], rest))
    return tree_map(lambda x: x[None], out)

  by_stage = of_rows = further = PartitionSpec(STAGE)
  of_layers, at_first = PartitionSpec(None, STAGE), (0,)
  if holders:
    of_rows = PartitionSpec(STAGE, holders)
    further = PartitionSpec(STAGE, None, holders)
    of_layers, at_first = PartitionSpec(None, STAGE, holders), (0, 0)
  with layout.within(STAGE, *holders):
    # With `jax.vmap` kernels would have an axis of stages, and XLA does not
    # reduce-scatter gradients of more than two dimensions.
    each = jax.shard_map(
      here,
      in_specs=(of_layers, by_stage, of_rows, by_stage, by_stage),
      out_specs=(of_rows, further),
      axis_names={STAGE, *holders},
      check_vma=False,
    )
    if R > 1:
      each = jax.checkpoint(each, policy=keep, prevent_cse=False)

    def step(carry, i):
      state, waiting, given = carry
      count_S = i - at_S  # of micro-batches that each stage has had
      repeat_S = jnp.clip(count_S // M, 0, R - 1)
      used_S = (count_S >= 0) & (count_S < R * M)
      heads = tree_map(lambda x: _at(x, i % (M // S)), given)
      # In the first repeat the first stage takes a micro-batch not yet read.
      state = _where((at_S == 0) & (i < M), heads, state)
      state, more = each(split, same, state, repeat_S, used_S)
      # The heads move towards the first stage, results in behind the last one.
      heads = _where(at_S == S - 1, state, _rolled(heads, -1))
      given = tree_map(lambda x, y: _put(x, y, i % (M // S)), given, heads)
      state = _rolled(state, 1)
      if R > 1 and M > S:
        # What comes from the last stage waits until its next repeat.
        slot = i % (M - S)
        now = tree_map(lambda x: _at(x, slot), waiting)
        waiting = tree_map(lambda x, y: _put(x, y, slot), waiting, state)
        state = _where(at_S == 0, now, state)
      return (state, waiting, given), more

    def zeros(count):
      def of(x):
        return over_stages(jnp.zeros((S, *count, *x.shape[2:]), x.dtype))

      return tree_map(of, rows)

    waiting = zeros((M - S,)) if R > 1 and M > S else None
    start = zeros(()), waiting, rows
    (_, _, out), more = jax.lax.scan(step, start, jnp.arange(schedule.steps, dtype=jnp.int32))
  # Results came S - 1 steps after the slots that their micro-batches left.
  out = tree_map(lambda x: jnp.roll(x, 1 - S, axis=1), out)
  return out, tree_map(lambda x: _by_layer(x, schedule), more)


def _at(x: jax.Array, slot: jax.Array) -> jax.Array:
  return jax.lax.dynamic_index_in_dim(x, slot, 1, keepdims=False)


def _put(x: jax.Array, y: jax.Array, slot: jax.Array) -> jax.Array:
  return over_stages(jax.lax.dynamic_update_index_in_dim(x, y, slot, 1))


def _rolled(tree: Any, by: int) -> Any:
  return jax.tree.map(lambda x: over_stages(jnp.roll(x, by, axis=0)), tree)


def _where(mask_S: jax.Array, yes: Any, no: Any) -> Any:
  def pick(a, b):
    return jnp.where(mask_S.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

  return jax.tree.map(pick, yes, no)


def _by_layer(x: jax.Array, schedule: Schedule) -> jax.Array:
  """What the stages gave in each step, [T, S, n, ...]: to [layers, M, ...]."""
  S, R, M = schedule

  def of_stage(x, s):  # its first micro-batch comes to stage s at step s
    return jax.lax.dynamic_slice_in_dim(x, s, R * M)

  x = jax.vmap(of_stage, (1, 0), spmd_axis_name=STAGE)(x, jnp.arange(S))
  x = x.reshape(S, R, M, *x.shape[2:])
  x = jnp.moveaxis(x, 2, 3).swapaxes(0, 1)
  return x.reshape(-1, *x.shape[3:])


def _used(used: jax.Array, tree: Any) -> Any:
  """The tree; its gradient is zero where a stage computes what is not used.

  A product with zero would not do: what is not used may be nan.
  """

  def gate(x):
    return _gate(x, used) if jnp.issubdtype(x.dtype, np.inexact) else x

  return jax.tree.map(gate, tree)


@jax.custom_vjp
def _gate(x: jax.Array, used: jax.Array) -> jax.Array:
  del used
  return x


def _gate_forward(x, used):
  return x, used


def _gate_gradient(used, dy):
  return jnp.where(used, dy, 0), None


_gate.defvjp(_gate_forward, _gate_gradient)


# Copies of the layers, one for each of the holders, in the dtype in which they
# are multiplied. Each device sums its gradients of all steps in the dtype of
# the parameters; the devices sum theirs after the last step.


class _Copy(NamedTuple):
  """An array, and zeros in its place that get its gradient."""

  value: jax.Array
  sums: jax.Array


def _copies(split: Any, number: int, holders: tuple[str, ...], weights: Any) -> Any:
  """[R, S, n, ...] to P copies, [R, S, P, n, ...]."""

  def copied(x, rest=None):
    x = jnp.broadcast_to(x[:, :, None], (*x.shape[:2], number, *x.shape[2:]))
    if rest is None:
      return over_stages(x, 1, holders)
    spec = PartitionSpec(None, STAGE, holders, None, *rest)
    return jax.lax.with_sharding_constraint(x, spec)

  def copy(weight, tree):
    if weight is None:
      return jax.tree.map(copied, tree)
    with layout.within(STAGE, *holders):
      rest = layout.spec(tree.shape[3:], weight.axes)
    value = jax.lax.stop_gradient(tree).astype(weight.dtype)
    return _Copy(copied(value, rest), copied(_zeros(tree), rest))

  def stops(x):
    return x is None or isinstance(x, layout.Weight)

  return jax.tree.map(copy, weights, split, is_leaf=stops)


def _summed_apart(tree: Any) -> Any:
  return jax.tree.map(
    lambda x: _summed(*x) if isinstance(x, _Copy) else x,
    tree,
    is_leaf=lambda x: isinstance(x, _Copy),
  )


@jax.custom_vjp
def _zeros(x: jax.Array) -> jax.Array:
  return jnp.zeros_like(x)


_zeros.defvjp(lambda x: (_zeros(x), None), lambda _, dy: (dy,))


@jax.custom_vjp
def _summed(value: jax.Array, sums: jax.Array) -> jax.Array:
  del sums
  return value


def _summed_forward(value, sums):
  return value, jnp.zeros((0,), sums.dtype)


def _summed_gradient(empty, dy):
  return None, dy.astype(empty.dtype)


_summed.defvjp(_summed_forward, _summed_gradient)


@jax.custom_vjp
def in_step(tree: Any, x: jax.Array) -> Any:
  """The tree, as if it depended on x, so that it differs between steps.

  What does not differ, such as weights gathered from other devices, JAX
  computes before the scan over the steps, of all layers, and stores.
  """
  return jax.lax.optimization_barrier((tree, x))[0]


in_step.defvjp(lambda tree, x: (in_step(tree, x), None), lambda _, d_tree: (d_tree, None))
