# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where arrays lie on the mesh while a step is computed.

What the compiler does not choose well by itself, each found in programs that
were compiled for TPU slices (`tests/training/test_layout.py`). On one device,
and without a mesh, nothing of it has an effect.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from gpt_jax.nn import devices


def constrain(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
  """Splits each dimension over the mesh axes of its logical axis.

  One that does not divide over them stays whole, as do those named None.
  """
  names = tuple(
    None if name is None or size % devices.num_parts(name) else name
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
    found = tuple(axis for name in names for axis in devices.mesh_axes(name))
    parts = math.prod(devices.num_parts(name) for name in names)
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
  more = -len(table) % devices.num_parts(axis)
  return jnp.pad(table, ((0, more), (0, 0))) if more else table
