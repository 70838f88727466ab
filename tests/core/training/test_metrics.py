# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl: whole lines only, and none twice."""

import json
import math
import os
import resource

import numpy as np
import pytest

from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.training import metrics
from gpt_jax.core.training.metrics import Metrics
from gpt_jax.core.training.report import TensorBoardTracker


def write(workdir, step, *lines):
  """Opens at `step` and writes the lines of (step, values)."""
  log = Metrics(str(workdir), step=step, active=True)
  for at, values in lines:
    log.write(at, **values)
  log.close()


def read(workdir):
  """The lines, without the times and the events of starting."""
  return [
    {name: value for name, value in line.items() if name != 'time'}
    for line in metrics.read(str(workdir))
    if line.get('event') != 'start'
  ]


def steps(workdir):
  return [m['step'] for m in read(workdir)]


def test_lines_are_json_objects(tmp_path):
  write(tmp_path, 0, (1, {'loss': 2.5}), (2, {'loss': 0.1, 'event': 'x'}))
  text = (tmp_path / 'metrics.jsonl').read_text()
  assert text.endswith('\n')
  lines = [json.loads(line) for line in text.splitlines()]
  assert lines == metrics.read(str(tmp_path))
  assert read(tmp_path) == [{'step': 1, 'loss': 2.5}, {'step': 2, 'loss': 0.1, 'event': 'x'}]


def test_numbers_are_read_as_they_were_written(tmp_path):
  values = {'a': 0.1 + 0.2, 'b': 2**53 + 1, 'c': 1e-300, 'd': float('inf')}
  write(tmp_path, 0, (1, values))
  assert read(tmp_path) == [{'step': 1, **values}]


def strict(line):
  """Reads JSON as the standard has it."""

  def refuse(word):
    raise ValueError(f'{word} is not JSON')

  return json.loads(line, parse_constant=refuse)


def test_what_is_not_finite_is_written_as_a_text(tmp_path):
  values = {
    'loss': math.nan,
    'load': [0.5, -math.inf],
    'routers': [{'z': [[math.inf]], 'text': 'nano'}],
    'eval/validation/loss': np.float64(math.inf),
  }
  write(tmp_path, 0, (1, values))
  _, line = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  written = strict(line)
  del written['time']
  assert written == {
    'step': 1,
    'loss': 'nan',
    'load': [0.5, '-inf'],
    'routers': [{'z': [['inf']], 'text': 'nano'}],
    'eval/validation/loss': 'inf',
  }
  [found] = read(tmp_path)
  assert math.isnan(found.pop('loss'))
  del values['loss']
  assert found == {'step': 1, **values}


def test_lines_that_are_no_json_are_mended_when_the_run_goes_on(tmp_path):
  """Which Python reads, and earlier versions wrote."""
  old = '{"step": 1, "time": 3, "eval/validation/loss": NaN}\n'
  (tmp_path / 'metrics.jsonl').write_text(old)
  write(tmp_path, 1)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert strict(lines[0])['eval/validation/loss'] == 'nan'


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
  log = Metrics(str(tmp_path), step=0, active=True)
  log.write(1, loss=2.5)
  assert steps(tmp_path) == [1]
  log.close()


@pytest.mark.parametrize(
  'at, kept', [(0, []), (3, [1, 3, 3]), (4, [1, 3, 3]), (9, [1, 3, 3, 5, 7])]
)
def test_opened_at_a_step_it_drops_what_came_after(tmp_path, at, kept):
  write(tmp_path, 0, *((s, {'loss': s / 2}) for s in (1, 3, 3, 5, 7)))
  write(tmp_path, at)
  assert steps(tmp_path) == kept
  write(tmp_path, at, (at + 1, {'loss': 0.0}))
  assert steps(tmp_path) == [*kept, at + 1]


@pytest.mark.parametrize('cut', range(1, 21, 4))
def test_a_half_written_line_is_dropped(tmp_path, cut):
  whole = '{"step": 1, "time": 3, "loss": 2.5}\n'
  half = '{"step": 2, "loss": 2.25}'[:cut]
  (tmp_path / 'metrics.jsonl').write_text(whole + half)
  assert steps(tmp_path) == [1]
  write(tmp_path, 5, (6, {'loss': 2.0}))
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [1, 5, 6]


def test_no_file_no_lines(tmp_path):
  assert metrics.read(str(tmp_path)) == []
  assert metrics.read(str(tmp_path / 'nowhere')) == []


def test_only_the_active_process_writes(tmp_path):
  log = Metrics(str(tmp_path), step=0, active=False)
  log.write(1, loss=2.5)
  log.close()
  assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_the_numbers(tmp_path):
  board = TensorBoardTracker(str(tmp_path), step=0)
  log = Metrics(str(tmp_path), step=0, active=True, trackers=[board])
  log.write(1, loss=2.5, event='first_step')
  log.close()
  [path] = (tmp_path / 'tensorboard').iterdir()
  content = path.read_bytes()
  assert b'loss' in content and b'event' not in content.replace(b'events', b'')


def test_write_atomically_replaces_the_whole(tmp_path):
  path = tmp_path / 'x.json'
  path.write_text('a much longer text than the new one')
  write_atomically(str(path), 'new: ä\n')
  assert path.read_text(encoding='utf-8') == 'new: ä\n'
  assert [p.name for p in tmp_path.iterdir()] == ['x.json']


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch, call):
  path = tmp_path / 'x.json'
  path.write_text('old')

  def crash(*_):
    raise OSError('no space left on device')

  monkeypatch.setattr(os, call, crash)
  with pytest.raises(OSError, match='no space left'):
    write_atomically(str(path), 'new')
  assert path.read_text() == 'old'


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_lines_wait_while_the_disk_is_full(tmp_path):
  """The kernel lets no file grow any further, in the middle of a line."""
  board = TensorBoardTracker(str(tmp_path), step=0)
  log = Metrics(str(tmp_path), step=0, active=True, trackers=[board])
  log.write(1, loss=2.5)
  path = tmp_path / 'metrics.jsonl'
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, hard))
  try:
    for step in (2, 3):
      log.write(step, loss=2.5)
    assert steps(tmp_path) == [1]
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  # TensorBoard's thread may have died of it; more than its queue holds.
  for step in range(4, 40):
    log.write(step, loss=2.5)
  assert steps(tmp_path) == list(range(1, 40))
  log.close()
