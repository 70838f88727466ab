# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files that a token store was made from, so that changes are noticed.

D/inputs.json maps each file to its size and a hash of samples of its contents:
quick for a corpus of any size, and the same for a copy of it at another place
and with other dates. All documents are also hashed as a whole, into the
manifest (`source_sha256`).
"""

import hashlib
import json
import os
from collections.abc import Mapping

from gpt_jax.core.files import files

NAME = 'inputs.json'

# The number of pieces of a file, spread evenly, and the bytes of each.
_PIECES, _PIECE = 16, 1 << 16

_SHOWN = 3

# In place of 'size:hash', of a file that cannot be read.
_UNREADABLE = 'unreadable'
# After it, of a file that is one document, if that was left out.
LEFT_OUT = ', left out'


def look(paths: Mapping[str, str]) -> dict[str, str]:
  """Returns name -> 'size:hash' of files that exist."""
  return {name: _sample(path) for name, path in paths.items() if os.path.isfile(path)}


def names_hash(paths: Mapping[str, str]) -> str:
  """One hash of the names of all files."""
  return hashlib.sha256('\0'.join(sorted(paths)).encode()).hexdigest()


def write(folder: str, found: Mapping[str, str]):
  """Writes the result of `look` into a token store."""
  data = json.dumps(found, indent=0, sort_keys=True).encode() + b'\n'
  files.write(folder, NAME, data)


def changes(folder: str, paths: Mapping[str, str]) -> str:
  """Names some of the files that changed since the store was made.

  Args:
    folder: of the token store.
    paths: name -> path of the current files. If none of them exists nothing has
      changed: a store may be used where its corpus is not.

  Returns:
    '' if nothing changed, or nothing is known about the files.
  """
  data = files.read(folder, NAME)
  now = look(paths)
  if data is None or not now:
    return ''
  entries = files.parse(
    data,
    files.join(folder, NAME),
    remedy='remove it (whether the corpus has changed is then not known), or '
    'prepare the data again',
  )
  before = {name: f'{x}'.removesuffix(LEFT_OUT) for name, x in entries.items()}
  # Whether what cannot be read has changed is not known.
  before |= {name: x for name, x in now.items() if x == _UNREADABLE}
  changed = {
    'changed': sorted(n for n in before.keys() & now if before[n] != now[n]),
    'added': sorted(now.keys() - before.keys()),
    'removed': sorted(before.keys() - now.keys()),
  }
  return '; '.join(
    f'{len(names)} {what}: ' + ', '.join(names[:_SHOWN] + ['...'][: len(names) > _SHOWN])
    for what, names in changed.items()
    if names
  )


def _sample(path: str) -> str:
  try:
    return _size_and_hash(path)
  except OSError:  # reading the documents tells of it, or leaves it out
    return _UNREADABLE


def _size_and_hash(path: str) -> str:
  size = os.path.getsize(path)
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    if size <= _PIECES * _PIECE:
      digest.update(file.read())
    else:
      for i in range(_PIECES):
        file.seek((size - _PIECE) * i // (_PIECES - 1))
        digest.update(file.read(_PIECE))
  return f'{size}:{digest.hexdigest()[:32]}'
