# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two processes of four devices train as one process of eight does."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

from gpt_jax import metrics

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = [
  '--config=configs/smoke.py',
  "--config.data.source=text('configs/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.tokenizer.name=bytes',
  '--config.model.vocab_size=262',
  '--config.model.num_layers=2',
  '--config.model.d_model=32',
  '--config.model.context_length=29',
  '--config.mesh.data=2',
  '--config.mesh.fsdp=2',
  '--config.mesh.tensor=2',
  '--config.batch.rows=12',
  '--config.schedule.num_steps=9',
  '--config.checkpoint.every_steps=5',
  '--config.log.every_steps=1',
  '--config.log.sample_prompt=',
]


def start(workdir: pathlib.Path, num_devices: int, **env: str):
  devices = f'--xla_force_host_platform_device_count={num_devices}'
  command = [*(sys.executable, '-m', 'gpt_jax', 'train'), *FLAGS]
  command.append(f'--workdir={workdir}')
  if env:
    command.append('--distributed')
  return subprocess.Popen(
    command,
    cwd=ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': devices, **env},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(*processes: subprocess.Popen) -> None:
  for process in processes:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_two_processes_equal_one(tmp_path):
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{s.getsockname()[1]}'
  finish(start(tmp_path / 'one', 8))
  finish(
    *(
      start(
        tmp_path / 'two',
        4,
        JAX_COORDINATOR_ADDRESS=address,
        JAX_NUM_PROCESSES='2',
        JAX_PROCESS_ID=str(i),
      )
      for i in range(2)
    )
  )
  one, two = (metrics.read(str(tmp_path / name)) for name in ('one', 'two'))
  for key in ('loss', 'grad_norm', 'eval/validation/loss'):
    a = [m[key] for m in one if key in m]
    b = [m[key] for m in two if key in m]
    assert len(a) == len(b) > 0
    np.testing.assert_allclose(a, b, rtol=1e-5)
