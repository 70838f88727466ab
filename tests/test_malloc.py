# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands start once more, with huge pages, and nothing else does."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from gpt_jax.core import malloc

ROOT = pathlib.Path(__file__).parents[1]
# Notes each start of Python, as it begins.
NOTES = """
import json, os, signal, sys
with open(os.environ['NOTES'], 'a') as file:
  file.write(json.dumps({
    'tunables': os.environ.get('GLIBC_TUNABLES'),
    'ignored': signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN,
    'pid': os.getpid(),
    'argv': sys.orig_argv[1:],
  }) + '\\n')
"""
PROGRAM = """
import sys
from gpt_jax.core import malloc
{before}
malloc.start_anew()
sys.stdout.write(sys.stdin.read())
sys.exit(7)
"""


@pytest.fixture
def start(tmp_path):
  """Starts Python, and returns it, once it has ended, and its starts."""
  (tmp_path / 'sitecustomize.py').write_text(NOTES)

  def run(*argv, **environment):
    clean = {
      name: value
      for name, value in os.environ.items()
      if name not in ('GLIBC_TUNABLES', 'LD_PRELOAD', malloc.STARTED)
      and not name.startswith('MALLOC_')
    }
    notes = tmp_path / 'notes'
    notes.unlink(missing_ok=True)
    clean |= {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': f'{tmp_path}:{ROOT}', 'NOTES': str(notes)}
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # is inherited
    try:
      done = subprocess.run(
        [sys.executable, *argv],
        env=clean | environment,
        input='the text that stdin holds',
        capture_output=True,
        text=True,
      )
    finally:
      signal.signal(signal.SIGUSR1, before)
    return done, [json.loads(line) for line in notes.read_text().splitlines()]

  return run


@pytest.fixture
def can():
  """Skips a test where malloc has no huge pages."""
  if not malloc.tuned({}):
    pytest.skip('needs Linux with glibc 2.35 and huge pages')


def program(folder, name='gpt-jax', before=''):
  path = folder / name
  path.write_text(PROGRAM.format(before=before))
  return str(path)


@pytest.mark.usefixtures('can')
def test_a_command_starts_once_more(start, tmp_path):
  """As the same process, with its arguments, files, signals and exit code."""
  argv = ['-W', 'ignore', program(tmp_path), 'train', "--config.a='b  c'", '']
  done, starts = start(*argv, GLIBC_TUNABLES='glibc.cpu.x86_ibt=off')
  assert (done.returncode, done.stdout) == (7, 'the text that stdin holds')
  first, second = starts
  assert first.pop('tunables') == 'glibc.cpu.x86_ibt=off'
  assert second.pop('tunables').startswith('glibc.cpu.x86_ibt=off:glibc.malloc.hugetlb=1:')
  assert first == second and first['argv'] == argv and first['ignored']


@pytest.mark.usefixtures('can')
def test_python_m_starts_once_more(start):
  argv = ['-m', 'gpt_jax', 'train', '--confg']
  done, (first, second) = start(*argv)
  assert done.returncode == 2 and 'did you mean --config?' in done.stderr
  assert first['pid'] == second['pid']
  assert [one['argv'] for one in (first, second)] == [argv, argv]
  assert first['tunables'] is None and 'hugetlb' in second['tunables']


@pytest.mark.parametrize(
  ('name', 'before', 'flags', 'environment'),
  [
    ('mine.py', '', (), {}),  # a program of the user, which uses us
    ('gpt-jax', 'sys.settrace(lambda *_: None)', (), {}),
    ('gpt-jax', 'sys.setprofile(lambda *_: None)', (), {}),
    ('gpt-jax', '', ('-X', 'importtime'), {}),
    ('gpt-jax', '', (), {malloc.STARTED: '1'}),
    ('gpt-jax', '', (), {'LD_PRELOAD': 'libtcmalloc.so.4'}),  # a TPU VM
    ('gpt-jax', '', (), {'MALLOC_ARENA_MAX': '2'}),
  ],
)
def test_nothing_else_starts_again(name, before, flags, environment, start, tmp_path):
  argv = *flags, program(tmp_path, name, before)
  done, starts = start(*argv, **environment)
  assert (done.returncode, len(starts)) == (7, 1)


@pytest.mark.parametrize(
  ('part', 'value'),
  [('_huge_pages', 'always madvise [never]\n'), ('_glibc', (2, 34)), ('_has_accelerator', True)],
)
def test_without_huge_pages_glibc_is_not_tuned(part, value, monkeypatch):
  monkeypatch.setattr(sys, 'platform', 'linux')
  monkeypatch.setattr(malloc, '_has_accelerator', lambda: False)
  monkeypatch.setattr(malloc, '_glibc', lambda: (2, 35))
  monkeypatch.setattr(malloc, '_huge_pages', lambda: 'always [madvise] never')
  assert 'hugetlb' in malloc.tuned({})['GLIBC_TUNABLES']
  monkeypatch.setattr(malloc, part, lambda: value)
  assert malloc.tuned({}) == {}


@pytest.mark.usefixtures('can')
def test_small_steps_keep_what_they_free(monkeypatch):
  """In a process that was started with huge pages; others keep it anyway."""
  told = []
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  monkeypatch.setattr(malloc, '_keep', told.append)
  malloc.keep_of_step(1 << 20)
  assert not told
  monkeypatch.setenv('GLIBC_TUNABLES', malloc.tuned({})['GLIBC_TUNABLES'])
  malloc.keep_of_step(1 << 30)
  assert not told
  malloc.keep_of_step(1 << 20)
  assert len(told) == 1
