# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`log.trackers`: what is refused, and what a tracker is given."""

import pathlib
import sys
from types import ModuleType, SimpleNamespace

import jax
import pytest

from gpt_jax.core.config import defaults, log_trackers
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.past import History
from gpt_jax.core.training.report import check_trackers
from gpt_jax.core.training.run import Run

ROOT = pathlib.Path(__file__).parents[3]
WANDB = "wandb(project='p', mode='offline')"


def test_the_default_is_tensorboard():
  text = defaults.get_config().log.trackers
  assert log_trackers.load(text) == [log_trackers.TensorBoard()]
  assert log_trackers.load('none') == []
  both = log_trackers.load("tensorboard, wandb('p', entity='e', name='n')")
  wanted = log_trackers.WandB(project='p', entity='e', name='n', mode='')
  assert both == [log_trackers.TensorBoard(), wanted]


class FakeRun:
  """Remembers what it is given."""

  def __init__(self, arguments):
    self.arguments, self.id, self.url = arguments, arguments['id'], None
    self.metrics, self.logged, self.finished = [], [], False

  def define_metric(self, name, **how):
    self.metrics.append((name, how))

  def log(self, values):
    if 'fails' in values:
      raise BrokenPipeError('its service died')
    self.logged.append(values)

  def finish(self):
    self.finished = True


@pytest.fixture
def runs(monkeypatch):
  """The runs of a wandb that is not there."""
  opened, module = [], ModuleType('wandb')

  def init(**arguments):
    opened.append(FakeRun(arguments))
    return opened[-1]

  fake = dict(init=init, login=lambda prompt: False, Settings=dict)
  fake['errors'] = SimpleNamespace(Error=RuntimeError)
  module.__dict__.update(fake)
  monkeypatch.setitem(sys.modules, 'wandb', module)
  monkeypatch.delenv('WANDB_MODE', raising=False)
  return opened


def training(workdir, text):
  config = defaults.get_config()
  config.log.trackers = text
  config.model.context_length = 13
  mesh = SimpleNamespace(shape={'data': 8})
  objective = SimpleNamespace(shapes={'w': jax.ShapeDtypeStruct((3, 5), 'f4')})
  run = SimpleNamespace(config=config, mesh=mesh, objective=objective)
  data = SimpleNamespace(rows_per_epoch=7)
  history = History(str(workdir), store='')
  return Run(run, str(workdir), data, None, history, None)


def test_wandb_gets_the_numbers_and_keeps_its_run(tmp_path, runs):
  for step in (0, 2):
    metrics = training(tmp_path, WANDB).open_metrics(step)
    metrics.write(3, loss=2.5, event='x', routers=[1.0], seconds=2)
    metrics.close()
  first, second = runs
  assert first.logged == [{'step': 3, 'loss': 2.5, 'seconds': 2}]
  assert first.finished and second.finished
  # Steps that are taken again have the axis of the first, in the same run.
  assert first.metrics == [('step', {}), ('*', {'step_metric': 'step'})]
  assert first.id == second.id and len(first.id) == 8
  assert first.arguments['mode'] == 'offline'
  assert first.arguments['name'] == tmp_path.name
  assert first.arguments['config']['model']['context_length'] == 13
  other = tmp_path / 'other'
  other.mkdir()
  training(other, WANDB).open_metrics(0).close()
  assert runs[2].id != first.id
  assert not (tmp_path / 'tensorboard').exists()


def test_a_tracker_that_dies_is_left_behind(tmp_path, runs, caplog):
  metrics = training(tmp_path, WANDB).open_metrics(0)
  for values in ({'loss': 2.5}, {'fails': 1}, {'loss': 1.5}):
    metrics.write(1, **values)
  metrics.close()
  assert runs[0].logged == [{'step': 1, 'loss': 2.5}]
  (record,) = [r for r in caplog.records if r.levelname == 'WARNING']
  assert 'its service died); metrics.jsonl has all' in record.getMessage()


def test_only_process_0_opens_trackers(tmp_path, runs, monkeypatch):
  online = training(tmp_path, "tensorboard, wandb(project='p')")
  with pytest.raises(UsageError, match='no API key; run wandb login'):
    check_trackers(online.parts.config)
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  check_trackers(online.parts.config)
  metrics = online.open_metrics(0)
  metrics.write(1, loss=2.5)
  metrics.close()
  assert not runs and not [*tmp_path.iterdir()]
