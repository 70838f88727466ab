# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The current mesh by logical axes, and constraints on where arrays lie.

The caller sets the mesh and the rules in context. This is for computations that
the compiler does not split well, or at all, by itself.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

LogicalAxes = tuple[str | None, ...]


def platform() -> str:
  """`tpu`, `gpu` or `cpu`: of the current mesh, else of the process."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def mesh_axes(logical: str) -> tuple[str, ...]:
  """The axes of the current mesh that a logical axis is split over."""
  if jax.sharding.get_abstract_mesh().empty:
    return ()
  spec: Any = nn.logical_to_mesh_axes((logical,))
  axes = spec[0] or ()
  axes = (axes,) if isinstance(axes, str) else axes
  shape = jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in axes if shape[axis] > 1)


def num_parts(logical: str) -> int:
  """Number of shards of a logical axis on the current mesh; 1 without one."""
  mesh = jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape[axis] for axis in mesh_axes(logical))


@contextlib.contextmanager
def within(*split: str):
  """Makes logical constraints act on the devices of one place of mesh axes.

  For a function under `jax.vmap` with an axis as its `spmd_axis_name`, or under
  `jax.shard_map` over the axes.
  """
  # Tuples of axes, as the caller gave them; Flax would take other types, too.
  given: Any = nn.get_logical_axis_rules()
  rules = tuple(
    (logical, tuple(axis for axis in axes if axis not in split)) for logical, axes in given
  )
  with nn.logical_axis_rules(rules):
    yield


def per_device(
  function: Callable[..., jax.Array], in_axes: Any, out_axes: LogicalAxes
) -> Callable[..., jax.Array]:
  """Runs `function` on each device's shards of its arguments.

  For Pallas kernels and the like, which the compiler cannot split. Axes named
  None are whole on each device. `in_axes` is a tree like the arguments, with
  logical axes as leaves.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return function
  return jax.shard_map(
    function,
    in_specs=jax.tree.map(_spec, in_axes, is_leaf=_is_names),
    out_specs=_spec(out_axes),
    check_vma=False,  # Pallas kernels do not declare how results vary
  )


def _is_names(tree: Any) -> bool:
  return type(tree) is tuple and all(name is None or isinstance(name, str) for name in tree)


def _spec(axes: LogicalAxes) -> PartitionSpec:
  spec = nn.logical_to_mesh_axes(axes)
  assert spec is not None
  return spec


# Sharding constraints on intermediate arrays.
#
# Each mends a bad choice of the compiler in programs compiled for TPU slices
# (`tests/core/training/test_on_tpu.py`). On one device, and without a mesh,
# they have no effect.


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Splits each dimension over the mesh axes of its logical axis.

  Dimensions that do not divide over them stay whole, as do those named None.
  """
  return nn.with_logical_constraint(x, _divided(x.shape, axes))


def spec(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> PartitionSpec:
  """How `constrain` splits an array of this shape."""
  return _spec(_divided(shape, axes))


def _divided(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> LogicalAxes:
  return tuple(
    None if name is None or size % num_parts(name) else name
    for name, size in zip(axes, shape, strict=True)
  )


def constrain_tokens(x: jax.Array, axes: tuple[str | tuple[str, ...] | None, ...]) -> jax.Array:
  """`constrain`, with dimensions that may be split over several logical axes.

  One is the devices' parts of a batch, split by rows and by their length.
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
  """Splits the residual stream over its features too.

  Rematerialisation stores one such array per layer: whole ones would take
  `tensor` times the memory.
  """
  return constrain(x_BLD, ('batch', 'length', 'stream'))


def gather(x_BLD: jax.Array) -> jax.Array:
  """Gathers the features of the split stream for a sublayer's products.

  It gathers a norm's output in the compute dtype: without the first constraint
  its float32 intermediate would be sent, twice as large.
  """
  return constrain(stream(x_BLD), ('batch', 'length', None))


class Weight(NamedTuple):
  """The arguments of `weight` for a kernel."""

  axes: tuple[str | None, ...]
  dtype: Any


_READ: contextvars.ContextVar[dict[int, Weight] | None] = contextvars.ContextVar(
  'weights_read', default=None
)


@contextlib.contextmanager
def weights_read():
  """Yields what `weight` is called with in this context, by `id` of the kernel.

  The ids are those of tracers, as long as these live.
  """
  read: dict[int, Weight] = {}
  token = _READ.set(read)
  try:
    yield read
  finally:
    _READ.reset(token)


def weight(kernel: jax.Array, axes: tuple[str | None, ...], dtype: Any):
  """A stored kernel or table as it is multiplied: cast, then gathered.

  Its split dimension (`embed`) is gathered once for all uses. By itself the
  compiler may send float32, or gather several times; and for the gradient it
  all-reduces whole matrices instead of a reduce-scatter, with half the traffic.
  """
  if (read := _READ.get()) is not None:
    read[id(kernel)] = Weight(axes, dtype)
  kernel = constrain(kernel.astype(dtype), axes)
  return constrain(kernel, tuple(None if a == 'embed' else a for a in axes))


# From the path of a stack of layers to what gathers the parameters of one of
# them, a tree of what a device has of each.
Gather = Callable[[tuple[str, ...]], Callable[[Any], Any]]
_GATHER: contextvars.ContextVar[Gather | None] = contextvars.ContextVar('gather', default=None)


@contextlib.contextmanager
def gathering(gather: Gather):
  """Has a loop over layers gather each layer's parameters as it reaches it.

  For parameters that `jax.shard_map` has split. Without it they would have to be
  gathered before, those of all layers.
  """
  token = _GATHER.set(gather)
  try:
    yield
  finally:
    _GATHER.reset(token)


def gathered(layer: type[nn.Module], path: tuple[str, ...]) -> type[nn.Module]:
  """A layer of the stack at `path`, which gathers as `gathering` says, if it does."""
  gather = _GATHER.get()
  if gather is None:
    return layer
  return nn.map_variables(layer, 'params', trans_in_fn=gather(path))


def pad_rows(table: jax.Array, axis: str, multiple: int = 1) -> jax.Array:
  """Pads with rows of zeros until the rows divide over a logical axis.

  E.g. a vocabulary of 256,000 tokens over 12 devices is computed as 256,008.
  The part of each device is a multiple of `multiple`.
  """
  more = -len(table) % (num_parts(axis) * multiple)
  return jnp.pad(table, ((0, more), (0, 0))) if more else table
