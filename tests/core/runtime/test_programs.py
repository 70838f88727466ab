# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk: found again, never believed when damaged."""

import importlib
import inspect
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epy
from jax._src import compilation_cache

from gpt_jax import __main__, cli
from gpt_jax.core.runtime import programs

HITS = '/jax/compilation_cache/cache_hits'
X = np.eye(13, dtype=np.float32)
NAMES = {
  'jax_enable_compilation_cache': True,
  'jax_compilation_cache_dir': None,
  'jax_persistent_cache_min_compile_time_secs': 0.0,
  'jax_raise_persistent_cache_errors': True,
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A user's cache folder; JAX as it is for users."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  # Whatever `keep` sets is as before at the end.
  made = compilation_cache.get_file_cache
  monkeypatch.setattr(compilation_cache, 'get_file_cache', made)
  before = {name: getattr(jax.config, name) for name in NAMES}
  for name, value in NAMES.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()
  yield programs.cache_folder()
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


def compiled():
  """Compiles one program anew; its result, and how often it was found."""
  hits = []
  jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
  try:
    jax.clear_caches()
    result = jax.jit(lambda x: jnp.tanh(x @ x).sum() + 7)(X)
  finally:
    jax.monitoring.clear_event_listeners()
  return float(result), hits.count(HITS)


def test_programs_are_found_again_and_made_anew_when_damaged(cache):
  assert not cache.exists()
  programs.keep()
  expected, hits = compiled()
  assert hits == 0
  files = list(cache.iterdir())
  assert cache.stat().st_mode & 0o077 == 0 and files
  assert compiled() == (expected, len(files))
  for path in files:
    data = path.read_bytes()
    path.write_bytes(data[:-5])
  assert compiled() == (expected, 0)
  for path in files:  # they were written again
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
  assert compiled() == (expected, 0)
  assert compiled() == (expected, len(files))


@pytest.mark.parametrize('why', ['off', 'elsewhere', 'file'])
def test_nothing_is_kept(cache, tmp_path, why):
  if why == 'off':
    jax.config.update('jax_enable_compilation_cache', False)
  elif why == 'elsewhere':
    jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'mine'))
  else:
    (tmp_path / 'cache').write_text('')
  programs.keep()
  assert compiled()[1] == 0 and not cache.exists()
  assert (tmp_path / 'mine').exists() == (why == 'elsewhere')


@pytest.mark.parametrize(
  'whose', ['linked', 'theirs', 'open', 'open root', 'group root', 'group above']
)
def test_only_the_users_own_folder_is_used(cache, tmp_path, monkeypatch, caplog, whose):
  """As where XDG_CACHE_HOME is a folder that all may write to."""
  cache.mkdir(parents=True)
  remedy = ''
  if whose == 'linked':
    cache.rmdir()
    (tmp_path / 'planted').mkdir()
    cache.symlink_to(tmp_path / 'planted')
    (tmp_path / 'planted').chmod(0o777)
  elif whose == 'theirs':
    monkeypatch.setattr(os, 'geteuid', lambda: cache.stat().st_uid + 1)
  elif whose == 'open':
    cache.chmod(0o722)
  elif whose == 'open root':
    (tmp_path / 'cache').chmod(0o777)
    remedy = f'all users may write to {tmp_path}/cache; chmod o-w it, or name'
  else:
    group = tmp_path if whose == 'group above' else tmp_path / 'cache'
    stat_of = os.stat

    def stat(path, **how):
      """Of a group other than root's, which only root could make."""
      found = stat_of(path, **how)
      if path == str(group):
        found = os.stat_result((0o40775, *found[1:5], 1234, *found[6:]))
      return found

    monkeypatch.setattr(os, 'stat', stat)
    remedy = f'other users of its group may write to {group}; chmod g-w it'
  with caplog.at_level('WARNING', 'gpt_jax'):
    programs.keep()
  assert f'compiled programs are not kept: {remedy}' in caplog.text
  assert compiled()[1] == 0 and not [*cache.iterdir()]


def test_a_folder_of_others_is_warned_of(cache, tmp_path, caplog):
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'open'))
  (tmp_path / 'open').mkdir()
  (tmp_path / 'open').chmod(0o777)
  programs.keep()
  assert 'COMPILATION_CACHE_DIR=' in caplog.text
  assert f'all users may write to {tmp_path}/open; chmod o-w it' in caplog.text


def test_a_shared_folder_whose_files_stay_their_owners_will_do(cache, tmp_path):
  (tmp_path / 'cache').mkdir()
  (tmp_path / 'cache').chmod(0o1777)
  (tmp_path / 'cache/gpt_jax').mkdir()
  (tmp_path / 'cache/gpt_jax').chmod(0o775)
  programs.keep()
  compiled()
  assert [*cache.iterdir()]
  for path in (cache, *cache.parents[:2]):
    assert path.stat().st_mode & 0o022 == 0


def test_the_oldest_make_room(tmp_path, monkeypatch):
  monkeypatch.setattr(programs, 'MAX_BYTES', 350)
  (tmp_path / 'folder').mkdir()
  kept = programs.Programs(str(tmp_path))
  for age, key in enumerate('abc'):
    kept.put(key, bytes(68))  # and 32 of checksum
    os.utime(tmp_path / f'{key}.program', (1000 + age, 1000 + age))
  assert kept.get('a') == bytes(68)  # it was used last
  kept.put('d', bytes(68))
  assert [key for key in 'abcd' if kept.get(key)] == ['a', 'c', 'd']
  assert kept.get('e') is None
  (tmp_path / 'a.program').unlink()
  (tmp_path / 'a.program').mkdir()
  kept.put('a', b'x')  # in vain, and not told of
  assert kept.get('a') is None
  assert not [*tmp_path.glob('*.tmp')]


def test_commands_that_time_the_compiler_keep_nothing(monkeypatch):
  """The others keep programs once they use a module that imports JAX."""
  called = []
  monkeypatch.setattr(programs, 'keep', lambda: called.append(1))
  # Another test of this process may have asked for it already.
  monkeypatch.setattr(cli, '_keep_once', cli._keep_once.__wrapped__)
  with epy.lazy_imports():
    from gpt_jax.core.costs import totals as plain
  with cli.lazy_imports():
    from gpt_jax.core.costs import totals
  assert plain.short and not called
  assert totals.short and called
  users = {
    name
    for name in __main__.COMMANDS
    if 'with epy.lazy_imports()'
    in inspect.getsource(importlib.import_module(f'gpt_jax.commands.{name}'))
  }
  assert users == {'plan', 'benchmark'}
