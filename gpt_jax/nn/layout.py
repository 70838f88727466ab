# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The devices in use, for what the compiler cannot split over them by itself.

The mesh and the rules are those in context, which the caller sets; here they
are known by logical axes only.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

LogicalAxes = tuple[str | None, ...]


def platform() -> str:
  """`tpu`, `gpu` or `cpu`: of the mesh in use, else of the process."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def mesh_axes(logical: str) -> tuple[str, ...]:
  """The axes of the mesh in use that a logical axis is split over."""
  if jax.sharding.get_abstract_mesh().empty:
    return ()
  spec: Any = nn.logical_to_mesh_axes((logical,))
  axes = spec[0] or ()
  axes = (axes,) if isinstance(axes, str) else axes
  shape = jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in axes if shape[axis] > 1)


def num_parts(logical: str) -> int:
  """How many parts the mesh in use splits a logical axis into; 1 without."""
  mesh = jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape[axis] for axis in mesh_axes(logical))


def per_device(
  function: Callable[..., jax.Array],
  in_axes: Any,
  out_axes: LogicalAxes,
) -> Callable[..., jax.Array]:
  """`function` on what each device of the mesh in use holds of its arguments.

  For Pallas kernels and the like, which no compiler can split by itself.
  Axes named None are whole on each device. `in_axes` is a tree like the
  arguments, with logical axes for leaves.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return function
  return jax.shard_map(
    function,
    in_specs=jax.tree.map(_spec, in_axes, is_leaf=_is_names),
    out_specs=_spec(out_axes),
    check_vma=False,  # Pallas kernels do not say how their results vary
  )


def _is_names(tree: Any) -> bool:
  return type(tree) is tuple and all(
    name is None or isinstance(name, str) for name in tree
  )


def _spec(axes: LogicalAxes) -> PartitionSpec:
  spec = nn.logical_to_mesh_axes(axes)
  assert spec is not None
  return spec


# Where arrays lie on the mesh while a step is computed.
#
# What the compiler does not choose well by itself, each found in programs that
# were compiled for TPU slices (`tests/training/test_layout.py`). On one device,
# and without a mesh, nothing of it has an effect.


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Splits each dimension over the mesh axes of its logical axis.

  One that does not divide over them stays whole, as do those named None.
  """
  names = tuple(
    None if name is None or size % num_parts(name) else name
    for name, size in zip(axes, x.shape, strict=True)
  )
  return nn.with_logical_constraint(x, names)


def constrain_tokens(
  x: jax.Array, axes: tuple[str | tuple[str, ...] | None, ...]
) -> jax.Array:
  """`constrain`, where a dimension may be split over several logical axes.

  Such as that of the parts of a batch that devices have, which are of its
  rows and of their length.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return x
  spec = []
  for names, size in zip(axes, x.shape, strict=True):
    names = (names,) if isinstance(names, str) else names or ()
    found = tuple(axis for name in names for axis in mesh_axes(name))
    parts = math.prod(num_parts(name) for name in names)
    spec.append(None if size % parts else found or None)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def stream(x_BLD: jax.Array) -> jax.Array:
  """Splits what goes from layer to layer over its features, too.

  Rematerialisation keeps one such array for each layer: whole ones would take
  `tensor` times the memory.
  """
  return constrain(x_BLD, ('batch', 'length', 'stream'))


def gather(x_BLD: jax.Array) -> jax.Array:
  """From the split stream to what a sublayer multiplies, which is whole.

  Of a norm's output in the compute dtype: without the first constraint its
  float32 intermediate would be sent, twice as large.
  """
  return constrain(stream(x_BLD), ('batch', 'length', None))


def weight(kernel: jax.Array, axes: tuple[str | None, ...], dtype: Any):
  """A stored kernel or table as it is multiplied: cast, then gathered.

  The features that it is stored in parts of (`embed`) become whole, once for
  all that use it. Left to itself the compiler may send float32, or several
  times; and of the gradient it sums whole matrices instead of each device's
  part (a reduce-scatter, half of the traffic).
  """
  kernel = constrain(kernel.astype(dtype), axes)
  return constrain(kernel, tuple(None if a == 'embed' else a for a in axes))


def pad_rows(table: jax.Array, axis: str) -> jax.Array:
  """Rows of zeros, so that the first dimension divides over a logical axis.

  A vocabulary need not: 256,000 tokens over 12 devices are computed as 256,008.
  """
  more = -len(table) % num_parts(axis)
  return jnp.pad(table, ((0, more), (0, 0))) if more else table
