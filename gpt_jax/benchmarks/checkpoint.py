# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The cost of fault tolerance: saving, restoring, checksums, metrics and checks.

Saves the real state of a config during training. Compares the time that the
training thread is blocked with the time of a step, and the checksums with the
whole save; then restores it. Speeds are bytes of the state by seconds, and the
host's memory is the most that the process held beyond what it held before. Then
compares `loop.fit` with the bare training step, alternating.

Saves into the memory or onto the disks of the hosts are measured on any number
of processes, the rest on one.
"""

import functools
import math
import os
import statistics
import tempfile
import time
from typing import Any

import jax
import numpy as np

from gpt_jax.benchmarks.train import random_store
from gpt_jax.core import config as config_lib
from gpt_jax.core import malloc
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.checkpoints.restore import fingerprint
from gpt_jax.core.config import Config
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import device_check, loop, metrics
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.past import History
from gpt_jax.core.training.run import Run
from gpt_jax.core.training.store_data import StoreData
from gpt_jax.resilience.local import LocalCheckpoints

SAVES = 3
ROUNDS = 3


def measure(config: Config, steps: int) -> dict:
  """Measures `SAVES` saves, and `ROUNDS` times `steps` steps of each loop.

  A collective of all processes.
  """
  parts = parts_lib.build(config, device_check.check_devices(config))
  state = parts_lib.initial_state(parts)
  shape = parts.ramp.stages[-1].shape
  compiled = compiled_lib.compile_train_step(parts, shape)
  batch = parts.put_whole(
    {
      name: np.ones(x.shape, x.dtype)
      for name, x in compiled_lib.abstract_batch(parts, *shape).items()
    },
    shape.rows,
  )
  state, _ = _steps(compiled.call, state, batch, 2)
  result: dict[str, Any] = {
    'device': parts.mesh.devices.flat[0].device_kind,
    'processes': jax.process_count(),
    'parameters': sum(x.size for x in jax.tree.leaves(state.params)),
    'state_gib': sum(x.nbytes for x in jax.tree.leaves(state)) / 2**30,
  }
  with tempfile.TemporaryDirectory() as workdir:
    local = LocalCheckpoints(workdir, config.checkpoint.local_dir)
    state, result['local'] = local_saves(compiled.call, state, batch, local)
  if jax.process_count() > 1:
    return result
  with tempfile.TemporaryDirectory() as folder:
    state, saves = _saves(compiled.call, state, batch, folder)
    del state
    restores = _restores(parts, folder)
  state = parts_lib.initial_state(parts)
  with tempfile.TemporaryDirectory() as folder:
    loops = _loops(parts, compiled.call, state, batch, steps, folder)
  return {**result, **saves, **restores, **loops}


def local_saves(step: Any, state: Any, batch: Any, local: LocalCheckpoints) -> tuple[Any, dict]:
  """The state, and times of local saves between the steps of a run."""
  bare, blocked, whole, during = [], [], [], []
  # The first save does not count: it compiles the checksums.
  for i in range(2 * SAVES + 1):
    state, seconds = _steps(step, state, batch, 2)
    bare += seconds
    start = time.perf_counter()
    local.save(state, None)
    blocked.append(time.perf_counter() - start)
    if i % 2:
      state, seconds = _steps(step, state, batch, 1)
      during += seconds
    local.wait()
    # Without a concurrent step, which would take processors from the save.
    if not i % 2:
      whole.append(time.perf_counter() - start)
  written = local.bytes_held
  local.close(remove=True)
  return state, {
    'step_seconds': statistics.median(bare),
    'blocked_seconds': statistics.median(blocked[1:]),
    'save_seconds': statistics.median(whole[1:]),
    'step_seconds_while_saving': statistics.median(during),
    'gib_of_a_process': written / 2**30,
  }


def _saves(step: Any, state: Any, batch: Any, folder: str) -> tuple[Any, dict]:
  """The state, and times and memory of saves between the steps of a run."""
  checkpointer = Checkpointer(folder)
  bare, blocked, prints, whole, during, more = [], [], [], [], [], []
  # The first save does not count: it compiles the checksums.
  for i in range(SAVES + 1):
    state, seconds = _steps(step, state, batch, 2)
    bare += seconds
    start = time.perf_counter()
    fingerprint(state)
    prints.append(time.perf_counter() - start)
    held = _held()
    start = time.perf_counter()
    checkpointer.save(state)
    blocked.append(time.perf_counter() - start)
    if i % 2:
      state, seconds = _steps(step, state, batch, 1)
      during += seconds
    while checkpointer.saving():
      time.sleep(0.01)
      checkpointer.retry_due()
    # Without a concurrent step, which would take processors from the save.
    if not i % 2:
      whole.append(time.perf_counter() - start)
      more.append(malloc.peak_bytes() - held)
  checkpointer.close()
  return state, {
    'step_seconds': statistics.median(bare),
    'blocked_seconds': statistics.median(blocked[1:]),
    'blocked_seconds_first': blocked[0],
    'checksum_seconds': statistics.median(prints[1:]),
    'save_seconds': statistics.median(whole[1:]),
    'step_seconds_while_saving': statistics.median(during),
    'save_gib_of_host': max(more[1:]) / 2**30,
  }


def _restores(parts: Parts, folder: str) -> dict:
  """Times and memory of restoring the newest checkpoint, its files in memory."""
  seconds, more = [], []
  abstract = parts_lib.abstract_state(parts)
  # The first restore does not count: it compiles the checksums.
  for _ in range(SAVES + 1):
    checkpointer = Checkpointer(folder, read_only=True)
    held = _held()
    start = time.perf_counter()
    state = jax.block_until_ready(checkpointer.restore(abstract))
    seconds.append(time.perf_counter() - start)
    more.append(malloc.peak_bytes() - held)
    assert state is not None
    checkpointer.close()
    del state
  return {
    'restore_seconds': statistics.median(seconds[1:]),
    'restore_gib_of_host': max(more[1:]) / 2**30,
  }


def _held() -> int:
  """Resident bytes of this process, from which its peak is counted anew."""
  malloc.give_back()
  malloc.reset_peak()
  return malloc.peak_bytes()


def _loops(parts: Parts, step: Any, state: Any, batch: Any, steps: int, folder: str) -> dict:
  """Seconds per step of the bare step and of `loop.fit`, in alternation."""
  config = parts.config
  store = random_store(
    num_tokens=64 * max(stage.shape.tokens for stage in parts.ramp.stages),
    vocab_size=config.model.vocab_size,
  )
  lengths = [stage.length for stage in parts.ramp.stages]
  data = StoreData(store, lengths=lengths, seed=config.seed)
  part = parts._replace(config=_short(config, steps))
  whole = state.step.sharding
  bare, full = [], []
  for i in range(ROUNDS):
    state, seconds = _steps(step, state, batch, steps)
    bare += seconds
    workdir = os.path.join(folder, str(i))
    training = Run(
      part,
      workdir,
      data,
      Checkpointer(workdir),
      History(workdir),
      first=functools.partial(parts_lib.initial_state, part),
    )
    state = state._replace(step=jax.device_put(0 * state.step, whole))
    state = loop.fit(training, state)
    full.append(_seconds_a_step(metrics.read(workdir)))
  bare_seconds, full_seconds = statistics.median(bare), statistics.median(full)
  return {
    'bare_step_seconds': bare_seconds,
    'loop_step_seconds': full_seconds,
    'loop_overhead': full_seconds / bare_seconds - 1,
  }


def _short(config: Config, steps: int) -> Config:
  """The config, ending `steps` steps after its first log line."""
  config = config_lib.unlocked(config)
  every = config.log.every_steps
  config.schedule.num_steps = every * (1 + math.ceil(steps / every))
  config.checkpoint.every_steps = config.schedule.num_steps
  return config.lock()


def _seconds_a_step(lines: list[dict]) -> float:
  """Seconds per step between the first and the last log line."""
  logs = [(m['time'], m['step']) for m in lines if 'loss' in m]
  (start, first), (stop, last) = logs[0], logs[-1]
  return (stop - start) / (last - first)


def _steps(step: Any, state: Any, batch: Any, num: int) -> tuple[Any, list]:
  """Takes `num` steps; returns the state and the seconds per step."""
  times = []
  for _ in range(num):
    start = time.perf_counter()
    state, out = step(state, batch)
    jax.block_until_ready((state, out))
    times.append(time.perf_counter() - start)
  return state, times


def report(result: dict) -> str:
  """Formats the result."""
  local = result['local']
  lines = [
    f'model     {result["parameters"]:,} parameters, a state of {result["state_gib"]:.2f} GiB',
    f'local     {local["blocked_seconds"]:.3f} s of the training thread, '
    f'{local["blocked_seconds"] / local["step_seconds"]:.0%} of a step of '
    f'{local["step_seconds"]:.3f} s; {local["save_seconds"]:.2f} s until it is '
    f'written and read back; {local["step_seconds_while_saving"]:.3f} s a step '
    f'while saving; {result["processes"]} processes, '
    f'{local["gib_of_a_process"]:.2f} GiB each',
  ]
  if result['processes'] > 1:
    return '\n'.join(lines)
  blocked = result['blocked_seconds'] / result['step_seconds']
  size = result['state_gib'] * 2**30 / 1e9
  checksums = result['checksum_seconds'] / result['save_seconds']
  lines += [
    f'step      {result["step_seconds"]:.3f} s; '
    f'{result["step_seconds_while_saving"]:.3f} s while saving',
    f'save      {result["blocked_seconds"]:.3f} s of the training thread, '
    f'{blocked:.0%} of a step (the first {result["blocked_seconds_first"]:.3f}'
    f' s); {result["save_seconds"]:.2f} s until it is on disk, '
    f'{size / result["save_seconds"]:.2f} GB/s',
    f'restore   {result["restore_seconds"]:.2f} s, {size / result["restore_seconds"]:.2f} GB/s, '
    'checksums included',
    f'checksums {result["checksum_seconds"]:.3f} s, {checksums:.1%} of the save, '
    f'{size / result["checksum_seconds"]:.2f} GB/s',
    f'memory    of the host at most {result["save_gib_of_host"]:.2f} GiB more while saving, '
    f'{result["restore_gib_of_host"]:.2f} GiB while restoring, the state included',
    f'loop      {result["loop_step_seconds"] * 1e3:.1f} ms a step, bare '
    f'{result["bare_step_seconds"] * 1e3:.1f} ms: '
    f'{result["loop_overhead"]:+.1%}',
  ]
  return '\n'.join(lines)
