# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""gpt-jax why: what it prints, what it refuses, and the bits of other meshes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.training import metrics
from tests.core.training.test_spikes import bad_row, data  # noqa: F401
from tests.core.training.test_spikes import config as spiky
from tests.support import looked, quick

STILL = {'log.norms_every_steps': 0, 'model.num_layers': 1, 'checkpoint.keep': 3}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('why')
  looked.write_texts(folder / 'texts', (3,), 20)
  fields = {'schedule.num_steps': 7, 'checkpoint.every_steps': 4, 'batch.size': 8, **STILL}
  return str(looked.train(folder / 'run', folder / 'texts', **fields))


def test_a_step(run, tmp_path, capsys):
  picture, before = tmp_path / 'step.png', contents(run)
  flags = ['--step=6', '--lr=0.5', f'--out={picture}', '--top=2']
  assert main(['why', f'--workdir={run}', *flags]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == 'step 6, from the checkpoint of step 4'
  assert lines[1].startswith('The bits of the run: 2 logged numbers of steps 6 to 6 are the same')
  assert lines[2].split('  ')[0] == 'step'
  [loss] = [x['loss'] for x in metrics.read(run) if x['step'] == 6 and 'loss' in x]
  assert lines[3].split()[:4] == ['as', 'it', 'was', f'{loss:.6g}']
  assert lines[4].startswith('--lr 0.5 ')
  assert {'embed', 'decoder/layer_0'} <= {line.split()[0] for line in lines}
  assert len([line for line in lines if '.txt' in line]) == 4
  assert picture.read_bytes().startswith(b'\x89PNG')
  assert contents(run) == before


def contents(folder):
  """The files below a folder."""
  paths = pathlib.Path(folder).rglob('*')
  return {path: path.read_bytes() for path in paths if path.is_file()}


def test_json(run, capsys):
  assert main(['why', f'--workdir={run}', '--step=7', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['start'] == 4
  assert [x['same'] for x in found['compared']] == [True] * 4  # steps 6 and 7
  assert found['outcomes']['as it was']['next_loss'] is None
  assert sum(x['weight'] for x in found['documents']) == pytest.approx(1)
  assert found['norms']['gradient_norm/embed'] > 0


def test_bisect(run, capsys):
  flags = ['--bisect=2:7', '--quantity=loss', '--band=:0']
  assert main(['why', f'--workdir={run}', *flags]) == 0
  said = capsys.readouterr().out
  assert 'The first step outside: 2.' in said
  assert said.startswith('The bits of the run: ')


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ([], '--workdir is missing'),
    (['--workdir=W'], 'give one of --step and --bisect'),
    (['--workdir=W', '--step=3', '--bisect=1:2'], 'give one of --step and --bisect'),
    (['--workdir=W', '--step=3'], '--workdir=W: holds no run'),
    (['--workdir=W', '--bisect=1:2'], '--band is missing'),
    (['--workdir=W', '--bisect=2:1', '--band=:1'], '--bisect=2:1: give FIRST:LAST'),
    (['--workdir=W', '--bisect=1:2', '--band=:1', '--lr=0'], '--lr: is for --step'),
    (['--workdir=W', '--step=3', '--out=a.pdf'], '--out=a.pdf: must end in .png'),
  ],
)
def test_refusals_are_one_line(flags, said, capsys):
  assert main(['why', *flags]) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith(f'gpt-jax why: {said}'), line


@pytest.mark.slow  # a run with a spike
def test_before_and_after_a_rewind(data, bad_row, tmp_path, capsys):  # noqa: F811
  """Step 13 had a spike, and was taken again with other rows."""
  from gpt_jax.commands import train

  workdir = str(tmp_path / 'w')
  config = spiky(data, **{'optim.on_spike': 'rewind(before=0, batches=1)', 'log.every_steps': 1})
  train.train(config, workdir)
  capsys.readouterr()
  found = {}
  look = ['why', f'--workdir={workdir}', '--step=13', '--json', f'--out={tmp_path}/step.png']
  for flags in [], ['--rewound']:
    assert main([*look, *flags]) == 0
    found[bool(flags)] = json.loads(capsys.readouterr().out)
  assert all(x['same'] for x in (*found[False]['compared'], *found[True]['compared']))
  assert [x['logged'] for x in found[True]['compared']] == ['nan', 'nan']
  assert found[False]['outcomes']['as it was']['loss'] < 6
  assert found[True]['documents'][5]['loss'] == 'nan'
  assert found[False]['documents'] != found[True]['documents']


@pytest.mark.slow  # in processes of their own
@pytest.mark.parametrize('devices', [1, 2])
def test_a_run_of_eight_devices_on_fewer(tmp_path, devices):
  """With `batch.exact_over` the bits are those of its log."""
  looked.write_texts(tmp_path / 'texts', (3,), 20)
  fields = {'schedule.num_steps': 7, 'batch.exact_over': 8, **STILL}
  fields |= {'batch.size': 8, 'batch.micro_rows': 1}
  flags = looked.fields(tmp_path / 'texts', **fields)

  def command(count, *args):
    env = {'PJRT_NPROC': '8', 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': quick.xla_flags(count)}
    done = subprocess.run(
      [sys.executable, '-m', 'gpt_jax', *args], env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  workdir = f'--workdir={tmp_path}/w'
  command(8, 'train', workdir, '--config=configs/smoke.py', *flags)
  found = json.loads(command(devices, 'why', workdir, '--step=6', '--json'))
  assert [x['same'] for x in found['compared']] == [True] * 4
