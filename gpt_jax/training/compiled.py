# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation of a run's functions for its mesh."""

import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax import sharding
from gpt_jax.costs import matmuls
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim.schedules import Shape
from gpt_jax.rows import teacher_outputs
from gpt_jax.rows.row_makers import blank
from gpt_jax.rows.rows import Keys
from gpt_jax.runtime.log import log
from gpt_jax.training.metrics import Metrics
from gpt_jax.training.parts import Parts, abstract_state
from gpt_jax.training.step import eval_step, train_step


class Compiled(NamedTuple):
  """A compiled function, how long compiling took, and what one call costs."""

  call: Any
  seconds: float
  flops: int  # of its matrix products, over all devices


# Training steps by the shape of their batch.
Stages = dict[Shape, Compiled]


def compile_train_step(
  parts: Parts,
  shape: Shape | None = None,
  options: dict[str, str] | None = None,
) -> Compiled:
  """Compiles `step.train_step`, which donates the state.

  Args:
    shape: of a batch; None: that of the last stage.
    options: of the compiler.
  """
  shape = shape or parts.ramp.stages[-1].shape
  step = functools.partial(
    train_step,
    objective=parts.objective.of(shape.task),
    optimizer=parts.optimizer,
    seed=parts.config.seed,
    clip_norm=parts.config.optim.clip_norm,
    **parts.micro_batches(shape)._asdict(),
    average=parts.average,
    num_steps=parts.config.schedule.num_steps,
  )
  whole = sharding.replicated(parts.mesh)
  jitted = jax.jit(
    step, donate_argnums=0, out_shardings=(parts.shardings, whole)
  )
  batch = abstract_batch(parts, *shape, training=True)
  args = [abstract_state(parts), batch]
  if parts.average and parts.average.patience:
    args.append(jax.ShapeDtypeStruct((), np.int32, sharding=whole))
  return _compile(parts, jitted, *args, options=options)


def compile_stages(
  parts: Parts, done: int, compiled: Stages, metrics: Metrics
) -> None:
  """Compiles the training step for each batch shape still to come.

  All before the first step: a stage that does not fit, or a compiler that
  fails, shows now and not after days. `gpt-jax plan` compiles the same.

  Args:
    compiled: by shape; missing shapes are added.
    metrics: gets an event for each compilation.
  """
  for shape in parts.shapes(done):
    if shape in compiled:
      continue
    step = compiled[shape] = compile_train_step(parts, shape)
    log.info(
      'compiled the training step%s for %d rows of %d tokens in %.1f s',
      f' of {shape.task}' * bool(shape.task),
      *(shape.rows, shape.length, step.seconds),
    )
    fields = {name: x for name, x in shape._asdict().items() if x != ''}
    metrics.write(done, event='compiled', **fields, seconds=step.seconds)


def compile_eval_step(parts: Parts) -> Compiled:
  """Compiles `step.eval_step`."""
  jitted = jax.jit(functools.partial(eval_step, objective=parts.objective))
  batch = abstract_batch(parts, parts.eval_rows, parts.ramp.longest)
  return _compile(parts, jitted, abstract_state(parts).eval_params, batch)


def compile_outputs(parts: Parts, task: str = '') -> Compiled:
  """Compiles a task's outputs: parameters and batch to [B, K].

  Args:
    task: its name among several; '': the only one.
  """
  outputs = parts.objective.of(task).outputs
  whole = sharding.replicated(parts.mesh)
  jitted = jax.jit(outputs, out_shardings=whole)
  batch = abstract_batch(parts, parts.eval_rows, parts.ramp.longest, task)
  return _compile(parts, jitted, abstract_state(parts).eval_params, batch)


def _compile(
  parts: Parts, jitted, *args, options: dict[str, str] | None = None
) -> Compiled:
  start = time.perf_counter()
  with sharding.use(parts.mesh, parts.rules):
    traced = jitted.trace(*args)
    compiled = traced.lower().compile(compiler_options=options)
  seconds = time.perf_counter() - start
  return Compiled(compiled, seconds, matmuls.flops(traced.jaxpr))


def abstract_batch(
  parts: Parts,
  num_rows: int,
  length: int,
  task: str = '',
  *,
  training: bool = False,
) -> dict[str, Any]:
  """Shapes, dtypes and shardings of a batch of rows of `length` tokens."""
  objective, config = parts.objective.of(task), parts.config
  batch = objective.example
  if batch is None:
    row = blank(config.data.rows, length)
    batch = objective.make_batch(row, Keys.held_out(np.zeros(1, np.int64)))
  if training and (stored := objectives.needs(config.objective.name).stored):
    positions = stored.positions(length)
    batch = {**batch, **teacher_outputs.blank(positions, stored.top_k)}
  return {
    name: jax.ShapeDtypeStruct(
      (num_rows, *x.shape[1:]),
      x.dtype,
      sharding=parts.rows_sharding(num_rows),
    )
    for name, x in batch.items()
  }
