# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts, preempted on the way, train as one machine does."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from gpt_jax.core.training import metrics
from tests.core.runtime.test_hosts import losses
from tests.support import quick, tiny
from tests.support.fake_cloud import ROOT, Cloud, wait_until

STEPS = 60
FLAGS = [
  f'--config={ROOT}/configs/smoke.py',
  *tiny.flags(
    data=dict(source=f"text('{ROOT}/configs/*.py')", holdout='tail(fraction=0.1)', workers=1),
    tokenizer=dict(name='bytes'),
    model=dict(num_layers=1, d_model=16, num_heads=2, context_length=13),
    batch=dict(size=8),
    optim=dict(on_spike='stop'),
    schedule=dict(num_steps=STEPS, name='constant(1e-2)'),
    checkpoint=dict(every_steps=20),
    eval=dict(every_steps=0),
    log=dict(every_steps=1, sample_prompt=''),
  ),
]


# Nine processes that train; test_launch.py has the script alone.
@pytest.mark.long
@pytest.mark.slow
def test_create_run_preempt_resume_finish(tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setenv('XLA_FLAGS', quick.xla_flags(devices=1))
  cloud = Cloud(tmp_path / 'cloud', workers=4)
  quoted = ' '.join(f'"{flag}"' for flag in FLAGS)
  settings = cloud.settings(
    ACCELERATOR='v4-32',
    POLL_SECONDS='0.5',
    RESULTS='gs://b/run',
    COMMAND=f'(gpt-jax train {quoted} --workdir="$WORKDIR" --distributed)',
  )
  process = cloud.start('up', settings, '--yes')
  wait_until(
    lambda: (
      process.poll() is not None or any(m['step'] >= 2 for m in metrics.read(str(cloud.workdir)))
    )
  )
  said = cloud.take_away()
  out = process.communicate()[0]
  assert process.returncode == 0, out
  # Told to stop at a step that none of them chose alone.
  assert len(said) == 4
  assert {line.partition(' in ')[0] for line in said} == {said[0].partition(' in ')[0]}
  assert said[0].startswith('gpt-jax train: stopped; saved step ')
  step = int(said[0].split()[5])
  assert 2 <= step < STEPS
  assert f'resuming after step {step}' in out
  assert 'making it again' in out
  assert len(cloud.calls('queued-resources', 'create')) == 2
  assert_as_one(tmp_path, cloud)
  copied = losses(cloud.folder / 'buckets/b/run')
  assert copied == losses(cloud.workdir)


def assert_as_one(tmp_path, cloud):
  """The losses are those of one device."""
  one = tmp_path / 'one'
  # As each of the hosts: this process may have more already.
  argv = [sys.executable, '-m', 'gpt_jax', 'train', *FLAGS]
  subprocess.run([*argv, f'--workdir={one}'], check=True)
  a, b = losses(one), losses(cloud.workdir)
  assert [*a] == [*b] == [*range(1, STEPS + 1)]
  # Float32 sums in another order.
  np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-4)


@pytest.mark.long
@pytest.mark.slow  # nine processes that train
def test_a_slice_is_lost_and_comes_back(tmp_path, monkeypatch):
  """Three slices of one host; the batch of 8 does not divide over three."""
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setenv('XLA_FLAGS', quick.xla_flags(devices=1))
  cloud = Cloud(tmp_path / 'cloud', workers=1)
  flags = [
    *FLAGS,
    '--config.mesh.data=-1',
    '--config.mesh.fsdp=1',
    '--config.checkpoint.every_steps=5',
  ]
  quoted = ' '.join(f'"{flag}"' for flag in flags)
  settings = cloud.settings(
    ACCELERATOR='v4-8',
    SLICES='3',
    MIN_SLICES='2',
    SLICE_WAIT_SECONDS='0',
    RETRY_SECONDS='0.5',
    POLL_SECONDS='0.5',
    COMMAND=f'(gpt-jax train {quoted} --workdir="$WORKDIR" --distributed)',
  )
  process = cloud.start('up', settings, '--yes')

  def reached(step, devices):
    """Whether a run on `devices` devices took step `step`, or `up` ended."""
    lines = metrics.read(str(cloud.workdir))
    started = [m['devices'] for m in lines if m.get('event') == 'start']
    return process.poll() is not None or (
      started[-1:] == [devices] and any(m['step'] >= step for m in lines)
    )

  def ends():
    """How often hosts were told to end."""
    calls = cloud.calls('tpu-vm', 'ssh')
    return sum('/on_host.sh end' in call[4] for call in calls)

  wait_until(lambda: reached(12, 3))
  cloud.lose('run-1')
  wait_until(lambda: reached(12, 2))
  # The two wait until they are told to save.
  told, pids = ends(), [int((run / 'pid').read_text()) for run in cloud.runs()]
  for pid in pids:
    os.kill(pid, signal.SIGSTOP)
  cloud.give('run-1')
  wait_until(lambda: process.poll() is not None or ends() > told)
  for pid in pids:
    os.kill(pid, signal.SIGCONT)
  out = process.communicate()[0]
  assert process.returncode == 0, out
  lines = metrics.read(str(cloud.workdir))
  starts = [m for m in lines if m.get('event') == 'start']
  assert [m['devices'] for m in starts] == [3, 2, 3], out
  assert 0 < starts[1]['step'] < starts[2]['step'] < STEPS
  assert '3 of 3 slices are there: saving, to go on with them' in out
  assert_as_one(tmp_path, cloud)
