# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a resolved config to the parts of a run, and to a compiled step."""

import functools
import math
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.checkpoints import checkpointer as checkpoint
from gpt_jax.config import Config
from gpt_jax.costs import matmuls
from gpt_jax.data import json_file
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.nn.pattern import period
from gpt_jax.nn.preflight import check_attention
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Objective
from gpt_jax.objectives.choices import OBJECTIVES
from gpt_jax.objectives.freezing import Frozen
from gpt_jax.optim.average import AVERAGES, Average
from gpt_jax.optim.batch_ramp import Ramp
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import PRECISIONS, Precision
from gpt_jax.optim.schedules import Schedule
from gpt_jax.optim.spikes import SPIKES, Policy
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import state as state_lib
from gpt_jax.training.step import eval_step, train_step

# What to do about a damaged file of a run.
RESTORE = 'restore it from a copy, or start again with another --workdir'

Devices = Sequence[Any] | None


class Run(NamedTuple):
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

  def num_micro(self, num_rows: int) -> int:
    """Parts that a batch of `num_rows` rows is taken in."""
    return num_rows // (self.config.batch.micro_rows or num_rows)

  def stage_rows(self, done: int = 0) -> list[int]:
    """Rows of the batches that come after `done` steps: each is a program."""
    last = self.config.schedule.num_steps
    # A run of which only the evaluation is owed still knows its last stage.
    stages = self.ramp.between(min(done, last - 1), last)
    return sorted({stage.rows for stage in stages})

  @property
  def spike_policy(self) -> Policy:
    """What to do about spikes."""
    return spec.build('optim.on_spike', self.config.optim.on_spike, SPIKES)

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


def check_devices(config: Config, devices: Devices = None) -> None:
  """Checks that the config fits the devices; quick, and before any work.

  That is its mesh, its batch and its attention backend.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend.

  Raises:
    UsageError: they do not.
  """
  mesh = sharding.make_mesh(config.mesh, devices)
  rules = sharding.parse_rules(config.mesh.rules)
  axes = dict(rules)['batch']
  parts = math.prod(mesh.shape[a] for a in axes)
  named = {
    config_lib.stage_name(config, stage.rows): stage.rows
    for stage in config_lib.ramp(config).stages
  }
  if config.batch.micro_rows is not None:
    micro_rows = config.batch.micro_rows
    named[f'batch.micro_rows={micro_rows}:'] = micro_rows
  for name, rows in named.items():
    if rows % parts:
      raise UsageError(
        f'{name} does not divide over the {parts} devices of mesh axes '
        f'{", ".join(axes)}; give a multiple of {parts}'
      )
  with sharding.use(mesh, rules):
    first = config_lib.ramp(config).stages[0].rows
    check_attention(
      config.model,
      config.batch.micro_rows or first,
      packed=config.data.rows == 'documents',
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


def build(config: Config, devices: Devices = None) -> Run:
  """Builds the parts of a config whose `model.vocab_size` is known.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend. They may
      be devices to compile for only.

  Raises:
    UsageError: the config does not fit the devices.
  """
  mesh = sharding.make_mesh(config.mesh, devices)
  rules = sharding.parse_rules(config.mesh.rules)
  model = Transformer(**config.model)
  objective = spec.build('objective.name', config.objective.name, OBJECTIVES)(
    model
  )
  schedule = config_lib.schedule(config)
  optim = config.optim
  optimizer = spec.build('optim.name', optim.name, OPTIMIZERS)(
    schedule, state_lib.logical_axes(objective)
  )
  tuned = config.get('finetune')
  if tuned and tuned.freeze:
    frozen = Frozen(model, num_layers=tuned.freeze, num_rows=tuned.vocab_size)
    objective = frozen.objective(objective)
    optimizer = frozen.optimizer(optimizer)
  average = spec.build('optim.ema', optim.ema, AVERAGES)
  return Run(
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
    state_lib.state_shardings(objective, optimizer, mesh, rules, average),
    sharding.batch_sharding(mesh, rules),
  )


def init_state(run: Run) -> TrainState:
  """The first state: a function of the seed, the same on any mesh."""
  init = jax.jit(_init(run), out_shardings=run.shardings)
  with sharding.use(run.mesh, run.rules):
    return init(jax.random.key(run.config.seed))


def abstract_state(run: Run) -> TrainState:
  """Shapes, dtypes and shardings of the state; no memory."""
  shapes = jax.eval_shape(_init(run), jax.random.key(0))
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    run.shardings,
  )


def _init(run: Run):
  return state_lib.make_init(
    run.objective, run.optimizer, run.precision, run.average
  )


def abstract_batch(run: Run, num_rows: int) -> dict[str, Any]:
  """Shapes, dtypes and shardings of a batch of `num_rows` rows."""
  batch = run.objective.example
  if batch is None:
    row = np.zeros((1, run.config.model.context_length + 1), np.int32)
    batch = run.objective.make_batch(row)
    if run.config.data.rows == 'documents':
      batch |= {'segments': row[:, 1:], 'positions': row[:, 1:]}
  return {
    name: jax.ShapeDtypeStruct(
      (num_rows, *x.shape[1:]), x.dtype, sharding=run.batch_sharding
    )
    for name, x in batch.items()
  }


def data_folder(config: Config, workdir: str) -> str:
  """Where the run's token store is."""
  return config.data.store or os.path.join(workdir, 'data')


class Compiled(NamedTuple):
  """A compiled function, how long compiling took, and what one call costs."""

  call: Any
  seconds: float
  flops: int  # of its matrix products, over all devices


def compile_train_step(run: Run, num_rows: int | None = None) -> Compiled:
  """Compiles `step.train_step`; the state's memory is given to the result.

  Args:
    run: what is trained.
    num_rows: in a batch; empty: those of the batch ramp's last stage.
  """
  num_rows = num_rows or run.ramp.stages[-1].rows
  step = functools.partial(
    train_step,
    objective=run.objective,
    optimizer=run.optimizer,
    seed=run.config.seed,
    clip_norm=run.config.optim.clip_norm,
    num_micro=run.num_micro(num_rows),
    average=run.average,
  )
  whole = sharding.replicated(run.mesh)
  jitted = jax.jit(step, donate_argnums=0, out_shardings=(run.shardings, whole))
  batch = abstract_batch(run, num_rows)
  return _compile(run, jitted, abstract_state(run), batch)


def compile_eval_step(run: Run) -> Compiled:
  """Compiles `step.eval_step`."""
  jitted = jax.jit(functools.partial(eval_step, objective=run.objective))
  batch = abstract_batch(run, run.eval_rows)
  return _compile(run, jitted, abstract_state(run).eval_params, batch)


def compile_outputs(run: Run) -> Compiled:
  """Compiles what a task is measured by: parameters and batch to [B, K]."""
  assert run.objective.outputs is not None
  whole = sharding.replicated(run.mesh)
  jitted = jax.jit(run.objective.outputs, out_shardings=whole)
  batch = abstract_batch(run, run.eval_rows)
  return _compile(run, jitted, abstract_state(run).eval_params, batch)


def _compile(run: Run, jitted, *args) -> Compiled:
  start = time.perf_counter()
  with sharding.use(run.mesh, run.rules):
    traced = jitted.trace(*args)
    compiled = traced.lower().compile()
  seconds = time.perf_counter() - start
  return Compiled(compiled, seconds, matmuls.flops(traced.jaxpr))


class Trained(NamedTuple):
  """A run read back from its workdir."""

  run: Run
  state: TrainState
  tokenizer: tokenizer_lib.Tokenizer


def load(workdir: str) -> Trained:
  """Loads the newest sound checkpoint of a workdir, and its tokenizer.

  Raises:
    UsageError: there is none, or the model is no causal decoder, as an import
      may be.
  """
  config = read_config(workdir)
  try:
    config_lib.check_objective(config)
  except UsageError as e:
    raise UsageError(
      f'--workdir={workdir}: holds a model that this command has no text for '
      f'({e}); use gpt_jax.hf.forward or gpt_jax.decoding.sample'
    ) from e
  run, state = restore(workdir)
  tokenizer = tokenizer_lib.load(os.path.join(workdir, 'tokenizer'))
  return Trained(run, state, tokenizer)


def read_config(workdir: str) -> Config:
  """The resolved config of the run in a workdir.

  Raises:
    UsageError: there is none, or config.json is damaged.
  """
  path = os.path.join(workdir, 'config.json')
  try:
    json_file.read(path, remedy=RESTORE, needs=('model', 'tokenizer'))
    with open(path, encoding='utf-8') as f:
      return config_lib.from_json(f.read())
  except (FileNotFoundError, NotADirectoryError) as e:
    raise UsageError(
      f'--workdir={workdir}: holds no run (no config.json); train one first'
    ) from e


def restore(workdir: str) -> tuple[Run, TrainState]:
  """Loads the newest sound checkpoint of a workdir, split over all devices.

  Raises:
    UsageError: there is none.
  """
  # The devices here need not be those it was trained on.
  config = config_lib.unlocked(read_config(workdir))
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
  if state.ema is not None:
    log.info('using the average of the weights, optim.ema=%s', config.optim.ema)
  return run, state
