# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that lives in a bucket which goes wrong is the run on a disk."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from gpt_jax.training import metrics
from tests.support import quick
from tests.support.fake_gcs import Bucket

ROOT = pathlib.Path(__file__).parents[2]
URL = 'gs://bucket/runs/one'
FLAGS = [
  '--config=configs/smoke.py',
  "--config.data.source=text('configs/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.tokenizer.name=bytes',
  '--config.model.vocab_size=262',
  '--config.model.num_layers=1',
  '--config.model.d_model=32',
  '--config.model.context_length=29',
  '--config.batch.size=4',
  '--config.schedule.num_steps=22',
  '--config.checkpoint.every_steps=5',
  '--config.eval.every_steps=11',
  '--config.eval.rows=2',
  '--config.log.every_steps=1',
  '--config.log.sample_prompt=',
]
# A dead process is believed dead sooner than by default.
COMMAND = (
  'from gpt_jax.files import buckets\n'
  'buckets.DEAD, buckets.LOOK, buckets.EVERY = 1.5, 0.1, 0.3\n'
  'from gpt_jax.__main__ import main\n'
  'raise SystemExit(main())\n'
)


@pytest.fixture
def bucket():
  """A request now and then is refused, broken off, or slow.

  Not more: gcsfs waits for seconds before it tries again.
  """
  made = Bucket(
    lambda i: {11: 'busy', 29: 'partly', 47: 'slow'}.get(i % 53, '')
  )
  yield made
  made.close()


def start(bucket, command, *flags, processes=1):
  env = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': quick.xla_flags(1),
    'TENSORSTORE_GCS_HTTP_URL': bucket.url,
    'STORAGE_EMULATOR_HOST': bucket.url,
    'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',
    'GOOGLE_CLOUD_PROJECT': 'none',
    'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
  }
  if processes > 1:
    flags = (*flags, '--distributed')
    with socket.socket() as s:
      s.bind(('127.0.0.1', 0))
      env['JAX_COORDINATOR_ADDRESS'] = f'127.0.0.1:{s.getsockname()[1]}'
    env['JAX_NUM_PROCESSES'] = str(processes)
  return [
    subprocess.Popen(
      [sys.executable, '-c', COMMAND, command, *flags],
      cwd=ROOT,
      env={**env, 'JAX_PROCESS_ID': str(i)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(processes)
  ]


def done(started):
  said = [process.communicate(timeout=300) for process in started]
  assert not any(process.returncode for process in started), said
  return said


def lines(text):
  """The losses of each step, and evaluations."""
  found = map(metrics.from_json, text.splitlines())
  return {
    (m['step'], name): value
    for m in found
    for name, value in m.items()
    if name == 'loss' or (name.startswith('eval/') and 'seconds' not in name)
  }


def logged(bucket):
  return bucket.objects['runs/one/metrics.jsonl'][1].decode()


def reach(bucket, step, started):
  while f'runs/one/checkpoints/{step}/commit_success.txt' not in bucket.objects:
    assert all(process.poll() is None for process in started), done(started)
    time.sleep(0.05)


@pytest.mark.slow
def test_killed_and_gone_on_with(bucket, tmp_path):
  done(start(bucket, 'train', *FLAGS, f'--workdir={tmp_path}/disk'))
  expected = lines((tmp_path / 'disk/metrics.jsonl').read_text())

  killed = start(bucket, 'train', *FLAGS, f'--workdir={URL}')
  reach(bucket, 5, killed)
  assert '.lease' in {n.rpartition('/')[2] for n in bucket.objects}
  for process in killed:
    process.kill()
    process.communicate()
  ((_, said),) = done(start(bucket, 'train', *FLAGS, f'--workdir={URL}'))
  assert 'resuming after step' in said
  assert 'gpt_jax_' not in said  # no path of a copy
  assert bucket.faults > 5
  assert lines(logged(bucket)) == expected
  names = {n.removeprefix('runs/one/').split('/')[0] for n in bucket.objects}
  assert names == {
    *('checkpoints', 'config.json', 'data', 'loss.png', 'metrics.jsonl'),
    *('tensorboard', 'tokenizer'),
  }
  flags = (f'--workdir={URL}', '--json')
  ((text, _),) = done(start(bucket, 'evaluate', *flags))
  found = json.loads(text)
  key = 'eval/validation/loss'
  assert found[key] == pytest.approx(expected[22, key], rel=1e-6)


@pytest.mark.long
@pytest.mark.slow  # six processes
def test_two_hosts_without_a_shared_file_system(bucket, tmp_path):
  """Each has a copy of its own; both are preempted on the way."""
  flags = [*FLAGS, '--config.mesh.data=2']
  folder = f'--workdir={tmp_path}/disk'
  done(start(bucket, 'train', *flags, folder, processes=2))
  expected = lines((tmp_path / 'disk/metrics.jsonl').read_text())
  run = start(bucket, 'train', *flags, f'--workdir={URL}', processes=2)
  reach(bucket, 5, run)
  run[0].terminate()
  codes = [process.wait(timeout=120) for process in run]
  assert codes == [75, 75], [process.communicate() for process in run]
  for process in run:
    process.communicate()
  done(start(bucket, 'train', *flags, f'--workdir={URL}', processes=2))
  found = lines(logged(bucket))
  assert found.keys() == expected.keys()
  np.testing.assert_allclose(
    [*found.values()], [*expected.values()], rtol=1e-5, atol=1e-6
  )
