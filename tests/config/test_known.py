# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A field that there is not is refused, and the one that was meant is named."""

import pathlib
import re

import pytest

from gpt_jax import __main__
from gpt_jax import config as config_lib
from gpt_jax.config import loading
from gpt_jax.config.fields import _TUNED, _WORDS, OPTIONAL, check_known, tree
from gpt_jax.spec import UsageError

ROOT = pathlib.Path(__file__).parents[2]
MINE = """
from {ancestor} as ancestor

def get_config(arg=''):
  config = ancestor.get_config().unlock()
  {line}
  return config.lock()
"""
BASE, TUNED = 'configs import base', 'configs.finetune import rte'
GRID, PARTS = 'configs import scaling', 'configs import electra'

# What a file sets, and the field that is named.
MISSPELT = [
  (
    BASE,
    'config.optim.clipnorm = 0.1',
    'optim.clipnorm=0.1',
    'optim.clip_norm',
  ),
  (BASE, 'config.batch.sise = 8', 'batch.sise=8', 'batch.size'),
  (BASE, 'config.sed = 1', 'sed=1', 'seed'),
  (BASE, 'config.num_layers = 1', 'num_layers=1', 'model.num_layers'),
  (BASE, 'config.optimm = dict(clip_norm=1.0)', 'optimm', 'optim'),
  (BASE, 'config.trainer = dict()', 'trainer', ''),
  (BASE, 'config.model.depth = 1', 'model.depth=1', 'model.num_layers'),
  (BASE, 'config.mesh.rules.mpl = ""', "mesh.rules.mpl=''", 'mesh.rules.mlp'),
  (BASE, 'config.eval.stes = dict()', 'eval.stes', 'eval.sets'),
  (BASE, 'config.optim.drop_steps = 1', 'optim.drop_steps=1', ''),
  (BASE, 'config.data.every_steps = 1', 'data.every_steps=1', 'checkpoint.ev'),
  (PARTS, 'config.models.generator.d_modell = 8', 'd_modell=8', 'models.gener'),
  (TUNED, 'config.finetune.epoch = 1.0', 'finetune.epoch=1.0', 'finetune.epoc'),
  (
    TUNED,
    'config.finetune.model.dtyp = "x"',
    "dtyp='x'",
    'finetune.model.dtype',
  ),
  (TUNED, 'config.optim.lr = 0.1', 'optim.lr=0.1', 'finetune.peak'),
  (GRID, 'config.sweep.budget = "1"', "sweep.budget='1'", 'sweep.budgets'),
]
# Those of other frameworks, as overrides.
WORDS = {
  'lr': 'schedule.name=',
  'optim.learning_rate': 'schedule.name=',
  'optim.weight_decay': "optim.name='adamw(",
  'batch_size': 'batch.size',
  'batch-size': 'batch.size',
  'batch.batch_size': 'batch.size',
  'epochs': 'schedule.num_steps',
  'model.dropout_rate': "model.dropout='rates(",
  'dropout': "model.dropout='rates(",
  'model.n_layer': 'model.num_layers',
  'model.hidden_size': 'model.d_model',
  'seq_len': 'model.context_length',
  'grad_clip': 'optim.clip_norm',
}


@pytest.mark.parametrize('ancestor, line, given, field', MISSPELT)
def test_a_field_of_a_file(tmp_path, ancestor, line, given, field):
  path = tmp_path / 'mine.py'
  path.write_text(MINE.format(ancestor=ancestor, line=line))
  with pytest.raises(UsageError) as error:
    loading.load_config(str(path), [])
  said = str(error.value)
  assert f'{given}: there is no such field' in said
  assert f'did you mean {field}' in said if field else 'mean' not in said


@pytest.mark.parametrize('field', WORDS)
def test_a_word_of_another_framework(field):
  file = f'{ROOT}/configs/smoke.py'
  if '-' not in field:
    with pytest.raises(UsageError, match='there is no such field') as error:
      loading.load_config(file, [f'--config.{field}=3'])
    said = str(error.value)
    assert f'did you mean {WORDS[field]}' in said and '\\' not in said
  # Without its prefix, as a flag.
  with pytest.raises(UsageError, match='there is no such flag') as error:
    loading.load_config(file, [f'--{field}=3'])
  assert f'did you mean --config.{WORDS[field]}' in str(error.value)


def test_words_name_fields_that_there_are():
  fields = {*config_lib.flatten(tree(*OPTIONAL))}
  meant = {*_WORDS, *_TUNED.values()}
  for text in meant:
    for field in text.split(' and '):
      assert field.partition('=')[0] in fields


@pytest.mark.parametrize(
  'command', ['train', 'prepare', 'tokenizers', 'plot', 'plan', 'teach']
)
def test_all_commands_refuse(tmp_path, capsys, monkeypatch, command):
  """Also those that read but a part of the config; nothing is written."""
  monkeypatch.chdir(tmp_path)
  text = MINE.format(ancestor=BASE, line='config.optim.clipnorm = 0.1')
  (tmp_path / 'mine.py').write_text(text)
  assert __main__.main([command, '--config=mine.py']) == 2
  said = capsys.readouterr().err
  assert 'optim.clipnorm=0.1: there is no such field' in said
  assert said.count('\n') == 1
  assert {p.name for p in tmp_path.iterdir()} <= {'mine.py', '__pycache__'}


@pytest.mark.parametrize('field', ['finetune.labels', 'finetune.labels[0]'])
def test_a_list_is_no_flag(field):
  why = re.escape(f'--config.{field}: a run fills this in; leave the flag out')
  with pytest.raises(UsageError, match=why):
    loading.load_config(
      f'{ROOT}/configs/finetune/rte.py', [f'--config.{field}=x']
    )


def test_open_sections():
  """Names of the user's own, and a field that a part does not state."""
  base = f'{ROOT}/configs/electra.py:small'
  config = loading.load_config(
    base, ['--config.models.generator.num_layers=2', '--config.seed=3']
  ).unlock()
  config.data.sources = {'web': 'stdlib'}
  config.eval.sets = {'wiki': 'stdlib'}
  config.eval.words = {'wiki': 'words'}
  check_known(config)
  resolved = config_lib.resolve(config)
  assert resolved.models.generator.num_layers == 2
  assert resolved.model.num_layers == 12


def test_the_finetune_configs_have_the_section_of_the_defaults():
  config = loading.load_config(f'{ROOT}/configs/finetune/base.py', [])
  section = OPTIONAL['finetune']()
  assert config.finetune.to_dict() == section.to_dict()


@pytest.mark.parametrize(
  'line, message',
  [
    ('del config.optim', 'the config lacks optim: start it from'),
    ('del config.optim.name', 'the config lacks optim.name: start it from'),
    ('config.optim = 3', 'optim=3: must be a section'),
    ('config.models.x = 3', 'models.x=3: must be a section'),
    ('config.finetune = dict(task="rte()")', 'the config lacks finetune.'),
  ],
)
def test_a_tree_that_is_not_whole(tmp_path, line, message):
  text = MINE.format(ancestor=BASE, line=f'with config.ignore_type(): {line}')
  (tmp_path / 'mine.py').write_text(text)
  with pytest.raises(UsageError, match=message):
    loading.load_config(str(tmp_path / 'mine.py'), [])
