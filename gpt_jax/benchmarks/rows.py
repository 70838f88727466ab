# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Throughput of random rows from a token store larger than the cache.

Reads rows of model.context_length through the training pipeline, with and
without compression, and compares that with sequential single reads; and
measures how long steps would wait for a store with high latency.
"""

import os
import tempfile
import time
from typing import Any

import numpy as np

from gpt_jax.benchmarks.train import random_manifest
from gpt_jax.config import Config
from gpt_jax.files import files
from gpt_jax.objectives import causal
from gpt_jax.rows import pipeline, taken
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.store import ArrayWriter, TokenStore

# Four times the cache of decoded chunks.
NUM_TOKENS = 1 << 29
VOCAB_SIZE = 32_000
ROWS = 256  # in a batch
LATENCY, STEP = 0.2, 0.05  # seconds


def measure(config: Config, steps: int) -> dict:
  """Reads `steps` batches of `ROWS` rows each way."""
  length = config.model.context_length
  found: dict[str, Any] = {'length': length, 'rows': ROWS}
  with tempfile.TemporaryDirectory(dir=os.environ.get('TMPDIR')) as folder:
    for compression in ('none', 'zstd'):
      name = os.path.join(folder, compression)
      made, size = _write(name, compression)
      store = TokenStore(*made)
      found[compression] = {
        'rows_per_second': _rate(_batches(store, length, steps), steps),
        'rows_per_second_one_by_one': _one_by_one(store, length, steps),
        'bytes_per_token': size / NUM_TOKENS,
      }
      slow = _Slow(*made)
    found['latency_seconds'], found['step_seconds'] = LATENCY, STEP
    found['waiting'] = _waiting(_batches(slow, length, steps), steps)
  return found


class _Slow(TokenStore):
  """A store with high latency, like one behind a network."""

  def read_many(self, starts, length):
    time.sleep(LATENCY)
    return super().read_many(starts, length)


def _write(folder: str, compression: str) -> tuple[tuple, int]:
  """Writes random tokens with frequencies by Zipf's law.

  Returns:
    The arguments of `TokenStore`, and the bytes on disk.
  """
  rng = np.random.default_rng(0)
  writer = ArrayWriter(
    folder, token_store.TOKENS, 'uint16', compression=compression
  )
  for _ in range(NUM_TOKENS >> 24):
    # Log-uniform ranks have frequencies of 1 / rank.
    ranks = VOCAB_SIZE ** rng.random(1 << 24, np.float32)
    writer.add((ranks - 1).astype(np.uint16))
  writer.close()
  size = sum(
    os.path.getsize(os.path.join(where, name))
    for where, _, names in os.walk(folder)
    for name in names
  )
  tokens = files.open_array(
    files.join(folder, token_store.TOKENS),
    open=True,
    fill_missing_data_reads=False,
  )
  made = random_manifest(NUM_TOKENS, VOCAB_SIZE, 'uint16')
  ends = np.array([NUM_TOKENS])
  arrays = {token_store.TOKENS: tokens, token_store.DOCUMENT_ENDS: ends}
  return (folder, made, arrays), size


def _batches(store: TokenStore, length: int, steps: int):
  return pipeline.batches(
    store,
    seed=0,
    start=0,
    stop=steps + 1,
    rows=taken.even(ROWS, length),
    make_batch=causal.make_batch,
  )


def _rate(batches, steps: int) -> float:
  # Timed from the start of the threads, which prefetch.
  start = time.perf_counter()
  for _ in batches:
    pass
  return (steps + 1) * ROWS / (time.perf_counter() - start)


def _one_by_one(store: TokenStore, length: int, steps: int) -> float:
  starts = np.random.default_rng(1).integers(
    NUM_TOKENS - length - 1, size=min(steps, 8) * ROWS
  )
  start = time.perf_counter()
  for i in starts:
    store.tokens(int(i), int(i) + length + 1)
  return len(starts) / (time.perf_counter() - start)


def _waiting(batches, steps: int) -> float:
  """Fraction of the time that steps wait, after the first batch."""
  next(batches)
  waited, start = 0.0, time.perf_counter()
  for _ in range(steps):
    time.sleep(STEP)
    before = time.perf_counter()
    next(batches)
    waited += time.perf_counter() - before
  return waited / (time.perf_counter() - start)


def report(result: dict) -> str:
  """Formats the result."""
  lines = [
    f'random rows of {result["length"]} tokens, {result["rows"]} a batch, one '
    f'process; {NUM_TOKENS:,} tokens on disk'
  ]
  for name in ('none', 'zstd'):
    found = result[name]
    lines.append(
      f'compression {name}: {found["rows_per_second"]:,.0f} rows/s, one by one '
      f'{found["rows_per_second_one_by_one"]:,.0f}; '
      f'{found["bytes_per_token"]:.3f} bytes a token on disk'
    )
  lines.append(
    f'a store that answers after {result["latency_seconds"]} s, steps of '
    f'{result["step_seconds"]} s: they wait {result["waiting"]:.1%} of the time'
  )
  return '\n'.join(lines)
