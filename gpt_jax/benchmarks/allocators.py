# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training step on a CPU with different allocators.

Each has a process of its own, and they take turns of a few steps. Their losses
show whether the results are the same to the last bit.
"""

import contextlib
import os
import subprocess
import sys
import tempfile

from gpt_jax import malloc
from gpt_jax.benchmarks import against, harness
from gpt_jax.benchmarks.harness import MIB, OURS, Side
from gpt_jax.config import Config
from gpt_jax.spec import UsageError
from gpt_jax.training import parts as parts_lib

# Libraries of a system, which are preloaded where they are installed, and
# their settings.
_LIBRARIES = {
  'jemalloc': ('libjemalloc.so.2', 'thp:always,narenas:2'),
  'tcmalloc': ('libtcmalloc_minimal.so.4', ''),
}


def measure(config: Config, steps: int) -> dict:
  """Trains `against.WARM_UP` + `steps` steps with each allocator."""
  parts = parts_lib.build(config)
  shape = parts.ramp.stages[-1].shape
  number = against.WARM_UP + steps
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    batches = against.random_batches(parts, '--what=malloc')
    against.write(folder, config, batches)
    sides: dict[str, Side] = {
      name: stack.enter_context(
        harness.side('train', folder, OURS, environment=environment)
      )
      for name, environment in _environments().items()
    }
    rounds = against.train_turns(sides, number)
  losses = [answers['losses'] for answers in rounds.values()]
  found = {
    name: against.medians(answers, shape.tokens)
    for name, answers in rounds.items()
  }
  for result in found.values():
    del result['losses']
  return {
    'rows': shape.rows,
    'length': shape.length,
    'steps': steps,
    'allocators': found,
    'same_losses': all(loss == losses[0] for loss in losses),
  }


def _environments() -> dict[str, dict[str, str]]:
  """The environment of a process with each allocator, by name."""
  clean = {
    name: value
    for name, value in os.environ.items()
    if name not in ('GLIBC_TUNABLES', 'LD_PRELOAD')
    and not name.startswith('MALLOC_')
  }
  tuned = malloc.tuned(clean)
  if not tuned:
    raise UsageError(
      '--what=malloc: needs Linux with glibc 2.35, huge pages and no '
      'accelerator; measure on such a machine'
    )
  found = {'keeps memory': clean, 'huge pages': {**clean, **tuned}}
  for name, (library, settings) in _LIBRARIES.items():
    more = {'LD_PRELOAD': library}
    if settings:
      more['MALLOC_CONF'] = settings
    if _loads({**clean, **more}):
      found[name] = {**clean, **more}
  return found


def _loads(environment: dict[str, str]) -> bool:
  """Whether a process can start with what its environment preloads."""
  done = subprocess.run(
    [sys.executable, '-c', ''], env=environment, stderr=subprocess.PIPE
  )
  return not done.returncode and b'cannot be preloaded' not in done.stderr


def report(result: dict) -> str:
  """Formats the result as a table."""
  rows = [
    (
      name,
      f'{found["tokens_per_second"]:,.0f}',
      f'{found["step_seconds"] * 1e3:,.1f}',
      f'{found["cpu_seconds_a_step"] * 1e3:,.1f}',
      f'{found["peak_bytes"] / MIB:,.0f}',
    )
    for name, found in result['allocators'].items()
  ]
  header = ('', 'tokens/s', 'step, ms', 'CPU ms a step', 'peak memory, MiB')
  same = 'the same' if result['same_losses'] else 'DIFFERENT'
  return '\n'.join(
    [
      f'{result["rows"]} rows of {result["length"]} tokens, median of '
      f'{result["steps"]} steps',
      harness.table(header, rows),
      f'losses: {same}, to the last bit',
    ]
  )
