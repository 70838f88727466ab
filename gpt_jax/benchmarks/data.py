# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What making a config's batches costs the host, beside its training step.

The rows are those of the config's own token store, and are made into batches by
its own objective: for masked language modelling each row draws its masks. All
on one thread; in training two or more make batches while the step runs.
"""

import statistics
import tempfile
import time

import jax

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.rows import pipeline, taken
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokens import prepare
from gpt_jax.tokens.store import TokenStore
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import device_check
from gpt_jax.training import parts as parts_lib

# Steps before the clock counts, to warm up.
WARM_UP = 2


def measure(config: Config, steps: int) -> dict:
  """Reads, makes and trains on `steps` batches, each part in turn."""
  device_check.check_devices(config)
  with tempfile.TemporaryDirectory() as folder:
    store = prepare.ensure(config, config.data.store or folder)
    return _measure(config, store, steps)


def _measure(config: Config, store: TokenStore, steps: int) -> dict:
  tokenizer = store.tokenizer()
  config = config_lib.set_vocab_size(
    config,
    tokenizer.vocab_size,
    config.tokenizer.name,
    tokenizer_lib.own_of_sources(tokenizer),
  )
  parts = parts_lib.build(config, tokenizer=tokenizer)
  make_batch = parts.objective.make_batch
  if make_batch is None:
    raise UsageError(
      f'objective.name={config.objective.name!r}: takes no rows of a token '
      'store; give one that pre-trains'
    )
  shape = parts.ramp.stages[-1].shape
  source = pipeline.RowSource(store, length=shape.length, seed=config.seed)
  order = taken.even(shape.rows, shape.length)
  step = compiled_lib.compile_train_step(parts, shape).call
  state = parts_lib.init_state(parts)
  seconds: list[list[float]] = [[], [], []]
  for number in range(WARM_UP + steps):
    times = [time.perf_counter()]
    rows, keys = source.read(order(number))
    times.append(time.perf_counter())
    batch = make_batch(rows, keys)
    times.append(time.perf_counter())
    state, _ = jax.block_until_ready(step(state, parts.put(batch, shape.rows)))
    times.append(time.perf_counter())
    for spent, start, end in zip(seconds, times, times[1:], strict=False):
      spent.append(end - start)
  read, make, train = (statistics.median(spent[WARM_UP:]) for spent in seconds)
  return {
    'objective': config.objective.name,
    'rows': shape.rows,
    'length': shape.length,
    'steps': steps,
    'read_seconds': read,
    'make_seconds': make,
    'step_seconds': train,
    'rows_per_second': shape.rows / (read + make),
    'fraction': (read + make) / train,
  }


def report(result: dict) -> str:
  """Formats the result."""
  return (
    f'{result["objective"]}: batches of {result["rows"]} rows of '
    f'{result["length"]} tokens, on one thread\n'
    f'read    {result["read_seconds"] * 1e3:.2f} ms a batch\n'
    f'make    {result["make_seconds"] * 1e3:.2f} ms; with reading '
    f'{result["rows_per_second"]:,.0f} rows/s\n'
    f'step    {result["step_seconds"] * 1e3:.1f} ms; reading and making take '
    f'{result["fraction"]:.2%} of it'
  )
