# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a machine leaves open: each thing alone is found, and named."""

import os
import sys
import tempfile

import jax
import pytest

from gpt_jax.core.runtime import accelerators


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """Folders of this user alone, and a user that is not root."""
  folders = {}
  for name in ('cache', 'code', 'temporary', 'here', 'here/workdirs/run'):
    folders[name] = tmp_path / name
    folders[name].mkdir(parents=True, mode=0o755)
  uid = os.geteuid()
  monkeypatch.setattr(os, 'geteuid', lambda: uid or 4321)
  for folder in folders.values():
    os.chown(folder, uid, -1)
  monkeypatch.chdir(folders['here'])
  monkeypatch.setattr(sys, 'path', [str(folders['code'])])
  monkeypatch.setattr(tempfile, 'gettempdir', lambda: str(folders['temporary']))
  kept = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', str(folders['cache']))
  mask = os.umask(0o022)
  yield folders
  os.umask(mask)
  jax.config.update('jax_compilation_cache_dir', kept)


def test_a_sound_machine_lacks_nothing(machine):
  assert accelerators.lacks(key=True) == []


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('cache', 'compiled programs {}: all users may write into it'),
    ('code', 'Python imports from {}: all users may write into it'),
    ('temporary', 'TMPDIR {}: all users may write into it'),
    ('here', 'runs in .: all users may write into it'),
    ('here/workdirs/run', 'runs in workdirs/run: all users may write into it'),
  ],
)
def test_a_folder_of_all_is_named(machine, name, said):
  machine[name].chmod(0o777)
  (line,) = accelerators.lacks(key=True)
  assert line.startswith(said.format(machine[name]))


def test_a_sticky_folder_is_for_temporary_files_alone(machine):
  for name in ('temporary', 'cache'):
    machine[name].chmod(0o1777)
  (line,) = accelerators.lacks(key=True)
  assert line.startswith('compiled programs')


def test_root_umask_and_key(machine, monkeypatch):
  monkeypatch.setattr(os, 'geteuid', lambda: 0)
  (line,) = accelerators.lacks(key=True)
  assert line.startswith('runs as root')
  monkeypatch.undo()
  (line,) = [x for x in accelerators.lacks(key=False) if 'API' in x]
  assert '--api_key_file' in line


def test_the_umask(machine):
  os.umask(0)
  (line,) = accelerators.lacks(key=True)
  assert 'umask' in line
  assert os.umask(0o022) == 0  # as it was


def test_what_another_user_owns_is_named(machine, monkeypatch):
  monkeypatch.setattr(os, 'geteuid', lambda: 98_765)
  found = accelerators.lacks(key=True)
  if os.stat(machine['cache']).st_uid == 0:
    assert found == []  # root may do everything anyway
  else:
    assert any('belongs to another user' in line for line in found)
