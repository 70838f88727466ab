# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is refused before a model is loaded, and what a broken one is told."""

import json
import math
import types
from typing import Any, cast

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.evaluation import in_loop, validation
from gpt_jax.evaluation.forward import Forward
from gpt_jax.opening import models as trained_lib
from gpt_jax.opening.models import Trained
from tests.support import tiny


@pytest.fixture
def config(tmp_path):
  """Of a run with a set and a task of the same name, whose file is there."""
  (tmp_path / 'lambada').mkdir()
  text = json.dumps({'text': 'a b'})
  (tmp_path / 'lambada' / 'lambada_test.jsonl').write_text(text + '\n')
  config = tiny.config(**{'eval.tasks': 'lambada', 'eval.tasks_dir': str(tmp_path)})
  config.data.holdout = 'tail(fraction=0.1)'
  config.eval.sets = {'lambada': "text('x')"}
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  return config


@pytest.mark.parametrize(
  ('flags', 'error'),
  [
    (['--seed=-1', '--tasks=lambada'], 'seed'),
    (["--tasks=lambada(shown='none.jsonl')", '--shots=0,1'], 'none.jsonl: no such file'),
    (['--tasks=validation,lambada'], '--tasks: lambada is a set of eval.sets'),
    (
      ['--tasks=lambada', '--steps=all', '--average=2'],
      '--steps=all: measures --tasks at each of these steps; leave out --aver',
    ),
    (
      ['--tasks=lambada', '--steps=3,x'],
      '--steps=3,x: --workdir=W keeps the checkpoints of steps none; give all',
    ),
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
  err = capsys.readouterr().err.replace(str(tmp_path), 'W')
  assert error in err and err.count('\n') == 1


@pytest.mark.usefixtures('config')
def test_checkpoints_are_measured_one_after_the_other(tmp_path, capsys, monkeypatch):
  runs = {2: broken(0.0, 2), 5: broken(0.7, 5)}
  kept = types.SimpleNamespace(at=lambda step: runs[step])
  monkeypatch.setattr(trained_lib, 'kept_steps', lambda *_: [2, 5])
  monkeypatch.setattr(trained_lib, 'open_kept', lambda *_: kept)
  flags = [f'--workdir={tmp_path}', f'--tasks_dir={tmp_path}', '--steps=all']
  tasks = "--tasks=lambada(name='mine')"
  assert main(['evaluate', *flags, tasks, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert [*found] == ['2', '5']
  folder = tmp_path / 'evaluations'
  for step, values in found.items():
    saved = json.loads((folder / f'step-{step}.json').read_text())
    assert values.items() <= saved.items()
    assert values['step'] == int(step)
  name = 'eval/mine/perplexity'
  assert found['2'][name] != found['5'][name]
  assert (folder / 'steps.png').read_bytes().startswith(b'\x89PNG')
  # Both have their scores still: nothing is measured again.
  monkeypatch.setattr(Forward, 'score', None)
  assert main(['evaluate', *flags, tasks]) == 0
  table = capsys.readouterr().out.splitlines()
  assert table[0] == '| step | mine (accuracy) |'
  assert [line[:4] for line in table[2:]] == ['| 2 ', '| 5 ']


def broken(value, step=3):
  """A run whose model gives no scores if `value` is not finite."""
  changes = {'model.vocab_size': 257, 'model.context_length': 37}
  run = tiny.build(tiny.config(**{**tiny.MESHABLE, **changes}), (1, 1, 1))
  params = {**tiny.params(run.model)}
  bias = np.full_like(params['final_norm']['bias'], value)
  params['final_norm'] = {**params['final_norm'], 'bias': bias}
  state = types.SimpleNamespace(step=step, eval_params=params)
  return Trained(run, cast(Any, state), Bytes(), ())


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('json_flag', [[], ['--json']])
@pytest.mark.usefixtures('config')
def test_a_task_without_scores_fails_in_a_line(tmp_path, capsys, monkeypatch, value, json_flag):
  """Right answers are none of a model that gives NaN; nor are wrong ones."""
  monkeypatch.setattr(trained_lib, 'load', lambda *_: broken(value))
  folders = [f'--workdir={tmp_path}', f'--tasks_dir={tmp_path}']
  tasks = "--tasks=lambada(name='mine')"
  assert main(['evaluate', *folders, tasks, *json_flag]) == 1
  told = capsys.readouterr()
  assert not told.out
  line = told.err.splitlines()[-1]
  assert line.startswith("gpt-jax evaluate: failed: the model's scores")
  assert 'NaN or infinite: its weights are damaged' in line
  kept = [*(tmp_path / 'evaluations').iterdir()]
  assert not any('NaN' in f.read_text() for f in kept)
  assert not any(f.name.startswith('step-') for f in kept)


@pytest.mark.parametrize(
  'values, error, message',
  [
    ({'loss': math.nan, 'tokens': 7}, FailedError, 'loss of the model is nan'),
    ({'loss': math.inf, 'tokens': 7}, FailedError, 'loss of the model is inf'),
    ({'loss': math.nan, 'tokens': 0}, UsageError, 'tokens=0: the held-out'),
  ],
)
def test_a_held_out_loss_is_a_number(tmp_path, monkeypatch, values, error, message):
  found = {f'eval/validation/{key}': value for key, value in values.items()}
  monkeypatch.setattr(validation, 'held_out_sets', lambda *_: {})
  monkeypatch.setattr(validation, 'HeldOut', lambda *_: lambda _: found)
  with pytest.raises(error, match=message):
    validation.measure(broken(np.nan), str(tmp_path))


def test_a_run_goes_on_where_a_task_has_no_scores(config, monkeypatch, caplog):
  config.eval.sets = {}
  found = {'eval/validation/loss': 3.0}
  monkeypatch.setattr(in_loop, 'HeldOut', lambda *_: lambda *_: found)
  run = broken(np.nan)
  evaluation = in_loop.HeldOutAndTasks(
    run.parts, sets={}, tasks=in_loop.tasks(config), tokenizer=run.tokenizer, outputs=''
  )
  with caplog.at_level('WARNING'):
    assert evaluation(run.state.eval_params) == found
  assert 'eval.tasks: the model' in caplog.text


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
def test_an_import_has_no_text_of_its_own(config, tmp_path, capsys, command, flags):
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
