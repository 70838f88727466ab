# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What this machine leaves open to its other users, for `gpt-jax doctor`.

docs/security.md says what is trusted: a folder from which code or compiled
programs are taken must be its user's alone.
"""

import glob
import os
import stat
import sys
import tempfile

from jax._src import config as jax_config

from gpt_jax.runtime import programs


def lacks(*, key: bool) -> list[str]:
  """One line for each thing that is missing, with its remedy.

  Args:
    key: whether `serve` would find an API key.
  """
  found = []
  if os.geteuid() == 0:
    found.append(
      'runs as root: whatever a config or a package does, it may do anywhere; '
      'use a user of its own'
    )
  mask = os.umask(0o077)
  os.umask(mask)
  if not mask & stat.S_IWOTH:
    found.append('others may write new files: set umask 022')
  for name, folder in _folders():
    if why := open_to_others(folder):
      found.append(f'{name} {folder}: {why}')
  temporary = tempfile.gettempdir()
  if not _is_sticky(temporary) and (why := open_to_others(temporary)):
    found.append(f'TMPDIR {temporary}: {why}, or chmod +t it')
  if not key:
    found.append(
      'no API key: serve to this machine alone, or give --api_key_file'
    )
  return found


def open_to_others(folder: str) -> str:
  """Why a folder is not its user's alone, and the remedy; '' if it is.

  It may also be root's. A folder that is not there is nobody's.
  """
  try:
    found = os.stat(folder)
  except OSError:
    return ''
  if found.st_mode & stat.S_IWOTH:
    return 'all users may write into it; chmod o-w it'
  if found.st_uid not in (0, os.geteuid()):
    return 'belongs to another user; take a folder of your own'
  return ''


def _folders() -> list[tuple[str, str]]:
  """What code or runs are taken from, by name."""
  cache = jax_config.compilation_cache_dir.value
  found = [('compiled programs', cache or str(programs.cache_folder()))]
  found += [('Python imports from', path or '.') for path in sys.path]
  found += [('runs in', path) for path in ['.', *glob.glob('workdirs/*')]]
  return [(name, path) for name, path in found if os.path.isdir(path)]


def _is_sticky(folder: str) -> bool:
  """Whether nobody removes or renames what is another's there."""
  return bool(os.stat(folder).st_mode & stat.S_ISVTX)
