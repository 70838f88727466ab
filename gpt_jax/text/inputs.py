# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a token store was made from, so that a changed input is noticed.

D/inputs.json maps each file to its size and a hash of samples of its contents:
a look at a corpus of any size takes little time, and a copy of it elsewhere, or
of another age, is the same. What was prepared is hashed as a whole besides
(`source_sha256` in the manifest).
"""

import hashlib
import json
import os
from collections.abc import Mapping

from gpt_jax.files import files

NAME = 'inputs.json'

# The number of pieces of a file, spread evenly, and the bytes of each.
_PIECES, _PIECE = 16, 1 << 16

_SHOWN = 3


def look(paths: Mapping[str, str]) -> dict[str, str]:
  """Returns name -> 'size:hash' of files that exist."""
  return {
    name: _sample(path) for name, path in paths.items() if os.path.isfile(path)
  }


def names_hash(paths: Mapping[str, str]) -> str:
  """One hash of the names of all files."""
  return hashlib.sha256('\0'.join(sorted(paths)).encode()).hexdigest()


def write(folder: str, found: Mapping[str, str]):
  """Writes what `look` found into a token store."""
  data = json.dumps(found, indent=0, sort_keys=True).encode() + b'\n'
  files.write(folder, NAME, data)


def changes(folder: str, paths: Mapping[str, str]) -> str:
  """Tells which files differ from those that the store was made from.

  Args:
    folder: of the token store.
    paths: name -> path, as they are now; none of them need be there, since a
      store may be used where its corpus is not.

  Returns:
    A text that names some; '' if there are none or nothing is known of it.
  """
  data = files.read(folder, NAME)
  now = look(paths)
  if data is None or not now:
    return ''
  before = files.parse(
    data,
    files.join(folder, NAME),
    remedy='remove it (whether the corpus has changed is then not known), or '
    'prepare the data again',
  )
  told = {
    'changed': sorted(n for n in before.keys() & now if before[n] != now[n]),
    'added': sorted(now.keys() - before.keys()),
    'removed': sorted(before.keys() - now.keys()),
  }
  return '; '.join(
    f'{len(names)} {what}: '
    + ', '.join(names[:_SHOWN] + ['...'][: len(names) > _SHOWN])
    for what, names in told.items()
    if names
  )


def _sample(path: str) -> str:
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
