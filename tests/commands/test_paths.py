# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every flag that names a path: exit code 2, one line, nothing left."""

import importlib
import os
import pathlib
import re
import sys

import pytest

from gpt_jax import __main__, cli
from gpt_jax.core import malloc
from gpt_jax.core.spec import UsageError
from gpt_jax.flags import Flags

ROOT = pathlib.Path(__file__).parents[2]
SMOKE = f'--config={ROOT}/configs/smoke.py'
SCALING = f'--config={ROOT}/configs/scaling.py'
FINETUNE = f'--config={ROOT}/configs/finetune/base.py'
TEXT = [
  "--config.data.source=text('text.txt')",
  '--config.tokenizer.name=bytes',
  '--config.data.holdout=none',
]
TASK = [
  "--config.finetune.task=classification('t.tsv', 't.tsv', text='a', label='b')",
  '--config.tokenizer.name=bytes',
]

# Where a path is read, and where one is written.
READ = {
  'generate --workdir': ['generate', '--prompt=x'],
  'generate --prompts': ['generate', '--workdir=w', '--out=out.jsonl'],
  'evaluate --workdir': ['evaluate'],
  'evaluate --source': ['evaluate', '--workdir=w', '--reference=t.tsv'],
  'evaluate --reference': ['evaluate', '--workdir=w', '--source=t.tsv'],
  'inspect --workdir': ['inspect', '--steps=1'],
  'inspect --spike': ['inspect'],
  'plot --workdir': ['plot'],
  'profile --workdir': ['profile'],
  'report --workdir': ['report'],
  'convert --from_hf': ['convert', '--workdir=w'],
  'convert --workdir': ['convert', '--to_hf=out'],
  'finetune --init': ['finetune', FINETUNE, '--workdir=w'],
  'finetune --predict': ['finetune', FINETUNE, '--init=none', '--workdir=w'] + TASK,
  'tokenizers --text': ['tokenizers', '--tokenizer=b bytes'],
  'plan --fit': ['plan', '--budget=1e18'],
  'train --config': ['train', '--workdir=w'],
}
WRITTEN = {
  'train --workdir': ['train', SMOKE, *TEXT],
  'prepare --out': ['prepare', SMOKE, *TEXT],
  'compare --workdir': ['compare', '--run=a nope.py'],
  'scaling --workdir': ['scaling', SCALING],
  'finetune --workdir': ['finetune', FINETUNE, '--init=none', *TASK],
  'convert --to_hf': ['convert', '--workdir=nope'],
}
DRAWN = {
  'generate --out': ['generate', '--workdir=w', '--prompts=text.txt'],
  'plot --out': ['plot', SMOKE],
  'tokenizers --out': ['tokenizers', '--tokenizer=b bytes', '--text=text.txt'],
}

# What TensorStore reads and writes, texts, and files that are read at once.
URLS_TOO = ('prepare --out', 'tokenizers --text')
URLS_TOO += ('evaluate --source', 'evaluate --reference')

PATHS = {
  'missing': 'nope/x',
  'below a file': 'file/x',
  'too long': 'n' * 300,
  'file': 'file',
  'folder': 'folder',
  'not text': 'latin',
}


@pytest.fixture
def main(tmp_path, monkeypatch):
  """Runs a command in a folder with some files."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(malloc, 'keep_memory', lambda: None)
  (tmp_path / 'file').write_text('x')
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'latin').write_bytes(b'caf\xe9\tna\xefve\nno\tyes\n')
  (tmp_path / 'text.txt').write_text('some words ' * 300)
  (tmp_path / 't.tsv').write_text('a\tb\nx\t0\ny\t1\n')
  return __main__.main


def files(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }


def check(main, capfd, tmp_path, case, argv, path):
  before = files(tmp_path)
  flag = case.split()[1]
  assert main([*argv, f'{flag}={path}']) == 2, capfd.readouterr().err
  err = capfd.readouterr().err
  said = [s for s in err.splitlines() if s.startswith('gpt-jax ')]
  # What was logged on the way ends with the line that says what to mend.
  assert said == err.splitlines()[-1:], err
  assert said[0].startswith(f'gpt-jax {argv[0]}: ')
  assert path in said[0]
  assert 'Traceback' not in err
  assert files(tmp_path) == before


@pytest.mark.parametrize(
  ('case', 'kind'),
  [
    (case, kind)
    for case in READ
    for kind in PATHS
    if (case, kind) != ('tokenizers --text', 'file')  # one letter is a text
  ],
)
def test_a_path_that_is_read(main, capfd, tmp_path, case, kind):
  check(main, capfd, tmp_path, case, READ[case], PATHS[kind])


@pytest.mark.parametrize('kind', ['below a file', 'too long', 'file'])
@pytest.mark.parametrize('case', WRITTEN)
def test_a_folder_that_is_written(main, capfd, tmp_path, case, kind):
  check(main, capfd, tmp_path, case, WRITTEN[case], PATHS[kind])


@pytest.mark.parametrize(
  'argv, path',
  [
    (['compare', '--run=a nope.py', '--seeds=0,1'], 'w/a/1'),
    (['compare', '--run=a nope.py'], 'w/a'),
    (['compare', '--run=a nope.py'], 'w/compare.json/'),
    (['compare', '--run=a nope.py'], 'w/compare.png/'),
    (['scaling', SCALING], 'w/1.5e11-2x16'),
    (['scaling', SCALING], 'w/scaling.json/'),
  ],
)
def test_what_is_in_the_way_of_a_run(main, capfd, tmp_path, argv, path):
  """A file where a folder of a sweep is to be, or a folder for its figures."""
  place = tmp_path / path
  if path.endswith('/'):
    place.mkdir(parents=True)
  else:
    place.parent.mkdir(parents=True)
    place.write_text('x')
  before = files(tmp_path)
  assert main([*argv, '--workdir=w']) == 2
  err = capfd.readouterr().err
  assert err.startswith(f'gpt-jax {argv[0]}: --workdir=w: ')
  assert path.rstrip('/') in err and err.count('\n') == 1
  assert files(tmp_path) == before


@pytest.mark.parametrize('kind', ['missing', 'below a file', 'too long', 'folder', 'pipe'])
@pytest.mark.parametrize('case', DRAWN)
def test_a_file_that_is_written(main, capfd, tmp_path, case, kind):
  """A pipe stands for a device, which a rename would replace."""
  if kind == 'pipe':
    os.mkfifo(tmp_path / 'pipe')
  path = PATHS.get(kind, kind)
  check(main, capfd, tmp_path, case, DRAWN[case], path)
  if kind == 'pipe':
    assert (tmp_path / 'pipe').is_fifo()


def flags_of(command):
  values = Flags()
  importlib.import_module(f'gpt_jax.commands.{command}').define(values)
  return values


def is_a_folder(command, flag):
  paths = flags_of(command).paths
  return flag in paths and bool(paths[flag].bucket)


# How the help of a flag that takes a folder names it.
FOLDER = re.compile(r'^(Folder|Workdir)|(: |^|the |[Aa] )(work)dir of|a workdir')


@pytest.mark.parametrize('command', __main__.COMMANDS)
def test_flags_of_paths_are_known(command):
  """A folder that a new command takes may be in a bucket like any other."""
  values = flags_of(command)
  for flag in values:
    if FOLDER.search(values[flag].help):
      assert is_a_folder(command, flag), flag


@pytest.mark.parametrize('command', __main__.COMMANDS)
def test_a_folder_in_a_bucket(main, monkeypatch, command):
  """Of every command; nothing is asked of the network by these checks."""
  values = flags_of(command)
  for flag in values:
    given = {**dict.fromkeys(values), flag: 'gs://bucket/x'}
    if is_a_folder(command, flag):
      for url in ('gs://bucket/x', 's3://bucket/x'):
        cli._check_urls(values.paths, given | {flag: url})
      with pytest.raises(UsageError, match=f'^--{flag}=az://b/x: .* in a bucket'):
        cli._check_urls(values.paths, given | {flag: 'az://b/x'})
    elif flag in values.paths and flag != 'text':
      with pytest.raises(UsageError, match=f'^--{flag}=gs:.*must be a path'):
        cli._check_urls(values.paths, given)
  if 'distributed' in values and 'workdir' in values:
    given = {'workdir': 's3://bucket/x', 'distributed': True}
    with pytest.raises(UsageError, match='several hosts write one checkpoint'):
      cli._check_urls(values.paths, given)
    cli._check_urls(values.paths, given | {'workdir': 'gs://bucket/x'})


@pytest.mark.parametrize('case', sorted({*READ, *WRITTEN, *DRAWN} - {*URLS_TOO}))
def test_urls_are_refused_at_once(main, capfd, tmp_path, case):
  """Folders may be in buckets of two kinds, files may not."""
  argv = {**READ, **WRITTEN, **DRAWN}[case]
  url = 'az' if is_a_folder(*case.split(' --')) else 'gs'
  check(main, capfd, tmp_path, case, argv, f'{url}://bucket/x')


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read and write all')
@pytest.mark.parametrize('case', [*WRITTEN, *DRAWN])
def test_a_folder_that_may_not_be_written_to(main, capfd, tmp_path, case):
  (tmp_path / 'folder').chmod(0o500)
  argv = {**WRITTEN, **DRAWN}[case]
  check(main, capfd, tmp_path, case, argv, 'folder/x')
