# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Four simulated hosts, preempted on the way, train as one machine does."""

import subprocess
import sys

import numpy as np
import pytest

from gpt_jax.training import metrics
from tests.runtime.test_hosts import losses
from tests.support import quick
from tests.support.fake_cloud import ROOT, Cloud, wait_until

STEPS = 60
FLAGS = [
  f'--config={ROOT}/configs/smoke.py',
  f"--config.data.source=text('{ROOT}/configs/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.data.workers=1',
  '--config.tokenizer.name=bytes',
  '--config.model.num_layers=1',
  '--config.model.d_model=16',
  '--config.model.num_heads=2',
  '--config.model.context_length=13',
  '--config.batch.size=8',
  '--config.optim.on_spike=stop',
  f'--config.schedule.num_steps={STEPS}',
  '--config.schedule.name=constant(1e-2)',
  '--config.checkpoint.every_steps=20',
  '--config.eval.every_steps=0',
  '--config.log.every_steps=1',
  '--config.log.sample_prompt=',
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
      process.poll() is not None
      or any(m['step'] >= 2 for m in metrics.read(str(cloud.workdir)))
    )
  )
  said = cloud.take_away()
  out = process.communicate()[0]
  assert process.returncode == 0, out
  # Told to stop at a step that none of them chose alone.
  assert len(said) == 4
  assert {line.partition(' in ')[0] for line in said} == {
    said[0].partition(' in ')[0]
  }
  assert said[0].startswith('gpt-jax train: preempted; saved step ')
  step = int(said[0].split()[5])
  assert 2 <= step < STEPS
  assert f'resuming after step {step}' in out
  assert 'making it again' in out
  assert len(cloud.calls('queued-resources', 'create')) == 2
  one = tmp_path / 'one'
  # On one device, as each of them: this process may have more already.
  argv = [sys.executable, '-m', 'gpt_jax', 'train', *FLAGS]
  subprocess.run([*argv, f'--workdir={one}'], check=True)
  a, b = losses(one), losses(cloud.workdir)
  assert [*a] == [*b] == [*range(1, STEPS + 1)]
  # Float32 sums in another order.
  np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-4)
  copied = losses(cloud.folder / 'buckets/b/run')
  assert copied == b
