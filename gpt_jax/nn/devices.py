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
