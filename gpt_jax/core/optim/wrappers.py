# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of optimizers: one for each part, and state on the host.

With several tasks, each step trains one of them; the heads of the others have
no gradient. A gradient of 0 would not do: moments and weights would decay, and
the bias correction would count the step. So `each_part` leaves parts that are
missing from the gradients unchanged, including their moments and counts.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from gpt_jax.core.optim.optimizer import Axes, Build, is_matrix


class PartStates(NamedTuple):
  """Optimizer states: of each part by name, and of all other parameters."""

  rest: Any
  parts: Mapping[str, Any]


def each_part(
  build: Callable[[Any], optax.GradientTransformation], axes: Any
) -> optax.GradientTransformation:
  """Gives each part, and the rest, its own optimizer.

  Args:
    build: from the logical axes of some parameters to their optimizer.
    axes: of all parameters, with `parts`.

  Returns:
    A transformation of trees that lack the parts without a step: gradients,
    parameters and updates. Those parts keep their states.
  """

  def transform(axes: Any) -> optax.GradientTransformationExtraArgs:
    return optax.with_extra_args_support(build(axes))

  rest = transform(_rest(axes))
  parts = {name: transform(_part(axes, name)) for name in axes['parts']}

  def init(params: Any) -> Any:
    return PartStates(
      rest.init(_rest(params)), {name: one.init(_part(params, name)) for name, one in parts.items()}
    )

  def update(updates: Any, state: Any, params: Any = None, **extra) -> Any:
    of_rest: Any = rest.update(_rest(updates), state.rest, _rest(params), **extra)
    found: dict[str, Any] = {}
    states = dict(state.parts)
    for name in updates['parts']:
      trees = _part(updates, name), state.parts[name], _part(params, name)
      one: Any = parts[name].update(*trees, **extra)
      found[name], states[name] = one[0]['parts'][name], one[1]
    return {**of_rest[0], 'parts': found}, PartStates(of_rest[1], states)

  return optax.GradientTransformationExtraArgs(init, update)


def _rest(tree: Any) -> Any:
  return {name: x for name, x in tree.items() if name != 'parts'}


def _part(tree: Any, name: str) -> Any:
  """One part, under its path in the whole tree."""
  return {'parts': {name: tree['parts'][name]}}


# Optimizer state in host memory, transferred one layer at a time.
#
# Moments are needed once per step, and Adam's are twice as large as the
# parameters. Kernels of scanned layers are updated in a loop over the layers:
# each iteration moves the state of one layer to the devices and back. Without
# the loop the compiler would move all of it before the first update.


Arrays = dict[str, jax.Array]  # leaves of a tree by their paths


def is_there(x: jax.Array) -> bool:
  """Whether an array is in host memory; inside a compiled function."""
  return jax.typeof(x).memory_space == jax.memory.Space.Host


def near(x: jax.Array) -> jax.Array:
  """Moves an array to device memory; inside a compiled function."""
  return jax.device_put(x, jax.memory.Space.Device) if is_there(x) else x


def by_layer(build: Build) -> Build:
  """An optimizer whose state may be in host memory.

  Its `update` takes an extra argument `sound`, bool []; if false, the state is
  unchanged. (To choose between two states, a caller would have to transfer
  both.)

  Args:
    build: makes an optimizer that treats each layer's tensor independently of
      the others; its state has the same form.
  """

  def built(axes: Axes) -> optax.GradientTransformationExtraArgs:
    def update(updates, state, params=None, **extra):
      sound = extra.pop('sound')
      lengths = jax.tree_util.tree_map_with_path(_length, axes, updates)
      leaves, kept = _by_path(updates), _by_path(state)
      new: Arrays = {}
      counts: Arrays = {}
      # Unstacked parameters come first: their state has all counts.
      for length in sorted({0, *jax.tree.leaves(lengths)}):
        of = functools.partial(_only, lengths, length)
        group = _group(build(of(axes)), of(updates), of(params), sound, extra)
        grads = {name: leaves[name] for name in group.names}
        own = {n: kept[n] for n in group.state_names if n not in counts}
        if length:
          run = functools.partial(group.turn, counts, of(params))
          grads, own = jax.lax.fori_loop(0, length, run, (grads, own))
        else:
          counts = own
          grads, own = group.update(grads, own, of(params))
        leaves |= grads
        new |= own
      return (
        jax.tree.structure(updates).unflatten(leaves.values()),
        jax.tree.structure(state).unflatten(new[name] for name in kept),
      )

    whole = build(axes)
    return optax.GradientTransformationExtraArgs(whole.init, update)

  return built


class _Group(NamedTuple):
  """Parameters that are updated together.

  Attributes:
    tree: the structure of all parameters, with the others masked.
    form: the structure of the optimizer's state.
    names: paths of the parameters.
    state_names: paths of the state's arrays.
    sound: bool []; if false, the state is unchanged.
    extra: further arguments of the optimizer's update.
  """

  optimizer: optax.GradientTransformationExtraArgs
  tree: Any
  form: Any
  names: tuple[str, ...]
  state_names: tuple[str, ...]
  sound: jax.Array
  extra: Mapping[str, Any]

  def update(self, grads: Arrays, state: Arrays, params: Any) -> tuple[Arrays, Arrays]:
    """The updates, and the new state in the memory that it came from."""
    old = {name: near(x) for name, x in state.items()}
    updates, new = self.optimizer.update(
      self.tree.unflatten(grads[name] for name in self.names),
      self.form.unflatten(old[name] for name in self.state_names),
      params,
      **self.extra,
    )
    kept = {name: jnp.where(self.sound, x, old[name]) for name, x in _by_path(new).items()}
    far = jax.memory.Space.Host
    return _by_path(updates), {
      name: jax.device_put(x, far) if is_there(state[name]) else x for name, x in kept.items()
    }

  def turn(
    self, counts: Arrays, params: Any, layer: jax.Array, arrays: tuple[Arrays, Arrays]
  ) -> tuple[Arrays, Arrays]:
    """Updates one layer in the arrays of all layers: gradients and state."""

    def one(x: jax.Array) -> jax.Array:
      return jax.lax.dynamic_slice_in_dim(x, layer, 1)

    grads, state = jax.tree.map(one, arrays)
    updates, new = self.update(grads, counts | state, jax.tree.map(one, params))
    return jax.tree.map(
      lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, layer, 0),
      arrays,
      (updates, {name: new[name] for name in state}),
    )


def _group(
  optimizer: optax.GradientTransformation,
  updates: Any,
  params: Any,
  sound: jax.Array,
  extra: Mapping[str, Any],
) -> _Group:
  form = jax.eval_shape(optimizer.init, params)
  return _Group(
    optax.with_extra_args_support(optimizer),
    jax.tree.structure(updates),
    jax.tree.structure(form),
    tuple(_by_path(updates)),
    tuple(_by_path(form)),
    sound,
    extra,
  )


def _length(path: Any, names: PartitionSpec, x: jax.Array) -> int:
  """The number of layers of a stack of kernels; 0: not a stack."""
  stacked = is_matrix(path) and names and names[0] == 'layers'
  return len(x) if stacked else 0


def _only(lengths: Any, length: int, tree: Any) -> Any:
  """Masks the leaves of a tree whose stacks have another length."""
  return jax.tree.map(lambda n, x: x if n == length else optax.MaskedNode(), lengths, tree)


def _by_path(tree: Any) -> Arrays:
  return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
