# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes train as one of the same number of devices does.

Stopped and killed on the way, and continued by another number of processes.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from gpt_jax import metrics

ROOT = pathlib.Path(__file__).parent.parent
STEPS = 150
FLAGS = [
  '--config=configs/smoke.py',
  "--config.data.source=text('configs/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.tokenizer.name=bytes',
  '--config.model.vocab_size=262',
  '--config.model.num_layers=1',
  '--config.model.d_model=32',
  '--config.model.context_length=29',
  '--config.mesh.data=2',
  '--config.mesh.fsdp=2',
  '--config.mesh.tensor=2',
  '--config.batch.rows=12',
  f'--config.schedule.num_steps={STEPS}',
  '--config.checkpoint.every_steps=40',
  '--config.eval.every_steps=50',
  '--config.log.every_steps=2',
  '--config.hosts.heartbeat_seconds=10',
  '--config.log.sample_prompt=',
]


def start(
  workdir: pathlib.Path, num_processes: int, **flags: str
) -> list[subprocess.Popen]:
  """Starts the processes of a run on eight devices in all."""
  devices = 8 // num_processes
  env = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices} '
    '--xla_backend_optimization_level=0',
  }
  command = [*(sys.executable, '-m', 'gpt_jax', 'train'), *FLAGS]
  command += [f'--workdir={workdir}']
  command += [f'--config.{name}={value}' for name, value in flags.items()]
  if num_processes > 1:
    command.append('--distributed')
    with socket.socket() as s:
      s.bind(('127.0.0.1', 0))
      env['JAX_COORDINATOR_ADDRESS'] = f'127.0.0.1:{s.getsockname()[1]}'
    env['JAX_NUM_PROCESSES'] = str(num_processes)
  return [
    subprocess.Popen(
      command,
      cwd=ROOT,
      env={**env, 'JAX_PROCESS_ID': str(i)},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(num_processes)
  ]


def ends(processes: list[subprocess.Popen]) -> tuple[list[int], list[str]]:
  """Exit codes and what was said on stderr."""
  said = [process.communicate()[1] for process in processes]
  return [process.returncode for process in processes], said


def reach(workdir: pathlib.Path, step: int, processes) -> None:
  """Waits until the run has logged a step."""
  while not any(m['step'] >= step for m in metrics.read(str(workdir))):
    if any(process.poll() is not None for process in processes):
      pytest.fail(str(ends(processes)))
    time.sleep(0.01)


def test_processes_equal_one(tmp_path):
  alone = start(tmp_path / 'one', 1)
  workdir = tmp_path / 'many'
  # Told to stop: both save the same step, together.
  two = start(workdir, 2)
  reach(workdir, 4, two)
  two[1].send_signal(signal.SIGTERM)
  codes, said = ends(two)
  assert codes == [75, 75], said
  last = {text.splitlines()[-1].partition(' in ')[0] for text in said}
  (saved,) = last
  assert saved.startswith('gpt-jax train: preempted; saved step ')
  step = int(saved.split()[5])
  assert (workdir / f'checkpoints/{step}').is_dir()

  # Killed: the others end too, and by themselves.
  four = start(workdir, 4)
  reach(workdir, step + 2, four)
  four[3].kill()
  codes, said = ends(four)
  assert codes[3] == -signal.SIGKILL
  assert all(code not in (0, 75) for code in codes), said

  codes, said = ends(start(workdir, 2))
  assert codes == [0, 0], said
  codes, said = ends(alone)
  assert codes == [0], said
  one, many = (metrics.read(str(tmp_path / n)) for n in ('one', 'many'))
  for key in ('loss', 'grad_norm', 'eval/validation/loss'):
    a, b = ({m['step']: m[key] for m in x if key in m} for x in (one, many))
    assert a.keys() == b.keys() and a
    # Float32 sums in another order, over the steps.
    np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-3)
  first = [m['loss'] for m in one if 'loss' in m][:4]
  np.testing.assert_allclose(
    first, [m['loss'] for m in many if 'loss' in m][:4], rtol=1e-5
  )


def test_preparation_that_fails_ends_the_others(tmp_path):
  flags = {'data.source': "text('nothing/of/this/name')"}
  codes, said = ends(start(tmp_path / 'w', 2, **flags))
  assert codes == [2, 1], said
  reason = said[0].splitlines()[-1].partition(': ')[2]
  assert 'nothing/of/this/name' in reason
  assert said[1].splitlines()[-1] == (
    f'gpt-jax train: failed: process 0 failed: UsageError: {reason}'
  )
