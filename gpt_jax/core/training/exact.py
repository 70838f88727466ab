# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Sums over a batch with the same bits on any mesh: `batch.exact_over`.

Floating-point addition is not associative: a sum has the same bits only if the
same numbers are added in the same order. A batch is cut into V virtual shards of
equal rows. Each is computed alone, by the same program on the same shapes, and
their sums are added in one binary tree over V, here of 8 with data=2 and fsdp=2:

  data         0               1
  turn     0       1       0       1
  fsdp   0   1   0   1   0   1   0   1
  shard  0   1   2   3   4   5   6   7
          \ /     \ /     \ /     \ /    devices exchange halves
            \     /         \     /      each adds its turns
               \               /         devices exchange what they have

So the digits of a virtual shard's number are, from the highest: its device along
`data`, its turn on that device, its device along `fsdp`. The lowest levels are
sums over `fsdp`, by recursive halving, which leaves a device with its own block
of the gradient, as a reduce-scatter does. In the next levels such blocks wait for
their partners, one for each level, as the digits of a binary counter. The highest
are sums over `data`, by recursive doubling. The partners of an exchange get the
same bits, as a + b = b + a. A mesh decides which levels are which, and nothing
else.

The norm of split arrays is summed in such a tree over blocks of each. Operations
on single elements need nothing.
"""

import collections
import functools
import itertools
import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from gpt_jax.core import sharding
from gpt_jax.core.nn import layers, layout
from gpt_jax.core.nn.layers import Rows
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import Batch, added
from gpt_jax.core.spec import UsageError

DATA, FSDP = 'data', 'fsdp'
WHOLE = PartitionSpec()
# Else what is rounded to bfloat16 stays in float32 where nothing is sent in
# between: weights that are gathered are rounded, those of one device are not.
COMPILER = {'xla_allow_excess_precision': False}


class Exact(NamedTuple):
  """How the sums of a run are added.

  Attributes:
    over: V, the number of virtual shards: `batch.exact_over`.
    data: the devices along this mesh axis.
    fsdp: those along this one.
    specs: how each parameter is split.
    trained: the same of those that are trained.
  """

  over: int
  data: int
  fsdp: int
  specs: Any
  trained: Any

  @property
  def turns(self) -> int:
    """The virtual shards of a device, one after the other."""
    return self.over // (self.data * self.fsdp)

  def gradients(self, function: Callable[[Any, Any], Any], params: Any, batch: Any) -> Any:
    """The sums of gradients over a batch, and of what comes with them.

    Args:
      function: from parameters and the rows of a virtual shard to gradients of
        the trained parameters, and to a tree of sums.
      params: all of them, or {}.
      batch: arrays [rows, ...].

    Returns:
      What `function` does, in float32.
    """
    return self._over_batch(function, params, batch, self.trained)

  def sums(self, function: Callable[[Any, Any], Any], params: Any, batch: Any) -> Any:
    """As `gradients`, of a function that returns sums alone."""
    return self._over_batch(lambda *args: ({}, function(*args)), params, batch, {})[1]

  def weights(self, objective: Objective, batch: Batch) -> dict[str, jax.Array]:
    """`Objective.weights` of a batch."""
    if not jax.eval_shape(objective.weights, batch):
      return {}
    return self.sums(lambda _, part: objective.weights(part), {}, batch)

  def _over_batch(
    self, function: Callable[[Any, Any], Any], params: Any, batch: Any, trained: Any
  ) -> Any:
    """`gradients`, of parameters that are split as `trained` says.

    The layers of a stack are gathered one by one, as they are read, and so are
    their gradients added: the loop over the layers has those of one. All other
    parameters are gathered at once.
    """
    num_rows = len(jax.tree.leaves(batch)[0])
    filled = -(-num_rows // self.over) * self.over

    def split(x: jax.Array) -> jax.Array:
      x = jnp.pad(x, [(0, filled - len(x)), *[(0, 0)] * (x.ndim - 1)])
      return x.reshape(self.data, self.turns, self.fsdp, filled // self.over, *x.shape[1:])

    def run(params: Any, given: Any, gather: layout.Gather) -> Any:
      part, numbers_B = given
      rows = Rows(numbers_B, num_rows, filled > num_rows)
      with layout.within(*sharding.AXES), layers.use_rows(rows), layout.gathering(gather):
        return function(params, part)

    def here(params: Any, given: Any) -> Any:
      given = jax.tree.map(lambda x: x[0, :, 0], given)

      def gather(path: tuple[str, ...]) -> Callable[[Any], Any]:
        of_layer = functools.reduce(operator.getitem, path, self.specs)
        # Without the axis of the layers.
        of_layer = jax.tree.map(lambda spec: PartitionSpec(*spec[1:]), of_layer)
        return lambda tree: {'params': jax.tree.map(read, tree['params'], of_layer, stacks[path])}

      def read(x: jax.Array, spec: PartitionSpec, dtype: Any) -> jax.Array:
        return x if _dim(spec) is None else _read(x, spec, dtype, self.fsdp)

      def shard(given: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.float32), run(whole, given, gather))

      def at_first(path: Any, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        # In float32: a gradient has the dtype of its parameter, and is a sum.
        return x.astype(jnp.float32) if _is_in(path, stacks) else _gathered(x, spec)

      def over_fsdp(path: Any, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        done = _dim(spec) is not None and _is_in(path, stacks)
        return x if done else _halved(x, spec, self.fsdp)

      def exchange(sums: Any) -> Any:
        grads = jax.tree_util.tree_map_with_path(over_fsdp, sums[0], trained)
        return grads, _doubled(sums[1], FSDP, self.fsdp)

      whole = jax.tree_util.tree_map_with_path(at_first, params, specs)
      sums = _counted(shard, exchange, given, once=_once(given))
      return _doubled(sums, DATA, self.data)

    specs = self.specs if params else {}
    given = jax.tree.map(split, (batch, jnp.arange(filled)))
    stacks = _stacks(run, params, given)
    each = jax.shard_map(
      here,
      in_specs=(specs, PartitionSpec(DATA, None, FSDP)),
      out_specs=(trained, WHOLE),
      check_vma=False,  # sums are equal on all devices, by construction
    )
    return each(params, given)

  def squares(self, tree: Any) -> Any:
    """The sum of squares of each array of a tree like the trained parameters.

    An array has as many blocks as could lie on a device each, along the
    dimension that `fsdp` splits on some mesh; one without it has one block.
    """
    leaves, form = jax.tree.flatten(tree)
    specs = form.flatten_up_to(self.trained)
    # Blocks of an array, and of each device's part of it.
    numbers = [
      1 if (dim := _dim(spec)) is None else math.gcd(self.over, x.shape[dim])
      for x, spec in zip(leaves, specs, strict=True)
    ]
    own = [max(1, number // self.fsdp) for number in numbers]

    def here(leaves: list[jax.Array]) -> list[jax.Array]:
      # Outside of the loops: a product that is added at once may not be rounded.
      leaves = [jnp.square(x) for x in leaves]
      once, found = _once(leaves), [jnp.zeros(count) for count in own]

      def block(number: jax.Array, sums: Any, leaves: Any, specs: Any, count: int) -> Any:
        def add(sums: jax.Array, x: jax.Array, spec: PartitionSpec) -> jax.Array:
          dim = _dim(spec)
          if dim is not None:
            size = x.shape[dim] // count
            x = jax.lax.dynamic_slice_in_dim(x, number * size, size, dim)
          return sums.at[number].set(_tree(x))

        return [add(*each) for each in zip(sums, leaves, specs, strict=True)]

      for count in sorted(set(own)):
        at = [i for i, number in enumerate(own) if number == count]
        some = [leaves[i] for i in at]
        block_of = functools.partial(block, specs=[specs[i] for i in at], count=count)
        sums = _loop(count, once, block_of, [found[i] for i in at], some)
        for i, x in zip(at, sums, strict=True):
          found[i] = x
      joined = jax.lax.all_gather(jnp.concatenate(found), FSDP)
      starts = [0, *itertools.accumulate(own)]
      return [
        _tree(joined[:, start : start + count].reshape(-1)[:number])
        for start, count, number in zip(starts, own, numbers, strict=False)
      ]

    each = jax.shard_map(here, in_specs=(specs,), out_specs=WHOLE, check_vma=False)
    return form.unflatten(each(leaves))


def norm(squares: Any) -> jax.Array:
  """The Euclidean norm of some arrays, from `Exact.squares` of each."""
  return jnp.sqrt(sum(jax.tree.leaves(squares), jnp.float32(0)))


def check_mesh(over: int, sizes: Mapping[str, int], rules: Mapping[str, Any]) -> None:
  """Rejects a mesh or rules that cut a batch, or sums, in other ways.

  Args:
    over: `batch.exact_over`.
    sizes: of the mesh, by axis.
    rules: of `sharding.parse_rules`.
  """
  said = f'batch.exact_over={over}'
  for axis, size in sizes.items():
    if axis not in (DATA, FSDP) and size > 1:
      raise UsageError(
        f'mesh.{axis}={size}: splits what one row sums, and {said} adds sums over rows alone in '
        f'the same order on any mesh; give mesh.{axis}=1, and more of mesh.data or mesh.fsdp'
      )
    if size & (size - 1):
      raise UsageError(
        f'mesh.{axis}={size}: {said} adds in a binary tree; give a power of two, such as '
        f'{1 << (size.bit_length() - 1)}, on as many devices'
      )
  devices = sizes[DATA] * sizes[FSDP]
  if devices > over:
    raise UsageError(
      f'{said}: fewer virtual shards than the {devices} devices of mesh.data={sizes[DATA]} and '
      f'mesh.fsdp={sizes[FSDP]}; give {devices} or more, or fewer devices'
    )
  for name, axes in rules.items():
    used = [axis for axis in axes if axis in (DATA, FSDP)]
    # What may stay whole has other blocks on another mesh; layers are read one by one.
    whole = name in ('layers', *sharding.MAY_BE_WHOLE)
    if name != 'group' and used not in (
      [],
      [DATA, FSDP] if name == 'batch' else [FSDP] * (not whole),
    ):
      raise UsageError(
        f'mesh.rules.{name}={", ".join(axes)!r}: {said} needs rows that are split by data, then '
        'fsdp, and parameters by fsdp alone, in their width; leave the rule at its default'
      )


def check_threads(over: int, mesh: Mesh) -> None:
  """Rejects processes on CPUs whose number of threads is not fixed.

  Over them XLA splits matrix products on a CPU, sums of a product too. It takes
  as many as there are cores, or devices of the process if these are more.
  """
  devices = max(collections.Counter(x.process_index for x in mesh.devices.flat).values())
  given = os.environ.get('PJRT_NPROC', '')
  if mesh.devices.flat[0].platform == 'cpu' and not (given.isdigit() and int(given) >= devices):
    raise UsageError(
      f'batch.exact_over={over}: on CPUs bits depend on the threads of a process, by default its '
      f'cores; set PJRT_NPROC={max(devices, 8)} for all processes, and at each start'
    )


# On a device, inside of `jax.shard_map`.


def _stacks(run: Callable[[Any, Any, layout.Gather], Any], params: Any, given: Any) -> Any:
  """The stacks that `run` reads once, by path: the dtype of each parameter as read.

  Of a stack that is read twice a layer's gradient is the sum of two, each of
  which would be added over the devices before. With several models the paths are
  not those of all parameters.
  """
  count: collections.Counter = collections.Counter()
  found: dict[tuple[str, ...], Any] = {}

  def first(params: Any, given: Any) -> None:
    trees = {}

    def note(path: tuple[str, ...]) -> Callable[[Any], Any]:
      def keep(tree: Any) -> Any:
        trees[path] = tree
        return tree

      count[path] += 1
      return keep

    with layout.weights_read() as read:
      run(params, jax.tree.map(lambda x: x[0, 0, 0], given), note)
    for path, tree in trees.items():
      found[path] = jax.tree.map(
        lambda x: getattr(read.get(id(x)), 'dtype', x.dtype), tree['params']
      )

  if not params or 'parts' in params:
    return {}
  jax.eval_shape(first, params, given)
  return {path: tree for path, tree in found.items() if count[path] == 1}


def _is_in(path: Any, stacks: Any) -> bool:
  """Whether a parameter, by its path in a tree, belongs to one of the stacks."""
  names = tuple(key.key for key in path)
  return any(names[: len(stack)] == stack for stack in stacks)


def _counted(
  shard: Callable[[Any], Any], exchange: Callable[[Any], Any], given: Any, once: jax.Array
) -> Any:
  """The tree's sum of the turns: a binary counter whose digits are partial sums.

  After turn 5, or 101 in binary, two of them wait: that of turns 0 to 3, and
  that of 4 and 5 ... Each level of the tree has one, the last the result.

  Args:
    shard: from the arrays of a turn to their sums.
    exchange: adds those of the devices along `fsdp`.
    given: arrays [turns, ...], of a power of two.
    once: see `_once`.
  """
  shapes = jax.eval_shape(shard, jax.tree.map(lambda x: x[0], given))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  turns = len(jax.tree.leaves(given)[0])
  levels = turns.bit_length()
  waiting = jax.tree.map(
    lambda x: jnp.zeros((levels, *x.shape), x.dtype), jax.eval_shape(exchange, zeros)
  )

  def turn(number: jax.Array, waiting: Any, given: Any) -> Any:
    # In a loop of its own the compiler can fuse nothing of what comes before and
    # after into the program of a virtual shard, and round that differently.
    rows = jax.tree.map(lambda x: x[number], given)
    sums = exchange(_loop(1, once, lambda *args: shard(args[-1]), zeros, rows))

    def add(level: jax.Array, sums: Any) -> Any:
      return added(jax.tree.map(lambda x: x[level], waiting), sums)

    # As many levels are full as the number ends with ones.
    full = jax.lax.population_count(number ^ (number + 1)) - 1
    with jax.named_scope('runs_1_times'):  # turns - 1 in all
      sums = jax.lax.fori_loop(0, full, add, sums)
    return jax.tree.map(lambda x, y: x.at[full].set(y), waiting, sums)

  waiting = _loop(turns, once, turn, waiting, given)
  return jax.tree.map(lambda x: x[-1], waiting)


def _loop(
  times: int, once: jax.Array, body: Callable[[jax.Array, Any, Any], Any], start: Any, given: Any
) -> Any:
  """`fori_loop` of a number of times that the compiler does not know.

  `plan` reads it in the name of the scope.

  Args:
    body: from the number of a turn, what the one before it returned, and `given`.
    given: arrays. What is computed of them alone stays in the loop, too.
  """

  def turn(number: jax.Array, before: Any) -> Any:
    # Else it is the same in each turn, and the compiler moves it out.
    own, number = jax.lax.optimization_barrier((given, number))
    return body(number, before, own)

  with jax.named_scope(f'runs_{times}_times'):
    return jax.lax.fori_loop(0, times * once, turn, start)


def _once(tree: Any) -> jax.Array:
  """The number 1, int32 [], which the compiler does not know.

  A loop that it knows to run once it would dissolve, and what it computes on one
  mesh would no longer be the program that it loops over on another.
  """
  first = next(x for x in jax.tree.leaves(tree) if x.dtype.itemsize == 4)
  bits = jax.lax.bitcast_convert_type(first[(0,) * first.ndim], jnp.uint32)
  return 1 + jnp.minimum((bits >> 1).astype(jnp.int32), 0)


def _dim(spec: PartitionSpec) -> int | None:
  """The dimension that is split over `fsdp`; None: there is none."""
  for dim, axes in enumerate(spec):
    if axes == FSDP or (isinstance(axes, tuple) and FSDP in axes):
      return dim
  return None


def _gathered(x: jax.Array, spec: PartitionSpec) -> jax.Array:
  """The whole array."""
  dim = _dim(spec)
  return x if dim is None else jax.lax.all_gather(x, FSDP, axis=dim, tiled=True)


def _read(x: jax.Array, spec: PartitionSpec, dtype: Any, devices: int) -> jax.Array:
  """The whole array as a layer multiplies it, whose gradient is added at once."""

  @jax.custom_vjp
  def read(x: jax.Array) -> jax.Array:
    return _gathered(x.astype(dtype), spec)

  def backward(_: None, dy: jax.Array) -> tuple[jax.Array]:
    # Nothing of the sum may be fused into the product before it.
    dy = jax.lax.optimization_barrier(dy)
    return (_halved(dy.astype(jnp.float32), spec, devices),)

  read.defvjp(lambda x: (read(x), None), backward)
  return read(x)


def _halved(x: jax.Array, spec: PartitionSpec, devices: int) -> jax.Array:
  """The block of this device in the sum over `fsdp`, by recursive halving.

  In exchange i partners differ in digit i of their numbers, and each keeps the
  blocks of the devices that have its own digit there.
  """
  dim = _dim(spec)
  if dim is None:
    return _doubled(x, FSDP, devices)
  before, after = x.shape[:dim], x.shape[dim + 1 :]
  number, width = jax.lax.axis_index(FSDP), x.shape[dim] // devices
  for digit in range(devices.bit_length() - 1):
    x = x.reshape(*before, -1, 2, width, *after)
    own = (number >> digit) & 1
    keep, give = (
      jax.lax.dynamic_index_in_dim(x, half, dim + 1, keepdims=False) for half in (own, 1 - own)
    )
    x = keep + _exchanged(give, FSDP, devices, digit)
  return x.reshape(*before, width, *after)


def _doubled(tree: Any, axis: str, devices: int) -> Any:
  """The sum over a mesh axis, on each device, by recursive doubling."""
  for digit in range(devices.bit_length() - 1):
    tree = added(tree, jax.tree.map(lambda x: _exchanged(x, axis, devices, digit), tree))  # noqa: B023
  return tree


def _exchanged(x: jax.Array, axis: str, devices: int, digit: int) -> jax.Array:
  """That of the device whose number differs in one digit."""
  pairs = [(i, i ^ (1 << digit)) for i in range(devices)]
  return jax.lax.ppermute(x, axis, pairs)


def _tree(x: jax.Array) -> jax.Array:
  """The sum of an array: one half added to the other, axis by axis.

  In additions of elements the compiler has no order to choose. That of its own
  sums depends on the shape of the array that they are of a part of.
  """
  for axis in range(x.ndim):
    while (size := x.shape[axis]) > 1:
      half = size // 2
      low, high, odd = (
        jax.lax.slice_in_dim(x, *ends, axis=axis)
        for ends in ((0, half), (half, 2 * half), (2 * half, size))
      )
      x = jnp.concatenate([low + high, odd], axis) if size % 2 else low + high
  return x.reshape(())
