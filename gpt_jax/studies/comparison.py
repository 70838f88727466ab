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
from typing import Any, NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.files import files
from gpt_jax.core.runtime import parent, preemption
from gpt_jax.core.runtime.log import log
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.spec import ToldError, UsageError
from gpt_jax.core.training import metrics
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.metrics import HELD_OUT

STORE = 'data'  # folder in the workdir
RESULT = 'result.json'  # of a run of `finetune`
# Of a run that was told to stop. But for 75 it may have saved nothing new.
_STOPPED = (preemption.EXIT_CODE, preemption.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)


class Variant(NamedTuple):
  """One config to train: its name and the flags of `train`, or `finetune`."""

  name: str
  flags: list[str]

  @property
  def command(self) -> str:
    """The command: a run with --init is one of fine-tuning."""
    starts = any(flag.startswith('--init') for flag in self.flags)
    return 'finetune' if starts else 'train'


def parse(text: str, more: str) -> Variant:
  """Reads `--run`."""
  words = shlex.split(text)
  if len(words) < 2 or not all(word.startswith('--') for word in words[2:]):
    raise UsageError(f"--run={text!r}: give 'NAME FILE[:SIZE] [--FLAG=VALUE ...]'")
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
  command = variant.command
  arguments = [*variant.flags, f'--config.seed={seed}', '--workdir', workdir]
  stored = any(flag.startswith('--config.data.store') for flag in variant.flags)
  if command == 'train' and not stored:
    arguments.append(f'--config.data.store={os.path.join(root, STORE)}')
  code = wait_for([sys.executable, '-m', 'gpt_jax', command, *arguments])
  if code == 2:
    raise ToldError(f'run {variant.name}: {command} refuses it')
  if code in _STOPPED:
    raise Preempted(f'{variant.name}, seed {seed}: stopped; start again to continue')
  if code:
    raise RuntimeError(
      f'{variant.name}, seed {seed}: {command} ended with exit code {code}; '
      'see above, then give the same command again'
    )


def wait_for(command: list[str]) -> int:
  """Runs a process to its end; returns its exit code.

  SIGTERM is passed on, so that the process saves and ends. The terminal sends
  it Ctrl-C directly. If this process is killed, so is that one: it would go on
  alone, and refuse the same command its workdir.
  """
  process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=parent.environment())
  old = {
    signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
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

  Of a fine-tuned model the metrics of its task on the dev split instead.

  Raises:
    UsageError: these metrics are missing, or damaged.
  """
  path = os.path.join(workdir, RESULT)
  if os.path.exists(path):
    remedy = 'remove it, and the same command makes it again'
    result = files.read_json(path, remedy=remedy, needs=('metrics', 'dev'))
    values = metrics.as_numbers(result['dev'])
    return {name: values[name] for name in result['metrics']}
  length = config_lib.row_tokens(workdir_lib.read_config(workdir))
  lines = metrics.read(workdir)
  rates = [m[SPEED] / m.get('row_tokens', length) for m in lines if SPEED in m]
  losses = [m[HELD_OUT] for m in lines if HELD_OUT in m]
  if not rates or not losses:
    raise UsageError(
      f'{os.path.join(workdir, "metrics.jsonl")}: has no {SPEED if losses else HELD_OUT}; give '
      f'held-out text (data.holdout), or {again(workdir)}'
    )
  check_log(workdir, lines)
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


def check_log(workdir: str, lines: list[dict[str, Any]]) -> None:
  """Refuses a log without the losses that the run's newest checkpoint has.

  The run itself goes on without them; what is computed from them would be wrong.
  """
  newest = restore.newest(workdir)
  if newest is None or newest.record is None:
    return
  lost = _losses(metrics.as_numbers(newest.record['lines'])) - _losses(lines)
  if lost:
    step, name, value = min(lost)
    raise UsageError(
      f'{os.path.join(workdir, "metrics.jsonl")}: is damaged: the checkpoint of step {newest.step} '
      f'has {name}={value} of step {step}, which is not there; {again(workdir)}'
    )


def _losses(lines: list[dict[str, Any]]) -> set[tuple[int, str, str]]:
  return {
    (line['step'], name, repr(value))
    for line in lines
    for name, value in line.items()
    if name == 'loss' or name.startswith('eval/')
  }


def again(workdir: str) -> str:
  """How to train a run anew."""
  return f'remove {workdir} and give the same command, which trains that run again'


def table(result: dict[str, list[dict[str, float]]]) -> str:
  """A Markdown table: the mean over the seeds, and each seed's first figure."""
  every = [run for runs in result.values() for run in runs]
  columns = list(dict.fromkeys(c for run in every for c in run))
  head = ['run', *(c.replace('_', ' ') for c in columns), 'of each seed']
  lines = [head, ['---'] * len(head)]
  for name, runs in result.items():
    values = [[run[c] for run in runs if c in run] for c in columns]
    means = [f'{statistics.mean(x):.4g}' if x else '-' for x in values]
    first = next(iter(runs[0]))  # the loss, or the task's first metric
    seeds = ', '.join(f'{run[first]:.4f}' for run in runs)
    lines.append([name, *means, seeds])
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
