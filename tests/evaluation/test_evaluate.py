# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is refused before a model is loaded: there is none here."""

import json

import pytest

from gpt_jax import config as config_lib
from gpt_jax.__main__ import main
from gpt_jax.evaluation import in_loop
from gpt_jax.spec import UsageError
from tests.support import tiny


@pytest.fixture
def config(tmp_path):
  """Of a run with a set and a task of the same name, whose file is there."""
  (tmp_path / 'lambada').mkdir()
  text = json.dumps({'text': 'a b'})
  (tmp_path / 'lambada' / 'lambada_test.jsonl').write_text(text + '\n')
  config = tiny.config(
    **{'eval.tasks': 'lambada', 'eval.tasks_dir': str(tmp_path)}
  )
  config.data.holdout = 'tail(fraction=0.1)'
  config.eval.sets = {'lambada': "text('x')"}
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  return config


@pytest.mark.parametrize(
  ('flags', 'error'),
  [
    (['--seed=-1', '--tasks=lambada'], 'seed'),
    (
      ["--tasks=lambada(shown='none.jsonl')", '--shots=0,1'],
      'none.jsonl: no such file',
    ),
    (['--tasks=validation,lambada'], '--tasks: lambada is a set of eval.sets'),
    (['--source=a.en'], '--source and --reference go together; give both'),
    (["--tasks=text('a.txt'), text('b/a.txt')"], 'a name of its own by name='),
    (
      ['--tasks=wikitext2', '--tasks_dir=tfds:'],
      '--tasks_dir=tfds:: TensorFlow Datasets does not hold wikitext2/test',
    ),
  ],
)
@pytest.mark.usefixtures('config')
def test_bad_use_is_told_first(tmp_path, capsys, flags, error):
  folders = [f'--workdir={tmp_path}', f'--tasks_dir={tmp_path}']
  assert main(['evaluate', *folders, *flags]) == 2
  err = capsys.readouterr().err
  assert error in err and err.count('\n') == 1


def test_a_task_while_training_is_no_set_too(config):
  error = r'^eval\.tasks: lambada is a set of eval\.sets'
  with pytest.raises(UsageError, match=error):
    in_loop.tasks(config)


@pytest.mark.parametrize(
  ('command', 'flags'),
  [
    ('evaluate', []),
    ('evaluate', ['--tasks=validation']),
    ('evaluate', ['--tasks=lambada', '--overlap']),
    ('inspect', ['--steps=1']),
    ('profile', ['--steps=1:2']),
  ],
)
def test_an_import_has_no_text_of_its_own(
  config, tmp_path, capsys, command, flags
):
  """And no prepare would give it one: the remedy is another."""
  (tmp_path / 'hf.json').write_text('{}')
  given = [f'--workdir={tmp_path}', *flags]
  if command == 'evaluate':
    given.append(f'--tasks_dir={tmp_path}')
    config.eval.sets = {}
    (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  assert main([command, *given]) == 2
  err = capsys.readouterr().err
  assert 'holds an imported model' in err and 'evaluate it with --tasks' in err
  assert 'prepare' not in err and err.count('\n') == 1
