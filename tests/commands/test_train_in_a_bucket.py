# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that lives in a bucket which goes wrong is the run on a disk."""

import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from gpt_jax.core.training import metrics
from tests.support import fake_gcs, fake_s3, quick, subjects, tiny

ROOT = pathlib.Path(__file__).parents[2]
RUN = 'bucket/runs/one'
FLAGS = [
  *tiny.SMOKE,
  *tiny.flags(
    model=dict(vocab_size=262, num_layers=1, d_model=32, context_length=29),
    batch=dict(size=4),
    schedule=dict(num_steps=22),
    checkpoint=dict(every_steps=5),
    eval=dict(every_steps=11, rows=2),
    log=dict(every_steps=1, sample_prompt=''),
  ),
]
# A dead process is believed dead sooner than by default.
COMMAND = (
  'from gpt_jax.core.files import buckets\n'
  'buckets.DEAD, buckets.LOOK, buckets.EVERY = 1.5, 0.1, 0.3\n'
  'from gpt_jax.__main__ import main\n'
  'raise SystemExit(main())\n'
)


KINDS = {'gs': fake_gcs.Bucket, 's3': fake_s3.Bucket}


@pytest.fixture
def make():
  """Makes a bucket: a request now and then is refused, broken off, or slow.

  Not more: gcsfs waits for seconds before it tries again.
  """
  made = []
  kinds = {11: 'busy', 23: 'many', 29: 'partly', 37: 'torn', 47: 'slow'}

  def make(kind):
    made.append(KINDS[kind](lambda i: kinds.get(i % 53, '')))
    return made[-1]

  yield make
  for bucket in made:
    bucket.close()


def start(bucket, command, *flags, processes=1):
  env = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': quick.xla_flags(1),
    **bucket.variables(),
    'STORAGE_EMULATOR_HOST': bucket.url,
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
      start_new_session=True,
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
@pytest.mark.parametrize('kind', KINDS)
def test_killed_and_gone_on_with(make, tmp_path, kind):
  bucket, url = make(kind), f'{kind}://{RUN}'
  done(start(bucket, 'train', *FLAGS, f'--workdir={tmp_path}/disk'))
  expected = lines((tmp_path / 'disk/metrics.jsonl').read_text())

  killed = start(bucket, 'train', *FLAGS, f'--workdir={url}')
  reach(bucket, 5, killed)
  assert '.lease' in {n.rpartition('/')[2] for n in bucket.objects}
  for process in killed:
    process.kill()
    process.communicate()
  ((_, said),) = done(start(bucket, 'train', *FLAGS, f'--workdir={url}'))
  assert 'resuming after step' in said
  assert 'gpt_jax_' not in said  # no path of a copy
  assert bucket.faults > 5
  assert lines(logged(bucket)) == expected
  names = {n.removeprefix('runs/one/').split('/')[0] for n in bucket.objects}
  assert names == {
    'checkpoints',
    'config.json',
    'data',
    'loss.png',
    'metrics.jsonl',
    'tensorboard',
    'tokenizer',
  }
  flags = (f'--workdir={url}', '--json')
  ((text, _),) = done(start(bucket, 'evaluate', *flags))
  found = json.loads(text)
  key = 'eval/validation/loss'
  assert found[key] == pytest.approx(expected[22, key], rel=1e-6)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_several_runs_go_on_after_a_kill(make, tmp_path, kind):
  """Of `compare`, on one token store; then a model leaves and comes back."""
  bucket, url = make(kind), f'{kind}://{RUN}'
  config, *more = FLAGS
  flags = (
    '--run',
    f'a {config.partition("=")[2]}',
    '--run',
    f'b {config.partition("=")[2]} --config.optim.clip_norm=0.5',
    '--flags',
    shlex.join(more),
  )
  done(start(bucket, 'compare', *flags, f'--workdir={tmp_path}/disk'))
  expected = json.loads((tmp_path / 'disk/compare.json').read_text())
  killed = start(bucket, 'compare', *flags, f'--workdir={url}')
  whole = re.compile(r'runs/one/a/0/checkpoints/\d+/commit_success.txt')
  while not any(map(whole.fullmatch, [*bucket.objects])):
    assert all(process.poll() is None for process in killed), done(killed)
    time.sleep(0.05)
  for process in killed:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
  done(start(bucket, 'compare', *flags, f'--workdir={url}'))
  text = bucket.objects['runs/one/a/0/metrics.jsonl'][1].decode()
  events = [metrics.from_json(line) for line in text.splitlines()]
  assert sum(m.get('event') == 'start' for m in events) == 2  # it went on
  assert [m['step'] for m in events if 'loss' in m] == [*range(1, 23)]
  found = json.loads(bucket.objects['runs/one/compare.json'][1])
  for name, (run,) in expected.items():
    loss = found[name][0]['validation_loss']
    assert loss == pytest.approx(run['validation_loss'], rel=1e-6), name
  names = {n.removeprefix('runs/one/').split('/')[0] for n in bucket.objects}
  assert names == {'a', 'b', 'compare.json', 'compare.png', 'data'}
  assert not any('tmp' in name for name in bucket.objects)

  first, again, second = (f'{kind}://bucket/{n}' for n in ('x', 'run', 'y'))
  for flags in (
    (f'--workdir={url}/a/0', f'--to_hf={first}', '--tokenizer=false'),
    (f'--from_hf={first}', f'--workdir={again}'),
    (f'--workdir={again}', f'--to_hf={second}', '--tokenizer=false'),
  ):
    done(start(bucket, 'convert', *flags))
  name = 'model.safetensors'
  assert bucket.objects[f'x/{name}'][1] == bucket.objects[f'y/{name}'][1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_credentials_expire_and_come_back(kind):
  """One line and exit code 2; the same command then goes on."""
  fault = ['']
  bucket, url = KINDS[kind](lambda i: fault[0]), f'{kind}://{RUN}'
  flags = [
    *(flag for flag in FLAGS if 'steps' not in flag),
    '--config.schedule.num_steps=500',
    '--config.checkpoint.every_steps=50',
    '--config.eval.every_steps=500',
    f'--workdir={url}',
  ]
  (run,) = start(bucket, 'train', *flags)
  reach(bucket, 50, [run])
  fault[0] = 'expired'
  _, said = run.communicate(timeout=300)
  last = said.splitlines()[-1]
  assert run.returncode == 2 and last.startswith('gpt-jax train: '), said
  assert 'the last files were not uploaded' in last
  (run,) = start(bucket, 'train', *flags)
  _, said = run.communicate(timeout=300)
  assert run.returncode == 2 and 'renew them' in said.splitlines()[-1], said
  fault[0] = ''
  ((_, said),) = done(start(bucket, 'train', *flags))
  assert 'resuming after step' in said
  bucket.close()


@pytest.mark.long
@pytest.mark.slow  # six processes
def test_two_hosts_without_a_shared_file_system(make, tmp_path):
  """Each has a copy of its own; both are preempted on the way."""
  bucket, url = make('gs'), f'gs://{RUN}'
  flags = [*FLAGS, '--config.mesh.data=2']
  folder = f'--workdir={tmp_path}/disk'
  done(start(bucket, 'train', *flags, folder, processes=2))
  expected = lines((tmp_path / 'disk/metrics.jsonl').read_text())
  run = start(bucket, 'train', *flags, f'--workdir={url}', processes=2)
  reach(bucket, 5, run)
  run[0].terminate()
  codes = [process.wait(timeout=120) for process in run]
  assert codes == [75, 75], [process.communicate() for process in run]
  for process in run:
    process.communicate()
  done(start(bucket, 'train', *flags, f'--workdir={url}', processes=2))
  found = lines(logged(bucket))
  assert found.keys() == expected.keys()
  np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-5, atol=1e-6)


def commands_of(folder: str, local: pathlib.Path) -> list[list[str]]:
  """What makes a model and goes on from it, all below one folder."""
  store = [
    FLAGS[0],
    "--config.data.source=text('configs/b*.py')",
    *FLAGS[2:],
    f'--config.data.store={folder}/store',
  ]
  tasks = [
    f"--config.finetune.task=sst2('{local}/SST-2')",
    '--config.finetune.length=19',
    '--config.finetune.epochs=1',
    '--config.batch.size=7',
  ]
  ablation = 'configs/finetune/ablation.py:sst2 --config.finetune.examples=17'
  return [
    ['prepare', *store[:-1], f'--out={folder}/store'],
    ['train', *store, f'--workdir={folder}/model'],
    [
      'teach',
      *store,
      f'--teacher={folder}/model',
      f'--out={folder}/taught',
      "--config.objective.name=distilled(text='causal', top_k=5, cosine=0.0)",
    ],
    [
      'finetune',
      f'--init={folder}/model',
      f'--workdir={folder}/tuned',
      '--config=configs/finetune/sst2.py',
      *tasks,
    ],
    [
      'compare',
      f'--workdir={folder}/ablation',
      f'--run=full {ablation}',
      f'--run=scratch {ablation} --config.finetune.transfer=none',
      f'--flags={shlex.join([f"--init={folder}/model", *tasks])}',
    ],
    [part.replace('{out}', f'{folder}/scaling') for part in subjects.JOBS['scaling'].argv],
  ]


# The results of `commands_of`.
RESULTS = ('taught/', 'tuned/result.json', 'ablation/compare.json', 'scaling.json')


@pytest.mark.long
@pytest.mark.slow  # fourteen processes
def test_commands_that_go_on_from_a_model(make, tmp_path):
  """They write into a bucket what they write onto a disk; one is served."""
  glue = tmp_path / 'SST-2'
  glue.mkdir()
  for name, count in ('train', 23), ('dev', 7):
    rows = [f'{n} cats\t{n % 2}\n' for n in range(count)]
    (glue / f'{name}.tsv').write_text(''.join(['sentence\tlabel\n', *rows]))
  bucket, disk = make('s3'), tmp_path / 'disk'
  for folder in (str(disk), 's3://bucket/all'):
    for command in commands_of(folder, tmp_path):
      done(start(bucket, *command))
  assert bucket.faults > 5
  expected = {path.relative_to(disk).as_posix(): path for path in disk.rglob('*') if path.is_file()}
  found = {name.removeprefix('all/'): content for name, (_, content) in bucket.objects.items()}
  names = [n for n in expected if any(part in n for part in RESULTS)]
  assert len({name.split('/')[0] for name in names}) == len(RESULTS)
  assert not any('.lease' in name or 'tmp' in name for name in found)
  for name in names:
    # Results name the model that they began with.
    copy = found[name].replace(b's3://bucket/all', bytes(disk))
    whole = expected[name].read_bytes()
    assert subjects.content(name, copy) == subjects.content(name, whole), name

  flags = ['--workdir=s3://bucket/all/model', '--port=0']
  (server,) = start(bucket, 'serve', *flags)
  url = server.stdout.readline().split(' at ')[1].split('/v1')[0]
  body = json.dumps({'prompt': 'def', 'max_tokens': 3}).encode()
  request = urllib.request.Request(
    f'{url}/v1/completions', body, {'Content-Type': 'application/json'}
  )
  with urllib.request.urlopen(request) as answer:
    assert json.load(answer)['usage']['completion_tokens'] == 3
  server.send_signal(signal.SIGTERM)
  done([server])
