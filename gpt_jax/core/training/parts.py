# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds the parts of a run from a resolved config, and its first state.

The state is what a step changes: step count, parameters, optimizer state.
"""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding, spec
from gpt_jax.core.config import Config
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn import pipeline
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.optim import train_state, wrappers
from gpt_jax.core.optim.micro_batches import MicroBatches, divided
from gpt_jax.core.optim.optimizer import OPTIMIZERS, is_matrix
from gpt_jax.core.optim.outer import Outer
from gpt_jax.core.optim.rounding import (
  AVERAGES,
  NEVER,
  PRECISIONS,
  Average,
  Precision,
  in_float32,
  to_float32,
)
from gpt_jax.core.optim.schedules import Ramp, Schedule, Shape
from gpt_jax.core.optim.spikes import SPIKES, SpikePolicy
from gpt_jax.core.optim.train_state import Rates, TrainState
from gpt_jax.core.runtime import hosts, memory
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import device_check, exact
from gpt_jax.core.training.device_check import eval_rows
from gpt_jax.core.training.exact import Exact

# From config, model and objective to the objective and the rates of the
# parameters, by the section of the config that asks for it.
TUNINGS = Table({}, 'tuning')


class Parts(NamedTuple):
  """The parts that a config names, on a mesh.

  Attributes:
    config: resolved, with its vocabulary size.
    mesh: of all devices.
    rules: the mesh axes of each logical axis.
    model: the run's own model, a Flax module without parameters.
    objective: makes batches, and scores the parameters on them.
    ramp: the shape of each step's batch.
    schedule: step, counted from 0 -> learning rate.
    optimizer: its `update` takes the learning rate: see `optimizer.Build`.
    rates: of the parameters, and the stages of training.
    precision: of the parameters: how they are rounded.
    average: of the parameters; None: there is none.
    outer: the outer optimizer of replicas; None: there are none.
    shardings: of the state, one for each leaf.
    batch_sharding: of a batch's arrays.
  """

  config: Config
  mesh: Mesh
  rules: sharding.Rules
  model: Transformer
  objective: Objective
  ramp: Ramp
  schedule: Schedule
  optimizer: optax.GradientTransformation
  rates: Rates
  precision: Precision
  average: Average | None
  outer: Outer | None
  shardings: TrainState
  batch_sharding: NamedSharding

  @property
  def num_shards(self) -> int:
    """How many shards a batch is split into over the mesh."""
    axes = dict(self.rules)['batch']
    return math.prod(self.mesh.shape[a] for a in axes)

  @property
  def exact(self) -> Exact | None:
    """How sums are added for `batch.exact_over`; None: as the compiler does."""
    over, sizes = self.config.batch.exact_over, self.mesh.shape
    if not over:
      return None
    specs = jax.tree.map(lambda x: x.spec, self.shardings.params)
    trained = train_state.trained(specs, self.objective.frozen)
    return Exact(over, sizes[exact.DATA], sizes[exact.FSDP], specs, trained)

  def micro_batches(self, shape: Shape) -> MicroBatches:
    """How a batch, or that of each replica, is divided into micro-batches."""
    if found := self.exact:
      return MicroBatches(found.turns, self.num_shards)
    if self.outer:
      replicas, data = self.outer.replicas, self.mesh.shape[sharding.REPLICAS]
      at_once = self.config.batch.micro_rows or 0
      return divided(
        shape.rows // replicas,
        num_shards=self.num_shards // data,
        # A device has as many replicas at a time.
        micro_rows=at_once and max(1, at_once * data // replicas),
      )
    parts = divided(shape.rows, num_shards=self.num_shards, micro_rows=self.config.batch.micro_rows)
    return parts._replace(num_replicas=self._num_replicas(parts, shape))

  def _num_replicas(self, parts: MicroBatches, shape: Shape) -> int:
    """The size of the replica axis, or 1 where separate sums save nothing.

    They save nothing with one micro-batch.
    """
    if parts.num_micro == 1:
      return 1
    return self.separate_replicas(parts, shape)

  def separate_replicas(self, parts: MicroBatches, shape: Shape) -> int:
    """The size of the replica axis; 1 if replicas do not compute separately.

    They do not where the devices along the axis hold different parts of the
    model, or different models.
    """
    size = self.mesh.shape[sharding.REPLICAS]
    if self.outer or not sharding.replicas_apart(self.rules):
      return 1
    if self.mesh.shape[pipeline.STAGE] > 1:  # a pipeline does it by itself
      return 1
    rows = parts.rows(shape.rows) // size
    if not device_check.groups_fit(self.config, rows, shape.length):
      return 1
    return size

  def shapes(self, done: int = 0) -> list[Shape]:
    """The batch shapes after `done` steps, the one with most tokens last.

    Each is compiled to its own program.
    """
    last = self.config.schedule.num_steps
    # With all steps done, an evaluation may still be due: keep the last stage.
    stages = self.ramp.between(min(done, last - 1), last)
    return sorted({s.shape for s in stages}, key=lambda s: (s.tokens, s))

  @property
  def spike_policy(self) -> SpikePolicy:
    """The policy for loss spikes."""
    return spec.build('optim.on_spike', self.config.optim.on_spike, SPIKES)

  @property
  def eval_rows(self) -> int:
    """`eval.rows`, raised to a multiple of the shards."""
    return eval_rows(self.config, self.mesh, dict(self.rules))

  def rows_sharding(self, num_rows: int) -> NamedSharding:
    """The sharding of a batch of `num_rows` rows.

    Rows that do not divide over the shards are replicated; the step pads them.
    """
    if num_rows % self.num_shards:
      return sharding.replicated(self.mesh)
    return self.batch_sharding

  def host_rows(self, num_rows: int) -> slice:
    """The rows of a global batch that this process feeds."""
    return sharding.host_rows(self.rows_sharding(num_rows), num_rows)

  def average_start(self, start: int = NEVER) -> tuple[jax.Array, ...]:
    """The argument of a training step of that name, if it has one."""
    if not self.average or not self.average.patience:
      return ()
    whole = sharding.replicated(self.mesh)
    return (jax.device_put(np.int32(start), whole),)

  def put(self, batch: dict, num_rows: int) -> dict[str, jax.Array]:
    """Turns the rows of this process into global arrays on the mesh.

    Args:
      batch: arrays [rows of this process, ...] by name, of `Run.batches`.
      num_rows: of the global batch.

    Returns:
      Arrays [num_rows, ...] by name.

    Raises:
      ValueError: the arrays' rows do not divide over the mesh, and `num_rows`
        does.
    """
    return sharding.put_batch(batch, self.rows_sharding(num_rows), num_rows)

  def put_whole(self, batch: dict, num_rows: int) -> dict[str, jax.Array]:
    """The same from all rows, which every process has."""
    rows = self.host_rows(num_rows)
    return self.put({name: x[rows] for name, x in batch.items()}, num_rows)


def build(config: Config, mesh: Mesh | None = None, *, tokenizer: Tokenizer | None = None) -> Parts:
  """Builds the parts of a config whose `model.vocab_size` is known.

  Args:
    config: resolved.
    mesh: of `device_check.check_devices`; None: made of the devices of this
      process's backend, unchecked.
    tokenizer: of the training text, if there is text.
  """
  mesh = mesh or device_check.mesh_of(config)
  rules = sharding.parse_rules(config.mesh.rules)
  model = config_lib.transformer(config)
  objective = config_lib.objective(config, tokenizer)
  rates = Rates(stages=objective.stages())
  optim = config.optim
  if config.get('finetune'):
    objective, rates = TUNINGS['finetune'](config, model, objective)
  if optim.trained:
    params_lib.check(param_shapes(objective), optim.trained, 'optim.trained')
    trained = functools.partial(params_lib.matching, patterns=optim.trained)
    rates = rates._replace(factors=(*rates.factors, trained))
  outer, on_host = config_lib.outer(config), optim.state == 'host'
  if outer and rates.stages:
    raise UsageError(
      f'optim.outer={optim.outer!r}: does not work with training in stages, '
      'each of which begins with a new state; give none'
    )
  if on_host:
    _check_on_host(rates, mesh, rules)
  optimizer = _optimizer(config, objective, rates)
  average = spec.build('optim.ema', optim.ema, AVERAGES)
  return Parts(
    config=config,
    mesh=mesh,
    rules=rules,
    model=model,
    objective=objective,
    ramp=config_lib.ramp(config),
    schedule=config_lib.schedule(config),
    optimizer=optimizer,
    rates=rates,
    precision=spec.build('optim.precision', optim.precision, PRECISIONS),
    average=average,
    outer=outer,
    shardings=state_shardings(objective, optimizer, mesh, rules, average, outer, on_host=on_host),
    batch_sharding=sharding.batch_sharding(mesh, rules),
  )


def _optimizer(config: Config, objective: Objective, rates: Rates) -> optax.GradientTransformation:
  """The optimizer of the trained parameters."""
  build = in_float32(spec.build('optim.name', config.optim.name, OPTIMIZERS))
  if config.optim.state == 'host':
    build = wrappers.by_layer(build)
  axes = logical_axes(objective)
  optimizer = wrappers.each_part(build, axes) if objective.tasks else build(axes)
  for _ in rates.factors:
    # Checkpoints have the state in one more tuple for each.
    optimizer = optax.chain(optimizer, optax.identity())
  return optimizer


def _check_on_host(rates: Rates, mesh: Mesh, rules: sharding.Rules) -> None:
  if rates.stages:
    raise UsageError(
      "optim.state='host': does not work with training in stages, each of "
      "which begins with a new state; set it to 'device'"
    )
  if split := [a for a in dict(rules)['layers'] if mesh.shape[a] > 1]:
    raise UsageError(
      f"optim.state='host': moves state layer by layer, and mesh.rules."
      f'layers={", ".join(split)!r} splits the layers; remove one of the two'
    )


def initial_state(
  parts: Parts,
  given: Mapping[str, Any] = MappingProxyType({}),
  masks: Mapping[str, Any] = MappingProxyType({}),
) -> TrainState:
  """The first state: initialized from the seed, the same on any mesh.

  Args:
    given: parameters to take as they are, by path; a token table with fewer
      rows than the model's fills the first ones.
    masks: by path, which entries of a given parameter are taken, if not all;
      they broadcast against it.
  """
  init = make_init(
    parts.objective, parts.optimizer, parts.precision, parts.average, masks, outer=parts.outer
  )
  with sharding.use(parts.mesh, parts.rules):
    return jax.jit(init, out_shardings=parts.shardings)(
      jax.random.key(parts.config.seed), dict(given)
    )


def abstract_state(parts: Parts) -> TrainState:
  """Shapes, dtypes and shardings of the state; allocates nothing."""
  begin = functools.partial(
    _begin, parts.objective, parts.optimizer, parts.precision, parts.average, parts.outer
  )
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    jax.eval_shape(begin, param_shapes(parts.objective)),
    parts.shardings,
  )


def on_device(tree: Any) -> int:
  """Bytes in each device's memory of abstract arrays with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
    if x.sharding.memory_kind != 'pinned_host'
  )


def memory_of_device(mesh: Mesh) -> float | None:
  """Bytes that programs may take on each device: see `memory.of_device`.

  A collective: every process must call it.
  """
  here = [d for d in mesh.devices.flat if d.process_index == hosts.index()]
  return hosts.broadcast_from_host0(memory.of_device(here[0]))


def check_memory(parts: Parts, tree: Any, what: str, remedy: str) -> None:
  """Refuses arrays that do not fit the devices; a collective.

  Args:
    tree: abstract arrays with shardings.
    what: they are, with the field or flag that names them.

  Raises:
    UsageError: a device has less memory than its shards of them take.
  """
  needed, limit = on_device(tree), memory_of_device(parts.mesh)
  if limit is not None and needed > limit:
    raise UsageError(
      f'{what} take {needed / GIB:.2f} GiB on a device, of the '
      f'{limit / GIB:.2f} GiB that they may take; {remedy}'
    )


def init_params(objective: Objective, key: jax.Array) -> Any:
  """The first parameters, without their logical axes."""
  return nn.meta.unbox(objective.init(key))


def param_shapes(objective: Objective) -> Any:
  """The shapes of the parameters, without their logical axes."""
  return nn.meta.unbox(objective.shapes)


def logical_axes(objective: Objective) -> Any:
  """The logical axes of each trained parameter, as a `PartitionSpec`."""
  trained = train_state.trained(objective.shapes, objective.frozen)
  return nn.get_partition_spec(trained)


def make_init(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  precision: Precision | None = None,
  average: Average | None = None,
  masks: Mapping[str, Any] = MappingProxyType({}),
  outer: Outer | None = None,
):
  """Returns the pure function from a random key to the first state.

  The optimizer sees float32 parameters, so its moments are float32 too. The
  function's second argument is `given` of `initial_state`, which also
  describes `masks`.
  """

  def init(key: jax.Array, given: Mapping[str, Any] = MappingProxyType({})) -> TrainState:
    def place(path: Any, drawn: jax.Array) -> jax.Array:
      name = params_lib.name_of(path)
      if name not in given:
        return drawn
      return _placed(drawn, given[name], masks.get(name, np.True_))

    params = init_params(objective, key)
    params = jax.tree_util.tree_map_with_path(place, params)
    return _begin(objective, optimizer, precision, average, outer, params)

  return init


def _begin(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  precision: Precision | None,
  average: Average | None,
  outer: Outer | None,
  params: Any,
) -> TrainState:
  """The first state of initialized or given parameters."""
  params = objective.first_params(params)
  opt_state = optimizer.init(train_state.trained(params, objective.frozen))
  if precision:
    params = precision(params)
  if outer:
    trained = train_state.trained(params, objective.frozen)
    opt_state = outer.init(trained, opt_state)
  ema = None
  if average:
    ema = to_float32(train_state.trained(params, objective.frozen))
  return TrainState(jnp.int32(0), params, opt_state, ema)


def _placed(drawn: jax.Array, given: Any, mask: Any) -> jax.Array:
  """`drawn`, with the given entries in its first rows where mask is true."""
  num_rows = len(given) if drawn.ndim else 0
  grown = len(drawn) - num_rows if drawn.ndim else 0
  if not grown:
    return jnp.where(mask, jnp.asarray(given, drawn.dtype), drawn)
  # A table's mask is the same for all its rows.
  first = jnp.where(np.all(mask), jnp.asarray(given, drawn.dtype), drawn[:num_rows])
  return jnp.concatenate([first, drawn[num_rows:]])


def state_shardings(
  objective: Objective,
  optimizer: optax.GradientTransformation,
  mesh: Mesh | AbstractMesh,
  rules: sharding.Rules,
  average: Average | None = None,
  outer: Outer | None = None,
  *,
  on_host: bool = False,
) -> TrainState:
  """A `NamedSharding` for each leaf of the state.

  Optimizer moments are split as their parameters are; whatever else the
  optimizer keeps (counts, the factors of a moment) is small and replicated.
  With `on_host` the moments of kernels and tables are in the hosts' memory.
  """
  sharding.check_divisible(objective.shapes, mesh, rules)
  params = sharding.param_shardings(objective.shapes, mesh, rules)
  whole = sharding.replicated(mesh)
  shapes = param_shapes(objective)
  split = {
    _names(path): (leaf.shape, sharding)
    for (path, leaf), sharding in zip(
      jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(params), strict=True
    )
  }

  def of_moment(path, leaf):
    # The path of a moment ends with the path of its parameter.
    names = _names(path)
    for start in range(len(names)):
      shape, sharding = split.get(names[start:], (None, None))
      if shape is not None and leaf.shape == shape:
        # Small arrays are not worth a transfer.
        far = on_host and is_matrix(_keys(path))
        return sharding.with_memory_kind('pinned_host') if far else sharding
    return whole

  def of_state(optimizer: optax.GradientTransformation) -> Any:
    trained = train_state.trained(shapes, objective.frozen)
    return jax.tree_util.tree_map_with_path(of_moment, jax.eval_shape(optimizer.init, trained))

  opt_state = of_state(optimizer)
  trained = train_state.trained(params, objective.frozen)
  if outer:
    opt_state = outer.state_shardings(trained, opt_state, of_state(outer.optimizer))
  ema = trained if average else None
  return TrainState(whole, params, opt_state, ema)


def _names(path: Any) -> tuple[str, ...]:
  """The dict keys of a tree path, without fields and indices."""
  return tuple(key.key for key in _keys(path))


def _keys(path: Any) -> list[Any]:
  return [key for key in path if isinstance(key, jax.tree_util.DictKey)]
