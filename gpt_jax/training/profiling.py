# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes some steps of a run under JAX's profiler, and changes nothing of it."""

import contextlib
import glob
import os
import socket
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

from gpt_jax import config as config_lib
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.data import manifest
from gpt_jax.runtime import phases, trace
from gpt_jax.runtime.log import log
from gpt_jax.runtime.trace import Trace
from gpt_jax.spec import UsageError
from gpt_jax.training import (
  consumed,
  device_check,
  imported,
  pretraining,
  starting,
  store_data,
  teaching,
)
from gpt_jax.training import (
  parts as parts_lib,
)
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.compiled import Stages, compile_train_step
from gpt_jax.training.history import check_store, known_skips


class Profile(NamedTuple):
  """What some steps took.

  Attributes:
    steps: how many.
    seconds: of all of them, on the clock of the wall.
    data_seconds: of those, waiting for batches.
    trace: the operations of this host's devices.
    sources: by operation, where in the model it comes from.
    file: of the trace, for xprof or TensorBoard.
  """

  steps: int
  seconds: float
  data_seconds: float
  trace: Trace
  sources: dict[str, str]
  file: str


def profile(workdir: str, steps: str) -> Profile:
  """Traces steps of a run, from its newest weights, into WORKDIR/profile.

  The batches are those of these steps, whatever step the weights are of; of a
  run without a checkpoint they are the first. The first of the batches is
  taken twice before, so that nothing is done for the first time.

  Args:
    workdir: of the run.
    steps: '10:13' for 10 to 12, from 1 on.

  Raises:
    UsageError: there is no run or no such step, or it was trained on other
      data or devices than are here.
  """
  config = trained_lib.read_config(workdir)
  first, stop = consumed.step_range(steps, config.schedule.num_steps)
  if config.get('finetune') is not None:
    raise UsageError(
      f'--workdir={workdir}: was fine-tuned, and runs of train are what is '
      'profiled; give one of the same model'
    )
  device_check.check_devices(config)
  folder = store_data.data_folder(config, workdir)
  if not manifest.exists(folder) and not imported.is_import(workdir):
    raise UsageError(
      f'--workdir={workdir}: its token store {folder} is not here; make it '
      'again by train'
    )
  store = store_data.open_store(config, workdir).ordered(
    config.data.source, config.data.rows
  )
  tokenizer = store.tokenizer()
  outputs = teaching.opened(config, store)
  data = pretraining.open_data(config, store, outputs)
  parts = parts_lib.build(config, tokenizer=tokenizer)
  checkpointer = Checkpointer(workdir, read_only=True)
  state = checkpointer.restore(parts_lib.abstract_state(parts))
  check_store(workdir, checkpointer.restored, store.manifest.fingerprint)
  checkpointer.close()
  if state is None:
    log.info('no checkpoint yet: profiling the first weights')
    state = starting.first_state(parts, tokenizer)
  rows = known_skips(workdir).shifted(config_lib.order(parts.ramp))
  shapes = {parts.ramp.shape(i) for i in range(first - 1, stop - 1)}
  with phases.during('compile'):
    compiled: Stages = {s: compile_train_step(parts, s) for s in shapes}

  def taken(state, batch, step: int):
    shape = parts.ramp.shape(step - 1)
    return compiled[shape].call(state, parts.put(batch, shape.rows))

  phases.enter('step')
  with contextlib.closing(data.batches(parts, first - 1, rows)) as batches:
    batch = next(batches)
    for _ in range(2):
      state, out = taken(state, batch, first)
    jax.block_until_ready(out)
    state = state._replace(
      step=jax.device_put(jnp.int32(first - 1), parts.shardings.step)
    )
    into = os.path.join(workdir, 'profile')
    before, data_seconds = _files(into), 0.0
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # our Python is no part of a step's cost
    with jax.profiler.trace(into, profiler_options=options):
      started = time.perf_counter()
      for step in range(first, stop):
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
          if step > first:
            waiting = time.perf_counter()
            batch = next(batches)
            data_seconds += time.perf_counter() - waiting
          state, out = taken(state, batch, step)
      jax.block_until_ready(out)
      seconds = time.perf_counter() - started
  (file,) = _files(into) - before
  sources = {}
  for step in compiled.values():
    sources |= trace.sources(step.call.as_text())
  found = trace.read(ProfileData.from_file(file))
  return Profile(stop - first, seconds, data_seconds, found, sources, file)


def _files(folder: str) -> set[str]:
  """Traces of this host."""
  name = f'{socket.gethostname()}.xplane.pb'
  pattern = os.path.join(glob.escape(folder), 'plugins/profile/*', name)
  return set(glob.glob(pattern))
