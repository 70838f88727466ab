# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation of a run's functions for its mesh."""

import functools
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.costs import matmuls
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.rows.row_makers import blank
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.runtime.log import log
from gpt_jax.core.training import exact
from gpt_jax.core.training.metrics import Metrics
from gpt_jax.core.training.parts import Parts, abstract_state
from gpt_jax.core.training.step import eval_step, train_step


class Compiled(NamedTuple):
  """A compiled function, how long compiling took, and what one call costs.

  Attributes:
    call: the function; it takes only arguments of the shapes and shardings for
      which it was compiled.
    seconds: for which it was compiled.
    flops: of the matrix products of a call, over all devices.
  """

  call: Any
  seconds: float
  flops: int


class TooLarge(Exception):
  """A program that does not fit a device's memory."""

  def __init__(self, shape: Shape, needed: float, limit: float | None):
    """Keeps the batch's shape, and bytes on one device.

    `limit` is None if only the compiler knows it.
    """
    of = f' of the {limit / GIB:.2f} GiB that it may take' if limit else ''
    super().__init__(
      f'the step of {shape.rows} rows of {shape.length} tokens needs '
      f'{needed / GIB:.2f} GiB on a device{of}'
    )
    self.shape, self.needed, self.limit = shape, needed, limit


# Training steps by the shape of their batch.
Stages = dict[Shape, Compiled]


def compile_train_step(
  parts: Parts,
  shape: Shape | None = None,
  options: dict[str, str] | None = None,
  *,
  limit: float | None = None,
) -> Compiled:
  """Compiles `step.train_step`, which donates the state.

  With `optim.outer` it is the outer optimizer's `train_step`.

  Args:
    parts: of a run.
    shape: of a batch; None: that of the last stage.
    options: of the compiler, by XLA's names; None: its defaults.
    limit: bytes that the program may take on a device; None: any number.

  Returns:
    The step: its `call` takes a state and a batch of `Parts.put`, and returns
    what `train_step` returns.

  Raises:
    TooLarge: it needs more, or the compiler refuses it for lack of memory.
  """
  shape = shape or parts.ramp.stages[-1].shape
  jitted, args = jit_train_step(parts, shape)
  try:
    compiled = compile_on_mesh(parts, jitted, *args, options=options)
  except jax.errors.JaxRuntimeError as e:
    needed = out_of_memory(str(e))
    if needed is None:
      raise
    raise TooLarge(shape, needed, limit) from e
  if limit is not None:
    needed = peak(compiled.call, parts.mesh.devices.flat[0].platform)
    if needed > limit:
      raise TooLarge(shape, needed, limit)
  return compiled


def jit_train_step(parts: Parts, shape: Shape) -> tuple[Any, list[Any]]:
  """The jitted training step, and abstract arguments for a batch shape."""
  whole = sharding.replicated(parts.mesh)
  step: Any = train_step
  every = parts.config.log.norms_every_steps
  metrics: Any = whole
  if parts.outer:
    step = parts.outer.train_step
    metrics = parts.outer.output_shardings(parts.mesh)
  step = functools.partial(
    step,
    objective=parts.objective.of(shape.task),
    optimizer=parts.optimizer,
    schedule=parts.schedule,
    seed=parts.config.seed,
    clip_norm=parts.config.optim.clip_norm,
    rates=parts.rates,
    **parts.micro_batches(shape)._asdict(),
    average=parts.average,
    num_steps=parts.config.schedule.num_steps,
    **({'norms_every': every} if every else {}),
    **({'exact': parts.exact} if parts.exact else {}),
  )
  jitted = jax.jit(step, donate_argnums=0, out_shardings=(parts.shardings, metrics))
  batch = abstract_batch(parts, *shape, training=True)
  args = [abstract_state(parts), batch]
  if parts.average and parts.average.patience:
    args.append(jax.ShapeDtypeStruct((), np.int32, sharding=whole))
  return jitted, args


def peak(call: Any, platform: str) -> float:
  """Bytes that a compiled function needs at once on a device, with arguments.

  The host's memory does not count.
  """
  memory = call.memory_analysis()
  at_once = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  at_once += memory.output_size_in_bytes - memory.alias_size_in_bytes
  if platform != 'tpu':  # the CPU's compiler reports less than it allocates
    return at_once
  # It includes the host's memory. State on the host stays there; for offloaded
  # activations the bound is everything on the device, without reuse.
  reported = memory.peak_memory_in_bytes - memory.host_argument_size_in_bytes
  if memory.host_temp_size_in_bytes:
    return min(reported, at_once)
  return reported


def out_of_memory(error: str) -> float | None:
  """Bytes that a TPU's compiler needs of HBM; None for any other error.

  The message is one of
    Ran out of memory ... the total memory required ... (19.91G) exceeds ...
    Ran out of memory in memory space hbm. Used 47.07G of 15.75G hbm. ...
  """
  if 'RESOURCE_EXHAUSTED' not in error or 'hbm' not in error.lower():
    return None
  amount = re.search(r'\(([\d.]+)([KMGT]?)\) exceeds', error) or re.search(
    r'Used ([\d.]+)([KMGT]?) of', error
  )
  if amount is None:
    return None
  return float(amount[1]) * 1024 ** ' KMGT'.index(amount[2] or ' ')


def compile_stages(
  parts: Parts,
  done: int,
  compiled: Stages,
  metrics: Metrics,
  ready: Mapping[Shape, Compiled] = MappingProxyType({}),
) -> None:
  """Compiles the training step for each batch shape still to come.

  All before the first step: a stage that does not fit, or a compiler that
  fails, shows now and not after days. `gpt-jax plan` compiles the same.

  Args:
    compiled: by shape; missing shapes are added.
    metrics: gets an event for each compilation.
    ready: steps that are compiled already.
  """
  for shape in parts.shapes(done):
    if shape in compiled:
      continue
    step = ready.get(shape) or compile_train_step(parts, shape)
    compiled[shape] = step
    log.info(
      'compiled the training step%s for %d rows of %d tokens in %.1f s',
      f' of {shape.task}' * bool(shape.task),
      shape.rows,
      shape.length,
      step.seconds,
    )
    fields = {name: x for name, x in shape._asdict().items() if x != ''}
    metrics.write(done, event='compiled', **fields, seconds=step.seconds)


def compile_eval_step(parts: Parts) -> Compiled:
  """Compiles `step.eval_step`."""
  jitted = jax.jit(functools.partial(eval_step, objective=parts.objective, exact=parts.exact))
  batch = abstract_batch(parts, parts.eval_rows, parts.ramp.longest)
  return compile_on_mesh(parts, jitted, abstract_state(parts).eval_params, batch)


def compile_outputs(parts: Parts, task: str = '') -> Compiled:
  """Compiles a task's outputs: parameters and batch to [B, K].

  Args:
    task: its name among several; '': the only one.
  """
  outputs = parts.objective.of(task).outputs
  whole = sharding.replicated(parts.mesh)
  jitted = jax.jit(outputs, out_shardings=whole)
  batch = abstract_batch(parts, parts.eval_rows, parts.ramp.longest, task)
  return compile_on_mesh(parts, jitted, abstract_state(parts).eval_params, batch)


def compile_on_mesh(parts: Parts, jitted, *args, options: dict[str, str] | None = None) -> Compiled:
  """Compiles a `jax.jit` for these arguments, which may be abstract."""
  start = time.perf_counter()
  of_compiler: dict[str, Any] = {**(options or {}), **(exact.COMPILER if parts.exact else {})}
  with sharding.use(parts.mesh, parts.rules):
    traced = jitted.trace(*args)
    compiled = traced.lower().compile(compiler_options=of_compiler)
  seconds = time.perf_counter() - start
  return Compiled(compiled, seconds, matmuls.flops(traced.jaxpr))


def abstract_batch(
  parts: Parts, num_rows: int, length: int, task: str = '', *, training: bool = False
) -> dict[str, Any]:
  """Shapes, dtypes and shardings of a batch of rows of `length` tokens."""
  objective, config = parts.objective.of(task), parts.config
  batch = objective.example
  if batch is None:
    row = blank(config.data.rows, length)
    batch = objective.make_batch(row, Keys.held_out(np.zeros(1, np.int64)))
  if training and (stored := objectives.needs(config.objective.name).stored):
    batch = {**batch, **stored.blank(length)}
  return {
    name: jax.ShapeDtypeStruct(
      (num_rows, *x.shape[1:]), x.dtype, sharding=parts.rows_sharding(num_rows)
    )
    for name, x in batch.items()
  }
