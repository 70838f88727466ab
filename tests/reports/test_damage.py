# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damaged files of a run: one line names each, and the page goes on."""

import errno
import json
import os

import pytest

from gpt_jax.__main__ import main
from gpt_jax.reports import report, runs
from tests.reports.test_report import LOGGED, START, write_run

ROUTER = 'router/decoder/layer_0'
LINES = [
  {'step': 0, 'time': 1007.0, 'event': 'start', **START},
  {
    **{'step': 4, 'time': 1020.0, 'tokens': 52, 'loss': 5.25, **LOGGED},
    **{f'{ROUTER}/load': [0.5, 0.5], f'{ROUTER}/dropped': 0.25},
    f'{ROUTER}/entropy': 0.5,
  },
  {'step': 5, 'time': 1021.0, 'event': 'saved', 'seconds': 1.0},
  {'step': 10, 'time': 1031.0, 'eval/validation/loss': 4.75},
]
FILES = {
  'evaluations/step-10.json': {'step': 10, 'eval/t/accuracy': 0.5},
  'replays/7_state.json': {**{'step': 7, 'kind': 'state'}, 'devices': [{'id': 1, 'host': 0}]},
}
OF_A_FILE = {
  'empty': b'',
  'binary': bytes(range(256)),
  'null': b'null\n',
  'a list': b'[]\n',
  'nested': b'[' * 100_000,
  'cut': b'{"step": 10, "eva',
  'without keys': b'{}\n',
}
# That fit no field of a kind.
OF_A_VALUE = {
  str: [None, 3, True, [], {}],
  int: [None, 'x', True, [], {}, 0.5, -1, 10**30, 10**400],
  float: [None, 'x', True, [], {}, 10**400],
  list: [None, 'x', 3, True, {}, [None], [{}]],
}


@pytest.fixture
def run(tmp_path, monkeypatch):
  """A run whose pictures are not drawn."""
  monkeypatch.setattr(report, '_curves', lambda *_: iter(()))
  write_run(tmp_path)
  write_lines(tmp_path, LINES)
  for name, found in FILES.items():
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(json.dumps(found))
  (tmp_path / 'samples.txt').write_text('hello')
  return tmp_path


def write_lines(folder, lines):
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (folder / 'metrics.jsonl').write_text(text)


def refused(capsys, argv):
  """The one line with which a command refuses its input."""
  assert main(argv) == 2
  said = capsys.readouterr().err
  assert said.count('\n') == 1
  return said


def written(capsys, folder):
  """The page, and the warnings."""
  assert main(['report', f'--workdir={folder}']) == 0
  return (folder / 'report.html').read_text(), capsys.readouterr().err


@pytest.mark.parametrize('how', [*OF_A_FILE, 'a folder'])
def test_a_damaged_file(run, capsys, how):
  for name in (*FILES, 'samples.txt', 'config.json', 'metrics.jsonl'):
    path = run / name
    before = path.read_bytes()
    path.unlink()
    if how == 'a folder':
      path.mkdir()
    else:
      path.write_bytes(OF_A_FILE[how])
    if name == 'metrics.jsonl' and how in ('empty', 'nested', 'cut'):
      assert 'has no losses' in refused(capsys, ['report', f'--workdir={run}'])
    elif name in ('metrics.jsonl', 'config.json'):
      said = refused(capsys, ['report', f'--workdir={run}'])
      assert str(path) in said
      assert ('line 1 is damaged' in said) == (name == 'metrics.jsonl' and how != 'a folder')
    else:
      page, warned = written(capsys, run)
      damaged = name != 'samples.txt' or how in ('binary', 'a folder')
      assert (f'{path}: ' in page) == (f'{path}: ' in warned) == damaged
      assert ('is damaged:' in page) == damaged
      assert ('state differs' in page) == ('replays' not in name)
      assert ('accuracy' in page) == ('evaluations' not in name)
    path.rmdir() if how == 'a folder' else path.unlink()
    path.write_bytes(before)


@pytest.mark.parametrize('number', range(len(LINES)))
def test_a_damaged_line(run, capsys, number):
  """Each value of each line that something is computed from."""
  for name, value in LINES[number].items():
    for damaged in OF_A_VALUE[type(value)]:
      lines = [dict(line) for line in LINES]
      lines[number][name] = damaged
      write_lines(run, lines)
      said = refused(capsys, ['report', f'--workdir={run}'])
      assert f'{run}/metrics.jsonl: line {number + 1} is damaged' in said, name
      assert name in said


@pytest.mark.parametrize(
  ('number', 'name'),
  [
    (0, 'time'),
    (0, 'seconds'),
    (0, 'context_length'),
    (0, 'rows_per_epoch'),
    (1, 'tokens'),
    (1, 'data_wait_seconds'),
    (2, 'seconds'),
    (3, 'time'),
  ],
)
def test_a_line_without_a_field(run, capsys, number, name):
  lines = [dict(line) for line in LINES]
  del lines[number][name]
  write_lines(run, lines)
  for argv in (['report'], ['plot', '--goodput']):
    said = refused(capsys, [*argv, f'--workdir={run}'])
    assert f'line {number + 1} of metrics.jsonl lacks {name}' in said


@pytest.mark.parametrize('name', ['jax', 'device', 'devices', 'processes', 'command', 'overrides'])
def test_what_the_page_can_do_without(run, capsys, name):
  lines = [dict(line) for line in LINES]
  del lines[0][name]
  write_lines(run, lines)
  written(capsys, run)


@pytest.mark.parametrize('damaged', [[], [0.5], [0.2, 0.3, 0.5]])
def test_routers_of_other_sizes(run, capsys, damaged):
  lines = [*LINES, {**LINES[1], 'step': 8, f'{ROUTER}/load': damaged}]
  write_lines(run, lines)
  said = refused(capsys, ['plot', f'--workdir={run}'])
  assert 'is damaged' in said and f'{ROUTER}/load' in said


def test_a_full_disk_names_the_file(run, monkeypatch):
  def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  figure = runs.loss_figure([str(run)])
  monkeypatch.setattr(figure, 'savefig', full)
  out = str(run / 'loss.png')
  with pytest.raises(OSError) as e:
    runs.save_figure(figure, out)
  assert (e.value.errno, e.value.filename) == (errno.ENOSPC, out)
  assert not [name for name in os.listdir(run) if 'loss.png' in name]
