# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a resolved config to the parts of a run, and to a compiled step."""

import functools
import math
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from gpt_jax import checkpoint, sharding, spec
from gpt_jax import config as config_lib
from gpt_jax import state as state_lib
from gpt_jax.config import Config
from gpt_jax.data import tokenizer as tokenizer_lib
from gpt_jax.nn.pattern import period
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Objective
from gpt_jax.objectives.causal import OBJECTIVES
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.schedules import SCHEDULES, Schedule
from gpt_jax.spec import UsageError
from gpt_jax.state import TrainState
from gpt_jax.step import eval_step, train_step


class Run(NamedTuple):
  """The parts that a config names, on a mesh."""

  config: Config
  mesh: Mesh
  rules: sharding.Rules
  model: Transformer
  objective: Objective
  schedule: Schedule
  optimizer: optax.GradientTransformation
  shardings: TrainState  # of the state
  batch_sharding: NamedSharding

  @property
  def num_shards(self) -> int:
    """How many parts a batch is split into."""
    axes = dict(self.rules)['batch']
    return math.prod(self.mesh.shape[a] for a in axes)

  @property
  def num_micro(self) -> int:
    """Parts that a batch is taken in."""
    return self.config.batch.rows // self.config.batch.micro_rows

  @property
  def eval_rows(self) -> int:
    """`eval.rows`, raised to a multiple of the shards."""
    return _eval_rows(self.config, self.mesh, dict(self.rules))

  def host_rows(self, num_rows: int) -> slice:
    """The rows of a global batch that this process feeds."""
    return sharding.host_rows(self.batch_sharding, num_rows)

  def put(self, batch: dict, num_rows: int) -> dict[str, jax.Array]:
    """Turns the rows of this process into global arrays on the mesh."""
    return sharding.put_batch(batch, self.batch_sharding, num_rows)


def check_devices(config: Config) -> None:
  """Checks that mesh and batch fit the devices; quick, and before any work.

  Raises:
    UsageError: they do not.
  """
  mesh = sharding.make_mesh(config.mesh)
  rules = sharding.parse_rules(config.mesh.rules)
  axes = dict(rules)['batch']
  parts = math.prod(mesh.shape[a] for a in axes)
  for field in ('rows', 'micro_rows'):
    rows = config.batch[field]
    if rows % parts:
      raise UsageError(
        f'batch.{field}={rows}: does not divide over the {parts} devices of '
        f'mesh axes {", ".join(axes)}; give a multiple of {parts}'
      )
  _check_experts(config, mesh, dict(rules))


def _check_experts(config: Config, mesh: Mesh, rules: dict) -> None:
  """Checks the layers with experts; see `check_devices`."""
  model = config.model
  axes = rules.get('expert', ())
  parts = math.prod(mesh.shape[a] for a in axes)
  for layer in period(model.attention, model.ffn):
    router = layer.ffn.router
    if router is None:
      continue
    if router.num_experts % parts:
      raise UsageError(
        f'model.ffn={model.ffn!r}: {router.num_experts} experts do not divide '
        f'over the {parts} devices of mesh axes {", ".join(axes)}; change '
        'num_experts or the mesh'
      )
    if router.limited(training=False):
      router.group_of(_eval_rows(config, mesh, rules), model.context_length)


def _eval_rows(config: Config, mesh: Mesh, rules: dict) -> int:
  """`eval.rows`, raised to a multiple of the parts of a batch."""
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  return -(-config.eval.rows // parts) * parts


def build(config: Config) -> Run:
  """Builds the parts of a config whose `model.vocab_size` is known.

  Raises:
    UsageError: the config does not fit the devices.
  """
  mesh = sharding.make_mesh(config.mesh)
  rules = sharding.parse_rules(config.mesh.rules)
  model = Transformer(**config.model)
  objective = spec.build('objective.name', config.objective.name, OBJECTIVES)(
    model
  )
  schedule = spec.build('schedule.name', config.schedule.name, SCHEDULES)(
    config.schedule.num_steps
  )
  optimizer = spec.build('optim.name', config.optim.name, OPTIMIZERS)(schedule)
  return Run(
    config,
    mesh,
    rules,
    model,
    objective,
    schedule,
    optimizer,
    state_lib.state_shardings(objective, optimizer, mesh, rules),
    sharding.batch_sharding(mesh, rules),
  )


def init_state(run: Run) -> TrainState:
  """The first state: a function of the seed, the same on any mesh."""
  init = jax.jit(
    state_lib.make_init(run.objective, run.optimizer),
    out_shardings=run.shardings,
  )
  with sharding.use(run.mesh, run.rules):
    return init(jax.random.key(run.config.seed))


def abstract_state(run: Run) -> TrainState:
  """Shapes, dtypes and shardings of the state; no memory."""
  shapes = jax.eval_shape(
    state_lib.make_init(run.objective, run.optimizer), jax.random.key(0)
  )
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    run.shardings,
  )


def abstract_batch(run: Run, num_rows: int) -> dict[str, Any]:
  """Shapes, dtypes and shardings of a batch of `num_rows` rows."""
  row = np.zeros((1, run.config.model.context_length + 1), np.int32)
  return {
    name: jax.ShapeDtypeStruct(
      (num_rows, *x.shape[1:]), x.dtype, sharding=run.batch_sharding
    )
    for name, x in run.objective.corrupt(row).items()
  }


def data_folder(config: Config, workdir: str) -> str:
  """Where the run's token store is."""
  return config.data.store or os.path.join(workdir, 'data')


class Compiled(NamedTuple):
  """A compiled function and how long compiling took."""

  call: Any
  seconds: float


def compile_train_step(run: Run) -> Compiled:
  """Compiles `step.train_step`; the state's memory is given to the result."""
  step = functools.partial(
    train_step,
    objective=run.objective,
    optimizer=run.optimizer,
    seed=run.config.seed,
    clip_norm=run.config.optim.clip_norm,
    num_micro=run.num_micro,
  )
  whole = sharding.replicated(run.mesh)
  jitted = jax.jit(step, donate_argnums=0, out_shardings=(run.shardings, whole))
  batch = abstract_batch(run, run.config.batch.rows)
  return _compile(run, jitted, abstract_state(run), batch)


def compile_eval_step(run: Run) -> Compiled:
  """Compiles `step.eval_step`."""
  jitted = jax.jit(functools.partial(eval_step, objective=run.objective))
  batch = abstract_batch(run, run.eval_rows)
  return _compile(run, jitted, abstract_state(run).params, batch)


def _compile(run: Run, jitted, *args) -> Compiled:
  start = time.perf_counter()
  with sharding.use(run.mesh, run.rules):
    compiled = jitted.lower(*args).compile()
  return Compiled(compiled, time.perf_counter() - start)


class Trained(NamedTuple):
  """A run read back from its workdir."""

  run: Run
  state: TrainState
  tokenizer: tokenizer_lib.Tokenizer


def load(workdir: str) -> Trained:
  """Loads the newest sound checkpoint of a workdir, and its tokenizer.

  Raises:
    UsageError: there is none.
  """
  run, state = restore(workdir)
  tokenizer = tokenizer_lib.load(os.path.join(workdir, 'tokenizer'))
  return Trained(run, state, tokenizer)


def restore(workdir: str) -> tuple[Run, TrainState]:
  """Loads the newest sound checkpoint of a workdir, split over all devices.

  Raises:
    UsageError: there is none.
  """
  path = os.path.join(workdir, 'config.json')
  try:
    with open(path, encoding='utf-8') as f:
      config = config_lib.from_json(f.read())
  except FileNotFoundError as e:
    raise UsageError(
      f'--workdir={workdir}: holds no run (no config.json); train one first'
    ) from e
  # The devices here need not be those it was trained on.
  config = config_lib.unlocked(config)
  config.mesh.update(data=1, fsdp=-1, expert=1, tensor=1)
  config.model.attention_backend = 'auto'
  run = build(config.lock())
  checkpointer = checkpoint.Checkpointer(workdir, read_only=True)
  state = checkpointer.restore(abstract_state(run))
  checkpointer.close()
  if state is None:
    raise UsageError(
      f'--workdir={workdir}: holds no checkpoint yet; it is written after '
      f'{config.checkpoint.every_steps} steps'
    )
  return run, state
