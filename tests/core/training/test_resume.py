# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed, at any moment, ends as if it had never been.

`python -m tests.support.crash` does the same at random moments.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from gpt_jax.core.training import metrics
from tests.support import quick, tiny, whole_runs

ROOT = pathlib.Path(__file__).parents[3]
STEPS = 60
FLAGS = [
  *tiny.SMOKE,
  *tiny.flags(
    model=dict(
      num_layers=2,
      d_model=32,
      context_length=31,
      dropout='rates(embedding=0.1, residual=0.1, attention=0.1)',
    )
  ),
  # 51 tokens a step, then 93 from step 36 and 186 from step 43 on.
  *tiny.flags(
    batch=dict(size='ramp(0:3, 2400_tokens:6)', length='stages(17, 35_steps:31)', micro_rows=3),
    optim=dict(precision='bfloat16', ema='ema(decay=0.9)'),
    schedule=dict(num_steps=STEPS, name="cosine(2e-3, '500_tokens', decay='8k_tokens')"),
    checkpoint=dict(every_steps=7),
    eval=dict(every_steps=20),
    log=dict(every_steps=1, sample_tokens=5),
  ),
]


def start(workdir: pathlib.Path) -> subprocess.Popen:
  # Compiled quickly, for one device.
  flags = quick.xla_flags(devices=1)
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}
  return subprocess.Popen(
    [sys.executable, '-m', 'gpt_jax', 'train', *FLAGS, f'--workdir={workdir}'],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process: subprocess.Popen) -> None:
  _, errors = process.communicate()
  assert process.returncode == 0, errors


def kill_when(workdir: pathlib.Path, condition, number=signal.SIGKILL, code=-signal.SIGKILL) -> str:
  """Starts the run and kills it as soon as `condition()` holds.

  Returns:
    The last line that it said.
  """
  process = start(workdir)
  while not condition():
    if process.poll() is not None:
      pytest.fail(f'ended before it was killed: {process.stderr.read()}')
    time.sleep(0.001)
  process.send_signal(number)
  _, errors = process.communicate()
  assert process.returncode == code, errors
  return errors.strip().rpartition('\n')[2]


@pytest.mark.slow  # many processes; test_preemption.py stops runs in this one
def test_killed_run_ends_bit_identical(tmp_path):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  undisturbed = start(whole)

  def last_step() -> int:
    lines = metrics.read(str(killed)) if killed.exists() else []
    return max((line['step'] for line in lines), default=-1)

  def exists(pattern: str) -> bool:
    return any(killed.glob(pattern))

  kill_when(killed, lambda: exists('data/*'))  # preparing
  terminate = {'number': signal.SIGTERM, 'code': 75}
  last = kill_when(killed, lambda: exists('config.json'), **terminate)
  # The file is there an instant before the phase begins.
  assert re.match('gpt-jax train: preempted in phase (start|compile), ', last)
  kill_when(killed, lambda: exists('checkpoints/*tmp*'))  # saving
  # Between two saves.
  last = kill_when(killed, lambda: last_step() >= 25, **terminate)
  assert last.startswith('gpt-jax train: stopped; saved step ')
  # Nothing but the save stood between the signal and the end.
  assert exists(f'checkpoints/{last.split()[5]}') and not exists('loss.png')
  # The newest checkpoint is that of step 35: another length follows.
  kill_when(killed, lambda: last_step() >= 37)
  finish(start(killed))
  finish(undisturbed)

  assert whole_runs.logged(whole) == whole_runs.logged(killed)
  logged = [m for m in whole_runs.logged(whole) if 'loss' in m]
  assert [m['step'] for m in logged] == [*range(1, STEPS + 1)]
  assert [m['batch_rows'] for m in logged] == [3] * 42 + [6] * (STEPS - 42)
  assert [m['row_tokens'] for m in logged] == [17] * 35 + [31] * (STEPS - 35)
  whole_runs.same_state(whole, killed, step=STEPS)
  samples = [(d / 'samples.txt').read_text() for d in (whole, killed)]
  assert samples[0] == samples[1]

  # The same command again has nothing left to do, and changes nothing.
  before = (killed / 'metrics.jsonl').read_bytes()
  finish(start(killed))
  assert (killed / 'metrics.jsonl').read_bytes() == before
  assert json.loads((killed / 'config.json').read_text())['seed'] == 0
