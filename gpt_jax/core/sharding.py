# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and which mesh axis each logical axis is split over."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from gpt_jax.core import ring_order
from gpt_jax.core.spec import UsageError

AXES: tuple[str, ...] = ('data', 'stage', 'fsdp', 'expert', 'context', 'tensor')
# Over this axis stand whole models, which take other rows of each batch.
REPLICAS = 'data'
Rules = tuple[tuple[str, tuple[str, ...]], ...]
# Logical axes that stay whole where they do not divide over their mesh axes.
# The model fills a vocabulary up where it computes with it; a few key/value
# heads are repeated. Whatever else did not divide would fill the memory.
MAY_BE_WHOLE = ('kv_heads', 'vocab')
# The most programs of a loop that were started and may not be done.
MOST_STARTED = 8


def make_mesh(config: Any, devices: Sequence[Any] | None = None, *, width: int = 0) -> Mesh:
  """Builds the mesh of `config.mesh` over all devices.

  One axis may be -1: it takes the devices that the others leave. If it is
  `fsdp` it takes as many as divide the width, and `data` the rest. Over several
  TPU slices, between which the network is slow, `stage` is split over the
  slices first, as far as it divides, then `data`: activations between stages,
  then gradients, are the least that the axes exchange.

  Args:
    config: `config.mesh`.
    devices: all of them; None: those of this process's backend.
    width: of the models; 0: any number of devices divides it.
  """
  devices = jax.devices() if devices is None else devices
  sizes = [config[axis] for axis in AXES]
  text = ', '.join(f'mesh.{a}={s}' for a, s in zip(AXES, sizes, strict=True))
  fixed = math.prod(s for s in sizes if s != -1)
  if sizes.count(-1) > 1 or any(s < 1 and s != -1 for s in sizes):
    raise UsageError(f'{text}: sizes are positive, and one may be -1')
  if -1 in sizes and len(devices) % fixed == 0:
    sizes = fill_sizes(sizes, len(devices), width)
  if math.prod(sizes) != len(devices):
    count = len(devices)
    remedy = f'the sizes must multiply to {count} (one may be -1: the rest)'
    if -1 in sizes:
      nearest = max(count - count % fixed, fixed)
      remedy = f'those that are not -1 multiply to {fixed}: start on {nearest}, or change the sizes'
    raise UsageError(f'{text}: does not match the {count} devices here; {remedy}')
  slices = num_slices(devices)
  if slices == 1:
    grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES)
  data, stage, *inside = sizes
  of_stage = math.gcd(stage, slices)
  of_data = slices // of_stage
  if data % of_data:
    raise UsageError(
      f'{text}: data={data} does not divide over {of_data} slices, between '
      f'which only data and stage are split; give mesh.data={of_data} or a '
      'multiple'
    )
  grid = mesh_utils.create_hybrid_device_mesh(
    [data // of_data, stage // of_stage, *inside],
    [of_data, of_stage, *(1 for _ in inside)],
    devices,
    allow_split_physical_axes=True,
  )
  return Mesh(grid, AXES)


def fill_sizes(sizes: Sequence[int], num_devices: int, width: int = 0) -> list[int]:
  """The sizes of `AXES` without a -1; see `make_mesh`."""
  filled = dict(zip(AXES, sizes, strict=True))
  rest = num_devices // math.prod(n for n in sizes if n != -1)
  for axis in [axis for axis in AXES if filled[axis] == -1]:
    filled[axis] = math.gcd(rest, width) if axis == 'fsdp' else rest
    filled['data'] *= rest // filled[axis]
  return list(filled.values())


def fewer_devices(config: Any, count: int, *, width: int, each: int) -> tuple[int, int] | None:
  """Fewer devices, over which an open `fsdp` splits the model into more parts.

  For example, a model of width 768 has an `fsdp` of 8 on 56 devices, and of 48
  on 48 devices.

  Args:
    config: `config.mesh`.
    count: number of devices that there are.
    each: devices of a host, of which all are used or none.

  Returns:
    The largest number of devices that gives the largest `fsdp`, and that
    `fsdp`; None: no smaller number is better, or `fsdp` is given.
  """
  if config['fsdp'] != -1:
    return None
  fixed = math.prod(config[axis] for axis in AXES if axis != 'fsdp')

  def fsdp(number: int) -> int:
    return math.gcd(number // fixed, width)

  fewer = [n for n in range(each, count, each) if n % fixed == 0]
  best = max(fewer, key=lambda n: (fsdp(n), n), default=count)
  return (best, fsdp(best)) if fsdp(best) > fsdp(count) else None


def num_slices(devices: Sequence[Any]) -> int:
  """Number of TPU slices that the devices belong to; 1 on other platforms."""
  if devices[0].platform != 'tpu':
    return 1
  return len({getattr(device, 'slice_index', 0) for device in devices})


def parse_rules(rules: Any) -> Rules:
  """Reads `config.mesh.rules`: logical axis -> comma list of mesh axes."""
  out = []
  for logical, text in rules.items():
    axes = tuple(a.strip() for a in text.split(',') if a.strip())
    for axis in axes:
      if axis not in AXES:
        raise UsageError(
          f'mesh.rules.{logical}={text!r}: unknown mesh axis {axis!r}; one of ' + ', '.join(AXES)
        )
      if axes.count(axis) > 1:
        raise UsageError(f'mesh.rules.{logical}={text!r}: names {axis!r} twice; once is enough')
    out.append((logical, axes))
  return tuple(out)


def replicas_apart(rules: Rules) -> bool:
  """Whether `REPLICAS` splits rows alone, and before all other axes."""
  split = [(name, axes) for name, axes in rules if REPLICAS in axes]
  return all(name in ('batch', 'group') and axes[0] == REPLICAS for name, axes in split)


def check_divisible(abstract: Any, mesh: Mesh | AbstractMesh, rules: Rules) -> None:
  """Checks that each parameter splits evenly over its mesh axes.

  Axes in `MAY_BE_WHOLE` need not.

  Args:
    abstract: parameters with logical axes, as `jax.eval_shape` gives them.
  """
  table = dict(rules)
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    abstract, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
  ):
    for logical, size in zip(leaf.names, leaf.value.shape, strict=True):
      axes = table.get(logical, ())
      parts = math.prod(mesh.shape[a] for a in axes)
      if size % parts and logical not in MAY_BE_WHOLE:
        raise UsageError(
          f'mesh.rules.{logical}={", ".join(axes)!r}: {size} of parameter '
          f'{jax.tree_util.keystr(path, simple=True, separator="/")} does not '
          f'divide over {parts} devices; change the mesh or the width'
        )


def param_shardings(abstract: Any, mesh: Mesh | AbstractMesh, rules: Rules) -> Any:
  """One `NamedSharding` for each parameter, from its logical axes.

  Axes in `MAY_BE_WHOLE` are split only where they divide.
  """
  table: dict[Any, tuple[str, ...]] = dict(rules)

  def of(leaf: nn.LogicallyPartitioned) -> PartitionSpec:
    names = []
    for logical, size in zip(leaf.names, leaf.value.shape, strict=True):
      parts = math.prod(mesh.shape[a] for a in table.get(logical, ()))
      whole = logical in MAY_BE_WHOLE and size % parts
      names.append(None if whole else logical)
    return PartitionSpec(*names)

  specs = jax.tree.map(of, abstract, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
  # Flax names the type of a concrete mesh only, and needs no more than axes.
  any_mesh: Any = mesh
  return nn.logical_to_mesh_sharding(specs, any_mesh, rules)


def batch_sharding(mesh: Mesh, rules: Rules) -> NamedSharding:
  """Batches are split over their rows."""
  return NamedSharding(mesh, PartitionSpec(dict(rules)['batch']))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
  """Every device holds the whole array."""
  return NamedSharding(mesh, PartitionSpec())


def copy_per_process(params: Any, abstract: Any, rules: Rules, width: int) -> tuple[Mesh, Any]:
  """Copies parameters to the devices of each process, for work of its own.

  A copy is split over the devices of its process by `fsdp`, as far as they
  divide the width. All processes must call this together.

  Args:
    params: on a mesh over the devices of all processes.
    abstract: the same tree, with logical axes.

  Returns:
    The mesh of this process's devices, and its copy.
  """
  devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  count = jax.process_count()
  automatic = [-1 if axis == 'fsdp' else 1 for axis in AXES]
  sizes = fill_sizes(automatic, len(devices) // count, width)
  grid = np.reshape(np.array(devices), (count, *sizes))
  copies = Mesh(grid.reshape(count * sizes[0], *sizes[1:]), AXES)
  here = Mesh(grid[jax.process_index()], AXES)

  def own(x: jax.Array, wanted: NamedSharding) -> jax.Array:
    shards = [shard.data for shard in x.addressable_shards]
    split = NamedSharding(here, wanted.spec)
    return jax.make_array_from_single_device_arrays(x.shape, split, shards)

  shardings = param_shardings(abstract, copies, rules)
  return here, jax.tree.map(own, jax.device_put(params, shardings), shardings)


@contextlib.contextmanager
def use(mesh: Mesh, rules: Rules):
  """Makes logical constraints inside `nn/` act on this mesh.

  Trace models inside it.

  Args:
    mesh: `Parts.mesh` of a run.
    rules: `Parts.rules` of it.

  Returns:
    A context manager.

  Raises:
    ValueError: inside of `jit`, where the mesh cannot change.
  """
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules), ring_order.use(mesh):
    yield


def abstract_mesh(sizes: Sequence[int] = (), device: AbstractDevice | None = None) -> AbstractMesh:
  """A mesh of devices that are not here; () has one device."""
  sizes = tuple(sizes) or (1,) * len(AXES)
  return AbstractMesh(sizes, AXES, (AxisType.Auto,) * len(AXES), abstract_device=device)


@contextlib.contextmanager
def on_one_tpu(rules: Rules):
  """Acts as if the devices were one TPU, for decisions before a run."""
  mesh = abstract_mesh(device=AbstractDevice(device_kind='TPU v5', num_cores=1, platform='tpu'))
  with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(rules):
    yield


def host_rows(sharding: NamedSharding, num_rows: int) -> slice:
  """The rows of a global batch that this process reads.

  They run from the first row of its devices to the last. Rows of other
  processes may lie between: on a slice with three dimensions, a host's chips
  are often not neighbours along a mesh axis. `put_batch` leaves those rows out.
  """
  indices = sharding.addressable_devices_indices_map((num_rows,)).values()
  starts, stops, _ = zip(*(i[0].indices(num_rows) for i in indices if i), strict=True)
  return slice(min(starts), max(stops))


def put_batch(
  batch: dict[str, np.ndarray], sharding: NamedSharding, num_rows: int
) -> dict[str, jax.Array]:
  """Assembles global arrays from the `host_rows` that each process read."""
  if jax.process_count() == 1:
    return jax.device_put(batch, sharding)  # the same, in a third of the time
  first = host_rows(sharding, num_rows).start

  def put(rows):
    def of_device(index):
      start, stop, _ = index[0].indices(num_rows)
      return rows[(slice(start - first, stop - first), *index[1:])]

    shape = num_rows, *rows.shape[1:]
    return jax.make_array_from_callback(shape, sharding, of_device)

  return {name: put(rows) for name, rows in batch.items()}


def wait_for_earlier(outputs: Sequence[Any], most: int | None = None) -> None:
  """Waits until at most `most` programs of a loop are not done.

  Call it after each program that a loop starts without needing its output. A
  longer queue hides no more of Python's time, and holds the batches in the
  memory of the devices. On several CPU devices it ends in a deadlock: each
  takes 32 programs, and the thread that then waits to start another is one of
  the few that run them, and may be needed by a device that others wait for in
  a collective.

  Args:
    outputs: of the programs, in the order in which they were started: arrays,
      or trees of them.
    most: at most `MOST_STARTED`, which None stands for.
  """
  most = MOST_STARTED if most is None else most
  if len(outputs) > most:
    jax.block_until_ready(outputs[-1 - most])
