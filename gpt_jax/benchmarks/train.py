# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Throughput of a config's training step on random tokens.

The tokens come through the data pipeline that training uses.
"""

import resource
import statistics
import time

import jax
import numpy as np

from gpt_jax.core.config import Config
from gpt_jax.core.costs import flops
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import batch_rows, row_order
from gpt_jax.core.runtime import peaks as peaks_lib
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.store import DOCUMENT_ENDS, TOKENS, TokenStore
from gpt_jax.core.training import device_check, fitting
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.compiled import Compiled
from gpt_jax.core.training.parts import Parts
from gpt_jax.resilience.replay import Replay

# Steps before the clock starts, to warm up.
WARM_UP = 3


def measure(config: Config, steps: int) -> dict:
  """Trains `WARM_UP` + `steps` steps on random tokens and measures the last."""
  mesh = device_check.check_devices(config)
  name = config.objective.name
  needs = objectives.needs(name)
  if needs.tokens or needs.decoder_start:
    what = f'a [{needs.tokens[0].upper()}]' if needs.tokens else 'a tokenizer'
    raise UsageError(
      f'objective.name={name!r}: needs {what}, which random tokens lack; '
      'see the log lines of gpt-jax train for its speed'
    )
  parts = parts_lib.build(config, mesh)
  fitting.check_state(parts)
  shape = parts.ramp.stages[-1].shape
  parts, programs = fitting.fitted(parts, [shape])
  compiled = programs[shape]
  state = parts_lib.initial_state(parts)
  # Measured before and after, since the load of the machine varies.
  peak, source = peaks_lib.of_device(parts.mesh.devices.flat[0], again=True)
  rows = shape.rows
  make_batch = parts.objective.make_batch
  batches = row_order.batches(
    random_store(num_tokens=64 * shape.tokens, vocab_size=config.model.vocab_size),
    seed=config.seed,
    start=0,
    stop=WARM_UP + steps,
    rows=batch_rows.even(shape.rows, shape.length),
    host_rows=parts.host_rows,
    make_batch=make_batch,
  )
  times, waits = [], []
  first = next(batches)
  batch = parts.put(first, rows)
  start = time.perf_counter()
  for _ in range(WARM_UP + steps):
    # As in training, the next batch is fetched while the step runs.
    state, out = compiled.call(state, batch, *parts.average_start())
    fetch = time.perf_counter()
    following = next(batches, None)
    waits.append(time.perf_counter() - fetch)
    if following is not None:
      batch = parts.put(following, rows)
    jax.block_until_ready((state, out))
    now = time.perf_counter()
    times.append(now - start)
    start = now
  times, waits = times[WARM_UP:], waits[WARM_UP:]
  if source.endswith('matmuls'):
    peak = max(peak, peaks_lib.of_device(parts.mesh.devices.flat[0], again=True)[0])
  seconds = statistics.median(times)
  checked = {}
  if config.replay.every_steps:
    checked = _checked(parts, shape, compiled, state, first, steps)
  rate = shape.tokens / seconds
  peaks = peak * parts.mesh.size
  per_token = flops.per_token(config, state.params, shape.length)
  causal = flops.per_token_causal(config, state.params, shape.length)
  # FLOPs of the matrix products of a step, per token.
  compiler = compiled.flops / shape.tokens
  return {
    'device': parts.mesh.devices.flat[0].device_kind,
    'num_devices': parts.mesh.size,
    'steps': steps,
    'compile_seconds': compiled.seconds,
    'step_seconds': seconds,
    'step_seconds_min': min(times),
    'tokens_per_second': rate,
    'data_wait_fraction': sum(waits) / sum(times),
    'host_memory_gib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    'flops_per_token': per_token,
    'mfu': flops.mfu(rate, per_token, peaks),
    'mfu_causal': flops.mfu(rate, causal, peaks),
    'mfu_compiler': flops.mfu(rate, compiler, peaks),
    'peak_flops': peaks,
    'peak_source': source,
    'formula': flops.FORMULA,
    'formula_causal': flops.FORMULA_CAUSAL,
    'formula_compiler': flops.FORMULA_COMPILER,
    **checked,
  }


def _checked(
  parts: Parts,
  shape: Shape,
  program: Compiled,
  state: TrainState,
  batch: dict[str, np.ndarray],
  steps: int,
) -> dict[str, float]:
  """Medians of plain steps and of steps that are checked, in turns."""

  def refuse(name: str, step: int, about: dict) -> str:
    del name
    raise FailedError(f'step {step} is not the same again: {about}')

  replay = Replay(parts, refuse)
  replay.compiled({shape: program})
  replay.begin(0)
  start = parts.average_start()
  times: dict[str, list[float]] = {'plain': [], 'checked': []}
  for step in range(1, steps + 2):  # the first warms up
    for name, spent in times.items():
      began = time.perf_counter()
      if name == 'plain':
        arrays = parts.put(batch, shape.rows)
        state, out = program.call(state, arrays, *start)
      else:
        args = step, state, batch, shape, program, start
        state, out = replay.checked_step(*args)
      jax.block_until_ready((state, out))
      spent.append(time.perf_counter() - began)
  plain, checked = (statistics.median(spent[1:]) for spent in times.values())
  every = parts.config.replay.every_steps
  return {
    'checked_step_seconds': checked,
    'checked_step_ratio': checked / plain,
    'replay_overhead': (checked / plain - 1) / every,
  }


def random_store(*, num_tokens: int, vocab_size: int) -> TokenStore:
  """A token store of uniform random ids, in memory."""
  tokens = np.random.default_rng(0).integers(vocab_size, size=num_tokens)
  manifest = random_manifest(num_tokens, vocab_size, 'uint32')
  ends = np.array([num_tokens])
  arrays = {TOKENS: tokens.astype(np.uint32), DOCUMENT_ENDS: ends}
  return TokenStore('', manifest, arrays)


def random_manifest(num_tokens: int, vocab_size: int, dtype: str) -> Manifest:
  """The manifest of a store of random ids in one document."""
  return Manifest(
    source='random',
    source_sha256='',
    holdout='none',
    tokenizer='none',
    tokenizer_fingerprint='',
    vocab_size=vocab_size,
    eos_id=0,
    dtype=dtype,
    num_tokens=num_tokens,
    num_documents=1,
    num_bytes=num_tokens,
    tokens_crc32=[],
    document_ends_crc32=[],
  )


def report(result: dict) -> str:
  """Formats the result."""
  checked = ''
  if 'checked_step_seconds' in result:
    checked = (
      f'replay  {result["checked_step_seconds"] * 1e3:.1f} ms for a step that '
      f'is checked, {result["checked_step_ratio"]:.2f} times a plain one in '
      f'turns with it: {result["replay_overhead"]:.2%} of all time\n'
    )
  return (
    f'compile {result["compile_seconds"]:.1f} s\n'
    f'step    {result["step_seconds"] * 1e3:.1f} ms '
    f'(median of {result["steps"]}; fastest '
    f'{result["step_seconds_min"] * 1e3:.1f})\n'
    f'speed   {result["tokens_per_second"]:,.0f} tokens/s\n'
    f'{checked}'
    f'data    {result["data_wait_fraction"]:.2%} of the step time is waiting\n'
    f'memory  {result["host_memory_gib"]:.2f} GiB of this host at most\n'
    f'MFU     {result["mfu"]:.1%}; causal {result["mfu_causal"]:.1%}; '
    f'compiler {result["mfu_compiler"]:.1%} of {result["peak_flops"]:.3g} '
    f'FLOP/s ({result["peak_source"]})\n'
    f'        {flops.FORMULA}\n'
    f'        {flops.FORMULA_CAUSAL}\n'
    f'        {flops.FORMULA_COMPILER}'
  )
