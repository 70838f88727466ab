# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A persistent cache of compiled programs, so that later starts load them.

JAX looks a program up under a hash of the program, the compiler and the flags;
see its page on the persistent compilation cache. The storage is ours for two
reasons. JAX does not write its files atomically: a process killed meanwhile
leaves one that fails in every later start. And on CPUs the hash does not tell
apart machines with different instruction sets, which may share a home folder.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import stat
import tempfile

import jax

from gpt_jax.core.files import files
from gpt_jax.core.runtime import jax_internals
from gpt_jax.core.runtime.log import log

# Above this size the least recently used files are deleted.
MAX_BYTES = 4 << 30
_SUFFIX = '.program'


def keep() -> None:
  """Turns the cache on; call it before the first compilation.

  JAX's own variables take precedence: with JAX_COMPILATION_CACHE_DIR it uses
  its own cache there, with JAX_ENABLE_COMPILATION_CACHE=false none. The cache
  stays off if its folder cannot be written to or is not only the user's.
  """
  if not jax_internals.setting('jax_enable_compilation_cache'):
    return
  folder = jax_internals.setting('jax_compilation_cache_dir')
  if folder is not None:
    _warn_of_others(folder)
    return
  folder = cache_folder()
  try:
    if problem := _problem(folder):
      log.warning('compiled programs are not kept: %s', problem)
      return
    if not os.access(folder, os.W_OK | os.X_OK):
      return
  except OSError as e:
    log.debug('compiled programs are not kept: %s', e)
    return
  jax_internals.cache_programs(Programs)
  jax.config.update('jax_compilation_cache_dir', str(folder))


def keep_quick() -> None:
  """Also keeps programs that take less than a second to compile.

  For commands that compile many of them: a server's start. JAX's own variable
  takes precedence.
  """
  name = 'jax_persistent_cache_min_compile_time_secs'
  if name.upper() not in os.environ:
    jax.config.update(name, 0.0)


def _warn_of_others(folder: str) -> None:
  """Warns of a cache of the user's choice that others may write to."""
  if os.path.isdir(folder) and (why := files.replaceable(folder)):
    log.warning(
      'JAX_COMPILATION_CACHE_DIR=%s: others can run code in this process '
      'through what they put there: %s',
      folder,
      why,
    )


def _problem(folder: pathlib.Path) -> str:
  """Creates the cache folder; returns why it cannot be trusted, or ''.

  Whoever can write there can have us run their code, and whoever can write to
  a parent folder can replace it.
  """
  folders = (folder.parents[1], folder.parents[0], folder)
  root = folders[0].parent
  if not folder.is_absolute():
    return f'{folder} is not absolute'
  root.mkdir(mode=0o700, parents=True, exist_ok=True)
  if problem := files.replaceable(str(root)):
    return f'{problem} by XDG_CACHE_HOME'
  for path in folders:
    path.mkdir(mode=0o700, exist_ok=True)
    if {path.lstat().st_uid, path.stat().st_uid} != {os.geteuid()}:
      return (
        f'{path} belongs to {files.owner(str(path))}; remove it, or name a '
        'folder of your own by XDG_CACHE_HOME'
      )
  writable = stat.S_IWGRP | stat.S_IWOTH
  if folder.stat().st_mode & writable:
    return f'other users may write to {folder}; remove it'
  for path in folders:
    path.chmod(path.stat().st_mode & ~writable)
  return ''


def cache_folder() -> pathlib.Path:
  """The folder of the programs for this machine."""
  return cache_home() / 'programs' / _machine()


def cache_home() -> pathlib.Path:
  """XDG_CACHE_HOME/gpt_jax, or below ~/.cache."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(home, 'gpt_jax')


class Programs(jax_internals.CacheInterface):
  """A cache in a folder; each file starts with a checksum.

  Several processes may use it at once. No method raises an OSError: a program
  that cannot be read or written is compiled again.
  """

  def __init__(self, folder: str):
    """`folder` must exist."""
    self._path = pathlib.Path(folder)

  def get(self, key: str) -> bytes | None:
    """The value stored under `key`; None if it is missing or damaged."""
    path = self._file(key)
    with contextlib.suppress(OSError):
      data = path.read_bytes()
      size = hashlib.sha256().digest_size
      if hashlib.sha256(data[size:]).digest() == data[:size]:
        with contextlib.suppress(OSError):
          os.utime(path)  # marks it as used
        return data[size:]
      path.unlink(missing_ok=True)
    return None

  def put(self, key: str, value: bytes) -> None:
    """Stores `value` under `key`; deletes the oldest files to make room."""
    with contextlib.suppress(OSError):
      self._make_room(len(value))
      number, name = tempfile.mkstemp(dir=self._path, suffix='.tmp')
      try:
        with open(number, 'wb') as file:
          file.write(hashlib.sha256(value).digest() + value)
        os.replace(name, self._file(key))
      except OSError:
        os.unlink(name)

  def _file(self, key: str) -> pathlib.Path:
    return self._path / f'{key}{_SUFFIX}'

  def _make_room(self, num_bytes: int) -> None:
    """Deletes the oldest files, including those that killed processes left."""
    entries = []
    for path in filter(pathlib.Path.is_file, self._path.iterdir()):
      with contextlib.suppress(FileNotFoundError):  # another process took it
        stat = path.stat()
        entries.append((stat.st_mtime, stat.st_size, path))
    left = sum(size for _, size, _ in entries) + num_bytes
    for _, size, path in sorted(entries):
      if left <= MAX_BYTES:
        return
      path.unlink(missing_ok=True)
      left -= size


def _machine() -> str:
  """A name shared by machines with the same instruction set."""
  text = platform.machine()
  with contextlib.suppress(OSError), open('/proc/cpuinfo') as file:
    names = ('model name', 'flags', 'Features')
    lines = (line for line in file if line.startswith(names))
    text += ''.join(sorted(set(lines)))
  return hashlib.sha256(text.encode()).hexdigest()[:12]
