# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the page about a run says of a run that was stopped and resumed."""

import html.parser
import json

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.reports import report
from tests.support import tiny

START = {
  'event': 'start',
  'seconds': 7.0,
  'context_length': 13,
  'rows_per_epoch': 97,
  'jax': '0.0.1',
  'device': 'abacus',
  'devices': 2,
  'processes': 1,
  'parameters': 12_347,
  'command': "gpt-jax train --config=own.py '--config.model.position=rope'",
  'overrides': ['model.position', 'seed'],
  'filled': ['model.vocab_size', 'mesh.data'],
}
LOGGED = {
  'data_wait_seconds': 0.0,
  'learning_rate': 0.1,
  'grad_norm': 1.5,
  'tokens_per_second': 31.0,
}


class Table(html.parser.HTMLParser):
  """The rows of all tables, as lists of texts."""

  def __init__(self, text):
    super().__init__()
    self.rows, self._cell = [], False
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    if tag == 'tr':
      self.rows.append([])
    if tag in ('td', 'th'):
      self.rows[-1].append('')
    self._cell = tag in ('td', 'th', 'code') and bool(self.rows)

  def handle_endtag(self, tag):
    self._cell = False

  def handle_data(self, data):
    if self._cell:
      self.rows[-1][-1] += data


def write_run(folder, start=START):
  """Writes a run that was stopped at steps 0, 5 and 11 of 20."""
  folder.mkdir(exist_ok=True)
  changes = {'model.position': 'rope', 'optim.clip_norm': 0.7}
  config = config_lib.unlocked(config_lib.resolve(tiny.config(**changes)))
  config.mesh.data = 2
  (folder / 'config.json').write_text(config_lib.to_json(config))
  lines = [
    {'step': 0, 'time': 1007.0, **start},
    {
      **{'step': 0, 'time': 1017.0, 'lost_steps': 0, 'lost_seconds': 0.0},
      **{'previous_time': 1007.0, **start},
    },
    {'step': 4, 'time': 1020.0, 'tokens': 52, 'loss': 5.25, **LOGGED},
    {'step': 5, 'time': 1021.0, 'event': 'saved', 'seconds': 1.0},
    {
      **{'step': 5, 'time': 2028.0, 'lost_steps': 0, 'lost_seconds': 0.0},
      **{'previous_time': 1021.0, **start},
    },
    {'step': 8, 'time': 2030.0, 'tokens': 104, 'loss': 4.5, **LOGGED},
    {
      **{'step': 10, 'time': 2031.0, 'eval_seconds': 0.5},
      **{'eval/validation/loss': 4.75, 'eval/validation/bits_per_byte': 2.0},
    },
    {'step': 11, 'time': 2032.0, 'event': 'saved', 'seconds': 1.0},
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (folder / 'metrics.jsonl').write_text(text)


@pytest.fixture
def write(tmp_path):
  """Writes a run that began with an event; returns its page."""

  def write(start):
    write_run(tmp_path, start)
    return report.page(str(tmp_path))

  return write


def test_the_top_and_the_resumes(write):
  page = write(START)
  rows = Table(page).rows
  assert rows[:9] == [
    ['command', START['command']],
    ['parameters', '12,347'],
    ['device', '2 x abacus'],
    ['steps', '11 of 20'],
    ['tokens seen', '104 (last logged, at step 8)'],
    # Three starts of 7 s, and 4 s of steps after two of them.
    ['wall time', '0:00:29 in 3 starts'],
    ['training loss', '4.5000 (last logged, at step 8)'],
    ['loss of validation', '4.7500 (last logged, at step 10)'],
    ['last line', '1970-01-01 00:33 UTC'],
  ]
  assert ['5', 'start', 'resumed after step 5'] in rows
  assert ['0', 'start', 'started again: no step had been saved'] in rows
  assert 'bits_per_byte: the loss per byte' in page


def test_who_set_a_field(write):
  rows = Table(write(START)).rows
  at = rows.index(['set by', 'field', 'here', 'default'])
  found = {row[1]: row for row in rows[at + 1 :] if len(row) == 4}
  assert found['model.position'][::2] == ['command line', "'rope'"]
  assert found['seed'] == ['command line', 'seed', '0', '0']
  assert found['optim.clip_norm'] == ['config file', 'optim.clip_norm', '0.7', '1.0']
  assert found['mesh.data'] == ['program', 'mesh.data', '2', '1']
  groups = [row[0] for row in rows[at + 1 :] if len(row) == 4]
  groups = [g for g in groups if g in ('command line', 'config file')]
  assert groups == sorted(groups)


def test_a_run_of_no_command_says_no_more_than_is_known(write):
  kept = ('command', 'overrides', 'filled', 'parameters')
  rows = Table(write({name: x for name, x in START.items() if name not in kept})).rows
  assert rows[0] == ['device', '2 x abacus']
  assert ['optim.clip_norm', '0.7', '1.0'] in rows


def test_a_workdir_that_looks_like_a_pattern_shows_its_own(tmp_path):
  """`run[1]` is not `run1`, and `a*` is not `ab`."""
  for name, other in (('run[1]', 'run1'), ('a*', 'ab'), ('?', 'c')):
    for at, (folder, value) in enumerate([(name, 0.25), (other, 0.75)]):
      write_run(tmp_path / folder)
      stored = {'step': 7 + at, 'eval/task/accuracy': value}
      replay = {'step': 2 + at, 'kind': 'state', 'devices': []}
      for path, found in (('evaluations/step-7.json', stored), ('replays/2_state.json', replay)):
        file = tmp_path / folder / path
        file.parent.mkdir()
        file.write_text(json.dumps(found))
    rows = Table(report.page(str(tmp_path / name))).rows
    assert ['task', '7', 'accuracy', '0.2500'] in rows
    assert ['2', 'replay', 'state differs'] in rows
    assert not [row for row in rows if '0.7500' in row]
