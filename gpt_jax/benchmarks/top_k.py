# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Speed of top-1 and top-2 routing at three capacity factors.

The rows of table 1 of the Switch paper, in examples per second on this machine;
`gpt-jax compare` gives their quality.
"""

import statistics
import time

import jax

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.benchmarks import switch
from gpt_jax.config import Config
from gpt_jax.nn.ffn import FFNS

FACTORS = (2.0, 1.25, 1.0)
# Published top-1 over top-2 at capacity factor 1.0: 1000 / 860 examples/s.
PAPER = 1000 / 860


def measure(config: Config, steps: int) -> dict:
  """Times loss and gradient of each, in turn."""
  calls = spec.bind_all('model.ffn', config.model.ffn, FFNS)
  switch.check(config, calls)
  variants = {}
  for factor in FACTORS:
    for top_k in (2, 1):
      changes = {'top_k': top_k, 'capacity_factor': factor}
      variants[f'top-{top_k}, {factor}'] = switch.replaced(
        config, calls, lambda c, changes=changes: switch.changed(c, **changes)
      )
  parts = {name: switch.compile_parts(v) for name, v in variants.items()}
  seconds: dict[str, list[float]] = {name: [] for name in parts}
  for _ in range(1 + steps):
    for name, (gradient, _, _) in parts.items():
      start = time.perf_counter()
      jax.block_until_ready(gradient())
      seconds[name].append(time.perf_counter() - start)
  rows = config_lib.ramp(config).stages[-1].rows
  rates = {
    name: rows / statistics.median(times[1:]) for name, times in seconds.items()
  }
  return {
    'rows': rows,
    'length': config.model.context_length,
    'steps': steps,
    'examples_per_second': rates,
    'ratio': rates['top-1, 1.0'] / rates['top-2, 1.0'],
    'ratio_of_the_paper': PAPER,
  }


def report(result: dict) -> str:
  """Formats the result."""
  lines = [
    f'{result["rows"]} rows of {result["length"]} tokens, loss and gradient'
  ]
  for name, rate in result['examples_per_second'].items():
    lines.append(f'{name:11}: {rate:,.1f} examples/s')
  lines.append(
    f'top-1 over top-2 at 1.0: {result["ratio"]:.2f} (the paper: '
    f'{result["ratio_of_the_paper"]:.2f})'
  )
  return '\n'.join(lines)
