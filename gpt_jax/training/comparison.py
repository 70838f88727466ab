# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains several configs, each in its own process, and compares them."""

import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from typing import NamedTuple

from gpt_jax import config as config_lib
from gpt_jax.runtime import parent, preemption
from gpt_jax.runtime.log import log
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.spec import ToldError, UsageError
from gpt_jax.training import metrics
from gpt_jax.training import models as trained_lib
from gpt_jax.training.metrics import HELD_OUT

STORE = 'data'  # folder in the workdir
# Of a run that was told to stop. But for 75 it may have saved nothing new.
_STOPPED = (
  *(preemption.EXIT_CODE, preemption.INTERRUPTED),
  *(-signal.SIGTERM, -signal.SIGINT),
)


class Variant(NamedTuple):
  """One config to train: its name and the flags of `train`."""

  name: str
  flags: list[str]


def parse(text: str, more: str) -> Variant:
  """Reads `--run`."""
  words = shlex.split(text)
  if len(words) < 2 or not all(word.startswith('--') for word in words[2:]):
    raise UsageError(
      f"--run={text!r}: give 'NAME FILE[:SIZE] [--config.SECTION.FIELD=VALUE]'"
    )
  name, config, *overrides = words
  if name == STORE or os.path.basename(name) != name or name.startswith('.'):
    raise UsageError(
      f'--run={text!r}: {name!r} must name a folder in the workdir other than '
      f'{STORE!r}, the token store; give another name'
    )
  return Variant(name, ['--config', config, *shlex.split(more), *overrides])


def train(variant: Variant, seed: int, workdir: str, root: str) -> None:
  """Trains or resumes one variant in its own process.

  Raises:
    ToldError: the config is refused; stderr has one line that says why.
    Preempted: SIGTERM came; the run is saved.
    RuntimeError: the run failed.
  """
  log.info('%s, seed %s: %s', variant.name, seed, workdir)
  store = f'--config.data.store={os.path.join(root, STORE)}'
  arguments = [*variant.flags, f'--config.seed={seed}', '--workdir', workdir]
  if not any(flag.startswith('--config.data.store') for flag in variant.flags):
    arguments.append(store)
  code = wait_for([sys.executable, '-m', 'gpt_jax', 'train', *arguments])
  if code == 2:
    raise ToldError(f'run {variant.name}: train refuses it')
  if code in _STOPPED:
    raise Preempted(
      f'{variant.name}, seed {seed}: stopped; start again to continue'
    )
  if code:
    raise RuntimeError(
      f'{variant.name}, seed {seed}: train ended with exit code {code}; see '
      'above, then give the same command again'
    )


def wait_for(command: list[str]) -> int:
  """Runs a process to its end; returns its exit code.

  SIGTERM is passed on, so that the process saves and ends. The terminal sends
  it Ctrl-C directly. If this process is killed, so is that one: it would go on
  alone, and refuse the same command its workdir.
  """
  process = subprocess.Popen(
    command, stdout=subprocess.DEVNULL, env=parent.environment()
  )
  old = {
    signal.SIGTERM: signal.signal(
      signal.SIGTERM, lambda *_: process.terminate()
    ),
    signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
  }
  try:
    return process.wait()
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)


# The results of several configs and seeds, as one table.


SPEED = 'tokens_per_second'
# A metric of each layer with experts.
DROPPED = re.compile(r'router/.*/dropped')


def summary(workdir: str) -> dict[str, float]:
  """A run's last losses, its speed, and the fraction its experts dropped.

  Raises:
    RuntimeError: these metrics are missing.
  """
  length = config_lib.row_tokens(trained_lib.read_config(workdir))
  lines = metrics.read(workdir)
  rates = [m[SPEED] / m.get('row_tokens', length) for m in lines if SPEED in m]
  losses = [m[HELD_OUT] for m in lines if HELD_OUT in m]
  if not rates or not losses:
    raise RuntimeError(
      f'{workdir}: metrics.jsonl has no {SPEED if losses else HELD_OUT}; '
      'compare needs held-out text (data.holdout)'
    )
  found = {
    'validation_loss': losses[-1],
    # Rows per second; the first line includes the warm-up.
    'examples_per_second': statistics.median(rates[1:] or rates),
  }
  dropped = [x for m in lines for name, x in m.items() if DROPPED.match(name)]
  # NaN where the update was skipped.
  dropped = [x for x in dropped if math.isfinite(x)]
  if dropped:
    # The mean over all layers with experts and the whole run.
    found['dropped_fraction'] = statistics.mean(dropped)
  return found


def table(result: dict[str, list[dict[str, float]]]) -> str:
  """A Markdown table: the mean over the seeds, and each seed's loss."""
  columns = list(dict.fromkeys(c for runs in result.values() for c in runs[0]))
  head = ['run', *(c.replace('_', ' ') for c in columns), 'loss of each seed']
  lines = [head, ['---'] * len(head)]
  for name, runs in result.items():
    means = [
      f'{statistics.mean(run[c] for run in runs):.4g}' if c in runs[0] else '-'
      for c in columns
    ]
    seeds = ', '.join(f'{run["validation_loss"]:.4f}' for run in runs)
    lines.append([name, *means, seeds])
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
