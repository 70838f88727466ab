# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A damaged file of a run is named, with what to do; nothing is guessed."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.files import files
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import inputs
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.simple import Characters
from gpt_jax.core.tokens import manifest
from gpt_jax.core.training import metrics, store_data
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.evaluation.results import Results
from gpt_jax.opening import models as trained_lib
from gpt_jax.opening.models import open_model
from tests.support import quick, tiny

DAMAGES = {
  'cut': lambda data: data[: len(data) // 2],
  'empty': lambda data: b'',
  'zeros': lambda data: bytes(len(data)),
  'a list': lambda data: b'[]\n',
  'a number': lambda data: b'3\n',
  'an object': lambda data: b'{}\n',
  'not text': lambda data: b'\xff\xfe' + data,
}


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
  """A folder with one file of each kind."""
  config = config_lib.resolve(tiny.config())
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "loss": 2.5}\n')
  (tmp_path / 'evaluation.json').write_text('{"step": 1, "model": "x"}\n')
  (tmp_path / 'spikes').mkdir()
  (tmp_path / 'spikes/3.json').write_text('{"step": 3}')
  made = Characters('abc')
  made.save(str(tmp_path / 'tokenizer'))
  files.write(str(tmp_path), manifest.NAME, b'{"format_version": 1}')
  inputs.write(str(tmp_path), {'a.txt': '3:abc'})
  return tmp_path


def damage(path, how):
  path.write_bytes(DAMAGES[how](path.read_bytes()))


def refused(path, function, *args):
  with pytest.raises(UsageError) as error:
    function(*args)
  message = str(error.value)
  assert str(path) in message
  assert '\n' not in message and '; ' in message


@pytest.mark.parametrize('how', DAMAGES)
def test_config(workdir, how):
  path = workdir / 'config.json'
  damage(path, how)
  config = config_lib.resolve(tiny.config())
  refused(path, trained_lib.read_config, str(workdir))
  refused(path, workdir_lib.check_same_run, config, str(workdir))
  refused(path, open_model, str(workdir), 'tune', '--init')


FIELDS = sorted(config_lib.flatten(config_lib.resolve(tiny.config())))


@pytest.mark.parametrize('what', ['name', 'type', 'missing'])
def test_a_field_of_a_config(workdir, what):
  """Every one, of the wrong name, of the wrong type, and missing."""
  path = workdir / 'config.json'
  whole = path.read_text()
  for field in FIELDS:
    tree = json.loads(whole)
    *sections, name = field.split('.')
    section = tree
    for part in sections:
      section = section[part]
    value = section.pop(name)
    if what == 'name':
      section[name[:-1] + chr(ord(name[-1]) ^ 1)] = value
    elif what == 'type':
      section[name] = [value]
    path.write_text(json.dumps(tree))
    refused(path, trained_lib.read_config, str(workdir))


def test_a_flipped_bit_of_a_config(workdir):
  """The config is read, or refused: nothing else is raised."""
  path = workdir / 'config.json'
  whole = path.read_bytes()
  rng = np.random.default_rng(0)
  results = []
  for place in rng.choice(len(whole), 120, replace=False):
    data = bytearray(whole)
    data[place] ^= 1 << rng.integers(8)
    path.write_bytes(data)
    try:
      trained_lib.read_config(str(workdir))
      results.append('read')
    except UsageError as e:
      assert str(path) in str(e)
      results.append('refused')
  assert {*results} == {'read', 'refused'}


def test_a_changed_digit_of_a_config(workdir):
  """All that still parses: readers of a workdir have nothing else to compare it with."""
  path, config = workdir / 'config.json', config_lib.resolve(tiny.config())
  text = files.sealed(config.to_dict())
  path.write_text(text)
  assert trained_lib.read_config(str(workdir)) == config
  places = [i for i, c in enumerate(text) if c in '3579']
  assert len(places) > 30
  for i in places:
    path.write_text(f'{text[:i]}{int(text[i]) - 1}{text[i + 1 :]}')
    refused(path, trained_lib.read_config, str(workdir))


def test_who_changes_a_config_removes_its_checksum(workdir):
  path, config = workdir / 'config.json', config_lib.resolve(tiny.config())
  fields = json.loads(files.sealed(config.to_dict())) | {'seed': 7}
  path.write_text(json.dumps(fields))
  refused('if you changed it, remove its sha256', trained_lib.read_config, str(workdir))
  del fields['sha256']
  path.write_text(json.dumps(fields))
  changes = config_lib.differences(config, trained_lib.read_config(str(workdir)))
  assert changes == ['seed: 0 -> 7']


def test_all_readers_refuse_a_field_that_is_damaged(workdir):
  path = workdir / 'config.json'
  path.write_text(path.read_text().replace('"clip_norm"', '"clip_norn"'))
  config = config_lib.resolve(tiny.config())
  for reader in (
    trained_lib.built,
    trained_lib.load,
    *(functools.partial(trained_lib.load, use=u) for u in ('fill', 'write')),
    functools.partial(open_model, use='tune', field='--init'),
  ):
    refused('did you mean optim.clip_norm?', reader, str(workdir))
  refused(path, workdir_lib.check_same_run, config, str(workdir))


@pytest.mark.parametrize('how', [how for how in DAMAGES if how != 'empty'])
def test_metrics(workdir, how):
  path = workdir / 'metrics.jsonl'
  path.write_bytes(path.read_bytes() * 2)
  lines = path.read_bytes().split(b'\n')
  lines[0] = DAMAGES[how](lines[0]).strip()
  path.write_bytes(b'\n'.join(lines))
  refused(f'{path}: line 1 is damaged', metrics.read, str(workdir))


def test_metrics_of_zeros_alone(workdir):
  """What some file systems leave after a power cut."""
  path = workdir / 'metrics.jsonl'
  path.write_bytes(path.read_bytes() + bytes(30))
  refused(f'{path}: line 2 is damaged', metrics.read, str(workdir))


@pytest.mark.parametrize('how', DAMAGES)
def test_spike(workdir, how):
  path = workdir / 'spikes/3.json'
  damage(path, how)
  refused(path, store_data.spike, str(path))


@pytest.mark.parametrize('how', DAMAGES)
def test_manifest(workdir, how):
  path = workdir / manifest.NAME
  damage(path, how)
  refused(path, manifest.read, str(workdir))


@pytest.mark.parametrize('how', [how for how in DAMAGES if how != 'an object'])
def test_inputs(workdir, how):
  path = workdir / inputs.NAME
  damage(path, how)
  (workdir / 'a.txt').write_text('abc')
  paths = {'a.txt': str(workdir / 'a.txt')}
  refused(path, inputs.changes, str(workdir), paths)


@pytest.mark.parametrize('name', ['tokenizer.json', 'characters.json'])
@pytest.mark.parametrize('how', DAMAGES)
def test_tokenizer(workdir, name, how):
  damage(workdir / 'tokenizer' / name, how)
  refused(f'{workdir}/tokenizer/', tokenizer.load, f'{workdir}/tokenizer')


@pytest.mark.parametrize(
  'change',
  [
    {'files': 3},
    {'files': [3]},
    {'kind': []},
    {'fingerprint': None},
    {'files': ['../config.json']},
    {'files': ['/etc/hostname']},
    {'beside': {'../config.json': ''}},
    {'files': ['..\\x', '']},
  ],
)
def test_index_of_a_tokenizer(workdir, change):
  path = workdir / 'tokenizer/tokenizer.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  refused(path, tokenizer.load, f'{workdir}/tokenizer')


@pytest.mark.parametrize('how', [how for how in DAMAGES if how != 'an object'])
def test_evaluation(workdir, how):
  path = workdir / 'evaluation.json'
  damage(path, how)

  def read():
    Results(str(path), step=1, model='x', tasks={})

  refused(path, read)


def test_a_missing_config_beside_checkpoints_is_not_replaced(workdir):
  (workdir / 'config.json').unlink()
  config = config_lib.resolve(tiny.config())
  workdir_lib.check_same_run(config, str(workdir))
  state = TrainState(np.int32(5), {'a': np.float32([1])}, ())
  Checkpointer(str(workdir)).finish(jax.device_put(state))
  path = workdir / 'config.json'
  refused(path, workdir_lib.check_same_run, config, str(workdir))
  assert not path.exists()


@pytest.mark.slow
def test_a_run_that_goes_on_notices_or_is_none_the_worse(tmp_path):
  """A few of the kit; with all checkpoints damaged it ends in one line."""
  kit = [sys.executable, '-m', 'tests.support.damage', '--kinds=decoder']
  done = subprocess.run(
    [
      *kit,
      '--damages=5',
      '--seed=7',
      f'--ledger={tmp_path}/faults.jsonl',
      '--config.checkpoint.keep=2',
    ],
    cwd=pathlib.Path(__file__).parents[3],
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': quick.xla_flags(1)},
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stdout
  assert '0 of 5, seed 7, ended in neither way' in done.stdout
