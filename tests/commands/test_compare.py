# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several configs, several seeds, one table."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.restore import Restored
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.core.training.metrics import HELD_OUT
from gpt_jax.studies import comparison
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]


def finished(workdir, lines):
  """What a run leaves."""
  workdir.mkdir(parents=True)
  config = config_lib.resolve(tiny.config(**{'model.context_length': 13}))
  (workdir / 'config.json').write_text(config_lib.to_json(config))
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (workdir / 'metrics.jsonl').write_text(text)


def lines(loss, *rates, **more):
  """The last of two evaluations counts, and no rate but the later ones'."""
  return [
    *({'step': i, 'tokens_per_second': r, **more} for i, r in enumerate(rates)),
    {'step': 3, 'eval/validation/loss': loss + 1},
    {'step': 9, 'eval/validation/loss': loss},
  ]


def test_runs_are_summed_up_seed_by_seed(tmp_path, monkeypatch, capsys):
  trained = []

  def train(variant, seed, workdir, root):
    trained.append((variant.name, seed, variant.flags, root))
    folder, step = pathlib.Path(workdir), int(seed)
    if variant.name == 'dense':
      finished(folder, lines(4.0 + step, 1.0, 130.0, 260.0, 130.0))
    else:
      layers = {
        'router/decoder/layer_1/dropped': 0.1,
        'router/decoder/layer_11/dropped': 0.2 + step,
        'router/decoder/layer_1/load': [0.25, 0.75],
      }
      finished(folder, lines(3.0, 1.0, 65.0, **layers))

  monkeypatch.setattr(comparison, 'train', train)
  drawn = []
  monkeypatch.setattr(
    'gpt_jax.reports.runs.loss_curves',
    lambda workdirs, out, names: drawn.append([*zip(names, workdirs, strict=True)]),
  )
  argv = [
    'compare',
    f'--workdir={tmp_path}',
    '--seeds=0,2',
    '--run=dense a.py:small',
    '--run=experts b.py --config.x=1',
    '--flags=--config.y=2 --config.x=3',
  ]
  assert main(argv) == 0
  both = ['--config.y=2', '--config.x=3']
  dense, experts = (['--config', 'a.py:small', *both], ['--config', 'b.py', *both])
  experts.append('--config.x=1')  # its own flags count
  root = str(tmp_path)
  assert trained == [
    ('dense', 0, dense, root),
    ('experts', 0, experts, root),
    ('dense', 2, dense, root),
    ('experts', 2, experts, root),
  ]
  assert drawn == [[('dense', f'{root}/dense/0'), ('experts', f'{root}/experts/0')]]
  # 130 tokens a second are 10 rows of 13.
  assert capsys.readouterr().out.splitlines() == [
    '| run | validation loss | examples per second | dropped fraction | of each seed |',
    '| --- | --- | --- | --- | --- |',
    '| dense | 5 | 10 | - | 4.0000, 6.0000 |',
    '| experts | 3 | 5 | 0.65 | 3.0000, 3.0000 |',
  ]
  result = json.loads((tmp_path / 'compare.json').read_text())
  assert result['experts'][0]['dropped_fraction'] == pytest.approx(0.15)


def test_runs_that_start_from_a_model_are_fine_tuned(tmp_path, monkeypatch, capsys):
  called = []

  def wait_for(command):
    called.append(command)
    folder = pathlib.Path(command[-1])
    folder.mkdir(parents=True)
    metric = 'matthews' if 'cola' in str(folder) else 'accuracy'
    dev = {metric: 0.25 + 0.5 * int(folder.name), 'loss': 0.5}
    result = {'metrics': [metric], 'dev': dev}
    (folder / 'result.json').write_text(json.dumps(result))
    return 0

  monkeypatch.setattr(comparison, 'wait_for', wait_for)
  argv = [
    'compare',
    f'--workdir={tmp_path}',
    '--seeds=0,1',
    '--flags=--init W',
    '--run=cola a.py:cola',
    '--run=rte a.py:rte --config.finetune.transfer=none',
  ]
  assert main(argv) == 0
  assert [command[3] for command in called] == ['finetune'] * 4
  assert '--config.finetune.transfer=none' in called[1]
  assert not any('data.store' in word for words in called for word in words)
  assert capsys.readouterr().out.splitlines()[2:] == [
    '| cola | 0.5 | - | 0.2500, 0.7500 |',
    '| rte | - | 0.5 | 0.2500, 0.7500 |',
  ]


# The runs themselves; those before are only written down.
@pytest.mark.long
@pytest.mark.slow
def test_a_run_is_trained(tmp_path, capfd, monkeypatch):
  monkeypatch.delenv('XLA_FLAGS', raising=False)  # one device
  flags = [
    *tiny.flags(
      data=dict(source=f"text('{ROOT}/configs/*.py')", holdout='tail(fraction=0.1)'),
      tokenizer=dict(name='bytes'),
      model=dict(num_layers=1, ffn='switch(num_experts=2)', d_model=24, d_ff=40, context_length=32),
      batch=dict(size=4),
      eval=dict(rows=4),
      schedule=dict(num_steps=2),
      log=dict(every_steps=1, sample_tokens=0),
    )
  ]
  flags = [f'"{flag}"' for flag in flags]
  argv = [
    'compare',
    f'--workdir={tmp_path}',
    '--seeds=5',
    '--json',
    f'--run=tiny {ROOT}/configs/switch.py:tiny',
    f'--flags={" ".join(flags)}',
  ]
  assert main(argv) == 0
  (found,) = json.loads(capfd.readouterr().out)['tiny']
  run = metrics.read(str(tmp_path / 'tiny' / '5'))
  held_out = [m[metrics.HELD_OUT] for m in run if metrics.HELD_OUT in m]
  assert found['validation_loss'] == held_out[-1]
  assert 0 <= found['dropped_fraction'] < 1
  assert (tmp_path / 'data' / 'manifest.json').exists()
  config = json.loads((tmp_path / 'tiny' / '5' / 'config.json').read_text())
  assert config['seed'] == 5
  assert (tmp_path / 'compare.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  'code, error',
  [
    (2, UsageError),
    (1, RuntimeError),
    (-signal.SIGKILL, RuntimeError),
    (75, Preempted),
    # Before it could listen.
    *((code, Preempted) for code in (130, -signal.SIGTERM, -signal.SIGINT)),
  ],
)
def test_failures_of_a_run_are_passed_on(monkeypatch, code, error):
  monkeypatch.setattr(comparison, 'wait_for', lambda command: code)
  with pytest.raises(error, match='a'):
    comparison.train(comparison.Variant('a', []), '0', 'W/a/0', 'W')


def test_a_refused_run_is_told_in_one_line(tmp_path, capfd):
  """That of `train` itself."""
  workdir = tmp_path / 'w'
  run = f'--run=a {ROOT}/configs/smoke.py --config.model.num_heads=0'
  assert main(['compare', f'--workdir={workdir}', run]) == 2
  errors = [x for x in capfd.readouterr().err.splitlines() if 'gpt-jax' in x]
  (error,) = errors
  assert error.startswith('gpt-jax train: ') and 'num_heads' in error


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_run_is_told_to_stop_and_waited_for(tmp_path, number):
  """Ctrl-C reaches the run by the terminal: here it goes on."""
  ready = tmp_path / 'ready'
  run = (
    'import pathlib, signal, sys, time\n'
    'signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n'
    f'pathlib.Path({str(ready)!r}).touch()\n'
    f'time.sleep({60 if number == signal.SIGTERM else 0.3})\n'
  )

  def stop():
    while not ready.exists():
      time.sleep(0.01)
    os.kill(os.getpid(), number)

  before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
  threading.Thread(target=stop).start()
  code = comparison.wait_for([sys.executable, '-c', run])
  assert code == (75 if number == signal.SIGTERM else 0)
  after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
  assert after == before


@pytest.mark.skipif(sys.platform != 'linux', reason='asks the Linux kernel')
def test_a_run_ends_with_the_process_that_started_it(tmp_path):
  """Or the same command would find that another process trains there."""
  ready = tmp_path / 'ready'
  run = (
    'import pathlib, time; from gpt_jax.core.runtime import parent; '
    'parent.end_with(); '
    f'pathlib.Path({str(ready)!r}).touch(); time.sleep(600)'
  )
  parent = (
    'import sys; from gpt_jax.studies import comparison; '
    f'comparison.wait_for([sys.executable, "-c", {run!r}])'
  )
  # The run has the pipe too: it is at its end once both have ended.
  process = subprocess.Popen([sys.executable, '-c', parent], stderr=subprocess.PIPE)
  while not ready.exists():
    assert process.poll() is None
    time.sleep(0.01)
  process.kill()
  _, said = process.communicate(timeout=300)
  assert not said


def test_a_run_without_evaluations_is_named(tmp_path):
  finished(tmp_path / 'w', [{'step': 1, 'tokens_per_second': 1.0}])
  with pytest.raises(UsageError, match=r'w/metrics.jsonl: has no eval/validation/loss'):
    comparison.summary(str(tmp_path / 'w'))


@pytest.mark.parametrize('name', ['loss', 'eval/validation/loss'])
def test_a_damaged_log_is_named(tmp_path, monkeypatch, name):
  """It lacks a figure that the checkpoint has, or has another."""
  lines = [{'step': 1, 'loss': 3.5, 'tokens_per_second': 1.0}, {'step': 1, HELD_OUT: 3.25}]
  finished(tmp_path / 'w', lines)
  record = {'lines': [{'step': 1, 'loss': 3.5}, {'step': 1, HELD_OUT: 3.25}]}
  monkeypatch.setattr(restore, 'newest', lambda workdir: Restored(1, record))
  assert comparison.summary(str(tmp_path / 'w'))['validation_loss'] == 3.25
  (line,) = (line for line in record['lines'] if name in line)
  line[name] = 3.75
  with pytest.raises(UsageError, match=rf'w/metrics.jsonl: is damaged.* has {name}=3.75 of step 1'):
    comparison.summary(str(tmp_path / 'w'))


def test_the_table_has_the_columns_of_all_seeds():
  """Also where all updates of one seed were skipped."""
  runs = [
    {'validation_loss': 4.0, 'examples_per_second': 2.0},
    {'validation_loss': 2.0, 'examples_per_second': 4.0, 'dropped_fraction': 0.5},
  ]
  expected = '| a | 3 | 3 | 0.5 | 4.0000, 2.0000 |'
  assert comparison.table({'a': runs}).splitlines()[-1] == expected
  assert comparison.table({'a': runs[::-1]}).splitlines()[0].count('|') == 6
