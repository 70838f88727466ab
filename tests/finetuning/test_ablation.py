# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Many fine-tuned runs, one table; the runs themselves are test_finetune's."""

import itertools
import json
import pathlib
import sys
import types
from typing import Any

import pytest

from configs import base
from gpt_jax import config as config_lib
from gpt_jax.__main__ import main
from gpt_jax.finetuning import ablation
from gpt_jax.finetuning import run as run_module
from gpt_jax.finetuning.data import RESULT
from gpt_jax.finetuning.run import prepare
from gpt_jax.plots import runs as figure
from gpt_jax.runtime import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Bytes
from gpt_jax.training import models
from gpt_jax.training.models import Pretrained

ROOT = pathlib.Path(__file__).parents[2]
SCORES = {'full': 0.75, 'scratch': 0.5, 'layers_2': 0.7, 'layers_10': 0.72}
SCORES['lstm'] = 0.7


@pytest.fixture
def runs(monkeypatch):
  """What is fine-tuned, which is only written down."""
  found = []

  def run(config, source, folder):
    found.append((config, source, folder))
    task, setting, seed = pathlib.Path(folder).parts[-3:]
    metric = 'matthews' if task == 'cola' else 'accuracy'
    score = SCORES[setting] + 0.1 * int(seed)
    result = {'metrics': [metric], 'dev': {metric: score, 'examples': 3}}
    path = pathlib.Path(folder) / RESULT
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))

  monkeypatch.setattr(run_module, 'finetune', run)
  monkeypatch.setattr(figure, 'loss_curves', lambda *_, **__: '')
  monkeypatch.setattr(models, 'open_model', opened)
  return found


def opened(init, *_):
  """A model that is an LSTM if its name says so."""
  tree: Any = base.get_config()
  model = tree.model.to_dict()
  if 'LSTM' in init:
    model |= {'attention': 'lstm(7)', 'd_model': 7, 'num_heads': 1}
    model |= {'block': 'plain', 'position': 'none'}
  return Pretrained(init, model)


def argv(workdir, *more):
  return [
    *('ablation', f'--workdir={workdir}', '--init=W', '--glue=glue'),
    f'--config={ROOT}/configs/finetune/ablation.py',
    *more,
  ]


def test_all_runs_make_a_table(tmp_path, runs, capsys):
  flags = ['--tasks=sst2,cola', '--settings=full,scratch', '--seeds=0,2']
  assert main(argv(tmp_path, *flags, '--flags=--config.batch.size=5')) == 0
  assert [
    pathlib.Path(f).relative_to(tmp_path).as_posix() for *_, f in runs
  ] == [
    f'{task}/{setting}/{seed}'
    for seed in (0, 2)
    for task in ('sst2', 'cola')
    for setting in ('full', 'scratch')
  ]
  first, last = runs[0][0], runs[-1][0]
  assert first.finetune.task == "sst2('glue/SST-2')"
  assert (first.finetune.transfer, last.finetune.transfer) == ('all', 'none')
  assert (first.seed, last.seed, last.batch.size) == (0, 2, 5)
  assert (first.finetune.length, last.finetune.length) == (40, 24)
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == '|  | average | cola (matthews) | sst2 (accuracy) |'
  assert lines[2] == '| full | 85.0 ± 14.1 | 85.0 ± 14.1 | 85.0 ± 14.1 |'
  assert lines[3] == '| scratch | 60.0 ± 14.1 | 60.0 ± 14.1 | 60.0 ± 14.1 |'
  assert (tmp_path / 'ablation.png').read_bytes().startswith(b'\x89PNG')
  assert not (tmp_path / 'layers.png').exists()
  # The same again does nothing; more is added.
  flags[-1] = '--seeds=0'
  more = ['--layers=10,2', '--json', '--flags=--config.batch.size=5']
  runs.clear()
  assert main(argv(tmp_path, *flags, *more)) == 0
  assert len(runs) == 4
  assert runs[0][0].finetune.transfer == 'layers(10)'
  scores = json.loads(capsys.readouterr().out)
  assert scores['cola']['layers_2']['0']['score'] == 0.7
  assert scores == json.loads((tmp_path / 'ablation.json').read_text())
  assert (tmp_path / 'layers.png').read_bytes().startswith(b'\x89PNG')
  rows = ablation.table(scores).splitlines()[2:]
  names = [row.split(' | ')[0] for row in rows]
  assert names == ['| full', '| scratch', '| layers 2', '| layers 10']
  # Other flags are other runs.
  assert main(argv(tmp_path, *flags)) == 2
  assert "holds runs with --flags='--config.batch" in capsys.readouterr().err


def test_each_run_counts_its_own_seconds(tmp_path, runs, monkeypatch):
  ticks = itertools.count()
  clock = types.SimpleNamespace(monotonic=lambda: next(ticks))
  monkeypatch.setattr(log, 'time', clock)
  seconds, run = [], run_module.finetune

  def timed(*args):
    seconds.append(log.seconds_since_start())
    run(*args)

  monkeypatch.setattr(run_module, 'finetune', timed)
  flags = ['--tasks=sst2', '--settings=full,scratch', '--seeds=0,2']
  assert main(argv(tmp_path, *flags)) == 0
  assert seconds == [1, 1, 1, 1]


def test_an_lstm_is_one_more_row(tmp_path, runs, capsys):
  flags = ['--tasks=sst2', '--settings=full', '--seeds=0,2']
  assert main(argv(tmp_path / 'a', *flags, '--lstm=LSTM')) == 0
  names = [(source.name, pathlib.Path(f).parent.name) for _, source, f in runs]
  assert names == [('W', 'full'), ('LSTM', 'lstm')] * 2
  full, lstm = (config.finetune for config, *_ in runs[:2])
  assert full == lstm and lstm.transfer == 'all'
  lines = capsys.readouterr().out.splitlines()
  assert lines[2:] == [
    '| full | 85.0 ± 14.1 | 85.0 ± 14.1 |',
    '| lstm | 80.0 ± 14.1 | 80.0 ± 14.1 |',
  ]
  # Without the flag its runs stay in the table.
  runs.clear()
  assert main(argv(tmp_path / 'a', *flags)) == 0
  assert not runs and '| lstm |' in capsys.readouterr().out
  for more in (['--lstm=V'], ['--lstm=LSTM', '--init=LSTM2']):
    assert main(argv(tmp_path / 'b', *flags, *more)) == 2
    wrong = '--lstm=V: is no LSTM' if len(more) == 1 else '--init=LSTM2: is an'
    assert wrong in capsys.readouterr().err
  assert not (tmp_path / 'b').exists()


def test_runs_of_other_weights_configs_or_data_are_kept_apart(
  tmp_path, monkeypatch, capsys
):
  tree: Any = base.get_config()
  model = {**tree.model.to_dict(), 'vocab_size': 257}
  source = Pretrained('W, step 7', model, 'bytes', Bytes())
  monkeypatch.setattr(models, 'open_model', lambda *_: source)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  made = []

  def run(config, source, folder):
    made.append(folder)
    path = pathlib.Path(folder)
    path.mkdir(parents=True)
    prepared = prepare(config, source, folder)
    (path / 'config.json').write_text(config_lib.to_json(prepared.config))
    result = {'metrics': ['accuracy'], 'dev': {'accuracy': 0.5}}
    (path / RESULT).write_text(json.dumps(result))

  monkeypatch.setattr(run_module, 'finetune', run)
  monkeypatch.setattr(figure, 'loss_curves', lambda *_, **__: '')
  table = tmp_path / 'glue/RTE/train.tsv'
  table.parent.mkdir(parents=True)
  rows = 'a\tb\tentailment\nc\td\tnot_entailment\n'
  for name in ('train', 'dev'):
    text = f'sentence1\tsentence2\tlabel\n{rows}'
    table.with_name(f'{name}.tsv').write_text(text)
  config = tmp_path / 'mine.py'
  config.write_text((ROOT / 'configs/finetune/ablation.py').read_text())
  argv = [
    *('ablation', f'--workdir={tmp_path}/a', '--init=W', '--tasks=rte'),
    *(f'--glue={tmp_path}/glue', f'--config={config}'),
    '--flags=--config.schedule.num_steps=1M_tokens '
    '--config.schedule.name=constant(peak=1e-3)',
    '--settings=full,scratch_no_auxiliary',
  ]
  assert main([*argv, '--seeds=0']) == 0
  assert main([*argv, '--seeds=1,0', '--layers=2']) == 0
  assert len({*made}) == len(made) == 6
  assert main(argv) == 0
  assert len(made) == 6

  def refused(why):
    # Whatever is asked for next would be in one table with the runs there.
    capsys.readouterr()
    assert main([*argv, '--seeds=2']) == 2
    assert why in capsys.readouterr().err
    assert len(made) == 6

  source = source._replace(name='W, step 9')
  refused("holds runs with --init='W, step 7', not 'W, step 9'; give")
  source = source._replace(name='W, step 7')
  old = config.read_text()
  config.write_text(old.replace('peak = 1e-3', 'peak = 1e-4'))
  refused(
    'rte/full/0 is a run of another config (finetune.peak: 0.001 -> 0.0001);'
  )
  config.write_text(old)
  table.write_text(table.read_text().replace('a\t', 'e\t'))
  refused('rte/full/0 is a run of another config (finetune.data: ')


def test_a_refused_first_run_leaves_nothing(tmp_path, runs, monkeypatch):
  """Its arguments would refuse the corrected command."""

  def refuses(config, source, folder):
    raise UsageError('finetune.task: no such file')

  with monkeypatch.context() as m:
    m.setattr(run_module, 'finetune', refuses)
    assert main(argv(tmp_path / 'a', '--tasks=rte')) == 2
  assert not (tmp_path / 'a').exists()
  more = ['--tasks=rte', '--settings=full', '--flags=--config.batch.size=5']
  assert main(argv(tmp_path / 'a', *more)) == 0
