# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps compiled programs on the disk, so that a second start loads them.

JAX looks a program up under a hash of it, of its compiler and of the flags; see
its page on the persistent compilation cache. Where they are kept is ours: JAX's
own files are not written as a whole, so that a process killed meanwhile leaves
one that fails in every later start, and on CPUs the hash does not tell machines
apart whose instructions differ, as those do that share a home folder.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import stat
import tempfile

import jax
from jax._src import compilation_cache
from jax._src import config as jax_config
from jax._src.compilation_cache_interface import CacheInterface

from gpt_jax.runtime.log import log

# Above this the files that were not used for longest go.
MAX_BYTES = 4 << 30
_SUFFIX = '.program'


def keep() -> None:
  """Keeps programs in the user's cache folder; before the first compilation.

  JAX's own variables have their way: with JAX_COMPILATION_CACHE_DIR it keeps
  them there, in its own manner, and with JAX_ENABLE_COMPILATION_CACHE=false
  nowhere. Nor are they kept where that folder cannot be written to, or is not
  the user's own.
  """
  if not jax_config.enable_compilation_cache.value:
    return
  if jax_config.compilation_cache_dir.value is not None:
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
  compilation_cache.get_file_cache = lambda path: (Programs(path), path)
  jax.config.update('jax_compilation_cache_dir', str(folder))


def _problem(folder: pathlib.Path) -> str:
  """Makes the cache folder; tells why its programs cannot be trusted, or ''.

  Whoever may write there may have us run their code, and whoever may write to
  a folder around it may put another in its place.
  """
  own = (folder.parents[1], folder.parents[0], folder)
  root = own[0].parent
  if not folder.is_absolute():
    return f'{folder} is not absolute'
  root.mkdir(mode=0o700, parents=True, exist_ok=True)
  mode = root.stat().st_mode
  if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
    return f'all users may write to {root}'
  for path in own:
    path.mkdir(mode=0o700, exist_ok=True)
    if {path.lstat().st_uid, path.stat().st_uid} != {os.geteuid()}:
      return f'{path} belongs to another user'
  writable = stat.S_IWGRP | stat.S_IWOTH
  if folder.stat().st_mode & writable:
    return f'other users may write to {folder}; remove it'
  for path in own:
    path.chmod(path.stat().st_mode & ~writable)
  return ''


def cache_folder() -> pathlib.Path:
  """XDG_CACHE_HOME/gpt_jax/programs/MACHINE, or below ~/.cache."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(home, 'gpt_jax', 'programs', _machine())


class Programs(CacheInterface):
  """Files of a folder, each with a checksum in front.

  Several processes may use it at once. None of its methods raises an OSError:
  what cannot be read or written is compiled again.
  """

  def __init__(self, folder: str):
    """Keeps files in `folder`, which exists."""
    self._path = pathlib.Path(folder)

  def get(self, key: str) -> bytes | None:
    """What is kept under `key`; None: nothing, or it is damaged."""
    path = self._file(key)
    with contextlib.suppress(OSError):
      found = path.read_bytes()
      size = hashlib.sha256().digest_size
      if hashlib.sha256(found[size:]).digest() == found[:size]:
        with contextlib.suppress(OSError):
          os.utime(path)  # it was used
        return found[size:]
      path.unlink(missing_ok=True)
    return None

  def put(self, key: str, value: bytes) -> None:
    """Keeps `value` under `key`; what is oldest makes room."""
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
    """Also of what killed processes left behind."""
    found = []
    for path in filter(pathlib.Path.is_file, self._path.iterdir()):
      with contextlib.suppress(FileNotFoundError):  # another process took it
        stat = path.stat()
        found.append((stat.st_mtime, stat.st_size, path))
    left = sum(size for _, size, _ in found) + num_bytes
    for _, size, path in sorted(found):
      if left <= MAX_BYTES:
        return
      path.unlink(missing_ok=True)
      left -= size


def _machine() -> str:
  """A name for machines that take the same instructions."""
  text = platform.machine()
  with contextlib.suppress(OSError), open('/proc/cpuinfo') as file:
    wanted = ('model name', 'flags', 'Features')
    lines = (line for line in file if line.startswith(wanted))
    text += ''.join(sorted(set(lines)))
  return hashlib.sha256(text.encode()).hexdigest()[:12]
