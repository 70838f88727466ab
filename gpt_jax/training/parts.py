# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a resolved config to the parts of a run, and to its first state."""

import functools
import math
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.nn import paths
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import freezing
from gpt_jax.objectives.base import Objective
from gpt_jax.optim import wrappers
from gpt_jax.optim.micro_batches import MicroBatches, divided
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import (
  AVERAGES,
  PRECISIONS,
  Average,
  Precision,
  in_float32,
)
from gpt_jax.optim.schedules import Ramp, Schedule, Shape
from gpt_jax.optim.spikes import SPIKES, Policy
from gpt_jax.optim.train_state import TrainState
from gpt_jax.optim.wrappers import each_part
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import device_check
from gpt_jax.training import state as state_lib
from gpt_jax.training.device_check import Devices, eval_rows


class Parts(NamedTuple):
  """The parts that a config names, on a mesh."""

  config: Config
  mesh: Mesh
  rules: sharding.Rules
  model: Transformer
  objective: Objective
  ramp: Ramp
  schedule: Schedule
  optimizer: optax.GradientTransformation
  precision: Precision  # of the parameters
  average: Average | None  # of the parameters
  shardings: TrainState  # of the state
  batch_sharding: NamedSharding

  @property
  def num_shards(self) -> int:
    """How many parts a batch is split into."""
    axes = dict(self.rules)['batch']
    return math.prod(self.mesh.shape[a] for a in axes)

  def micro_batches(self, shape: Shape) -> MicroBatches:
    """The parts in which a batch is taken."""
    parts = divided(
      shape.rows,
      num_shards=self.num_shards,
      micro_rows=self.config.batch.micro_rows,
    )
    return parts._replace(num_replicas=self._num_replicas(parts, shape))

  def _num_replicas(self, parts: MicroBatches, shape: Shape) -> int:
    """The size of the axis, or 1 where nothing is to be gained by parts of it.

    That is with one micro-batch, or where the devices along the axis hold
    different parts of the model.
    """
    name = sharding.REPLICAS
    size = self.mesh.shape[name]
    split = {logical for logical, axes in self.rules if name in axes}
    first = all(axes[0] == name for _, axes in self.rules if name in axes)
    if parts.num_micro == 1 or not first or split - {'batch', 'group'}:
      return 1
    rows = parts.rows(shape.rows) // size
    if not device_check.groups_fit(self.config, rows, shape.length):
      return 1
    return size

  def shapes(self, done: int = 0) -> list[Shape]:
    """Of the batches that come after `done` steps, those of most tokens last.

    Each is a program of its own.
    """
    last = self.config.schedule.num_steps
    # A run of which only the evaluation is owed still knows its last stage.
    stages = self.ramp.between(min(done, last - 1), last)
    return sorted({s.shape for s in stages}, key=lambda s: (s.tokens, s))

  @property
  def spike_policy(self) -> Policy:
    """What to do about spikes."""
    return spec.build('optim.on_spike', self.config.optim.on_spike, SPIKES)

  @property
  def eval_rows(self) -> int:
    """`eval.rows`, raised to a multiple of the shards."""
    return eval_rows(self.config, self.mesh, dict(self.rules))

  def rows_sharding(self, num_rows: int) -> NamedSharding:
    """How so many rows come to the devices.

    Those that do not divide come to all of them; the step fills them up.
    """
    if num_rows % self.num_shards:
      return sharding.replicated(self.mesh)
    return self.batch_sharding

  def host_rows(self, num_rows: int) -> slice:
    """The rows of a global batch that this process feeds."""
    return sharding.host_rows(self.rows_sharding(num_rows), num_rows)

  def put(self, batch: dict, num_rows: int) -> dict[str, jax.Array]:
    """Turns the rows of this process into global arrays on the mesh."""
    return sharding.put_batch(batch, self.rows_sharding(num_rows), num_rows)


def build(
  config: Config,
  devices: Devices = None,
  *,
  tokenizer: Tokenizer | None = None,
) -> Parts:
  """Builds the parts of a config whose `model.vocab_size` is known.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend. They may
      be devices to compile for only.
    tokenizer: of the text that is trained on, where there is text.
  """
  mesh = sharding.make_mesh(
    config.mesh, devices, width=config_lib.width(config)
  )
  rules = sharding.parse_rules(config.mesh.rules)
  model = config_lib.transformer(config)
  objective = config_lib.objective(config, tokenizer)
  schedule = config_lib.schedule(config)
  optim = config.optim
  build_optimizer = in_float32(spec.build('optim.name', optim.name, OPTIMIZERS))
  on_host = optim.state == 'host'
  if on_host:
    _check_on_host(objective, rules)
    build_optimizer = wrappers.by_layer(build_optimizer)
  axes = state_lib.logical_axes(objective)
  if objective.tasks:
    optimizer = each_part(functools.partial(build_optimizer, schedule), axes)
  else:
    optimizer = build_optimizer(schedule, axes)
  tuned = config.get('finetune')
  if tuned and (tuned.freeze or tuned.get('features')):
    frozen = freezing.body()
    if not tuned.get('features'):
      frozen = freezing.lowest(model, tuned.freeze, tuned.vocab_size)
    objective = frozen.objective(objective)
    optimizer = frozen.optimizer(optimizer)
  if optim.trained:
    paths.check(_shapes(objective), optim.trained, 'optim.trained')
    frozen = freezing.all_but(optim.trained)
    objective = frozen.objective(objective)
    optimizer = frozen.optimizer(optimizer)
  average = spec.build('optim.ema', optim.ema, AVERAGES)
  return Parts(
    config,
    mesh,
    rules,
    model,
    objective,
    config_lib.ramp(config),
    schedule,
    optimizer,
    spec.build('optim.precision', optim.precision, PRECISIONS),
    average,
    state_lib.state_shardings(
      objective, optimizer, mesh, rules, average, on_host=on_host
    ),
    sharding.batch_sharding(mesh, rules),
  )


def _check_on_host(objective: Objective, rules: sharding.Rules) -> None:
  if objective.stages:
    raise UsageError(
      "optim.state='host': not with an objective of two stages, whose second "
      "begins with a new state; leave it at 'device'"
    )
  if split := dict(rules)['layers']:
    raise UsageError(
      f"optim.state='host': state comes one layer at a time, and mesh.rules."
      f'layers={", ".join(split)!r} splits the layers; leave one of the two'
    )


def init_state(parts: Parts) -> TrainState:
  """The first state: a function of the seed, the same on any mesh."""
  init = jax.jit(_init(parts), out_shardings=parts.shardings)
  with sharding.use(parts.mesh, parts.rules):
    return init(jax.random.key(parts.config.seed))


def abstract_state(parts: Parts) -> TrainState:
  """Shapes, dtypes and shardings of the state; no memory."""
  shapes = jax.eval_shape(_init(parts), jax.random.key(0))
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    parts.shardings,
  )


def _shapes(objective: Objective) -> Any:
  return jax.eval_shape(
    lambda key: state_lib.init_params(objective, key), jax.random.key(0)
  )


def _init(parts: Parts):
  return state_lib.make_init(
    parts.objective, parts.optimizer, parts.precision, parts.average
  )
