# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which files a pattern such as `books/**/*.txt` names.

`glob` follows a link that leads back to a folder above it until the system
gives up, and reads each file dozens of times: here that is an error.
"""

import collections
import errno
import fnmatch
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from gpt_jax.data import lines
from gpt_jax.data.sources.source import Bad, Document, Skip, Unit

# Files in a folder whose endings are looked at.
_LOOKED_AT = 10_000

_MAGIC = re.compile(r'[*?\[{]')
_BRACES = re.compile(r'\{([^{}]*,[^{}]*)\}')


class NoFile(ValueError):
  """No file matches.

  Attributes:
    instead: a pattern that names files, where a folder was named; else ''.
  """

  def __init__(self, text: str, instead: str = ''):
    super().__init__(text)
    self.instead = instead


class Matches(dict[str, str]):
  """Name -> path, sorted by name.

  Attributes:
    bad: links that lead nowhere or in a circle.
  """

  bad: Sequence[Bad] = ()


def find(*patterns: str) -> Matches:
  """Finds the files of patterns, as `glob` does: `**` spans folders.

  Of braces each part is tried: `*.{md,txt}`. A file or folder that is there is
  itself, whatever its name: `odd[1]/a.txt`.

  Names are relative to the part of the pattern without wildcards, so that they
  do not depend on where the corpus lies; of several patterns, to the folder
  that all these have in common.

  Raises:
    NoFile: there is none for one of the patterns.
  """
  expanded = [os.path.expanduser(pattern) for pattern in patterns]
  roots = [_root(pattern) for pattern in expanded]
  root = roots[0]
  if len({*roots}) > 1:
    root = os.path.commonpath([*map(os.path.abspath, roots)])
  bad: list[Bad] = []
  named: dict[str, str] = {}
  for pattern, path in zip(patterns, expanded, strict=True):
    # With a link through two wildcards a path may come twice.
    paths = {found for part in _parts(path) for found in _expand('', part, bad)}
    if not paths and not bad:
      raise _none(pattern, path)
    named |= {
      pathlib.Path(os.path.relpath(p, root or '.')).as_posix(): p for p in paths
    }
  found = Matches(sorted(named.items()))
  found.bad = sorted({str(b): b for b in bad}.values(), key=str)
  return found


def is_folder(pattern: str) -> bool:
  """Whether it names a folder by itself."""
  return os.path.isdir(os.path.expanduser(pattern))


def _none(pattern: str, path: str) -> NoFile:
  if os.path.isdir(path):
    instead = f'{pattern.rstrip("/")}/**/*{_usual_ending(path)}'
    return NoFile(f'{pattern!r} is a folder', instead)
  return NoFile(f'no file matches {pattern!r}; check the path')


def _root(pattern: str) -> str:
  """The folder that the parts without wildcards name."""
  root = ''
  for part in pathlib.PurePath(pattern).parts[:-1]:
    path = os.path.join(root, part)
    if _MAGIC.search(part) and not os.path.lexists(path):
      break
    root = path
  return root


def _parts(pattern: str) -> Iterator[tuple[str, ...]]:
  """The parts of a path, of braces each in turn."""
  found = _BRACES.search(pattern)
  if found is None or os.path.lexists(pattern):
    yield pathlib.PurePath(pattern).parts
    return
  for part in found[1].split(','):
    yield from _parts(pattern[: found.start()] + part + pattern[found.end() :])


def _usual_ending(folder: str) -> str:
  """The ending that most of the first files below a folder have."""
  walked = (name for _, _, names in os.walk(folder) for name in names)
  endings = collections.Counter(
    os.path.splitext(name)[1]
    for name in itertools.islice(walked, _LOOKED_AT)
    if not name.startswith('.')
  )
  return endings.most_common(1)[0][0] if endings else '.txt'


def with_bad(files: Matches, units: Sequence[Unit]) -> Sequence[Unit]:
  """The units of a source, after one that tells of the bad links, if any."""

  def tell(skip: Skip) -> Iterator[Document]:
    for bad in files.bad:
      skip(bad)
    return iter(())

  return [Unit(tell), *units] if files.bad else units


def total_size(*files: dict[str, str]) -> int | None:
  """About how many bytes of text they hold; None where they are compressed."""
  paths = [path for found in files for path in found.values()]
  if any(path.endswith(lines.COMPRESSED) for path in paths):
    return None
  return sum(map(os.path.getsize, paths))


def _expand(
  folder: str,
  parts: tuple[str, ...],
  bad: list[Bad],
  above: tuple[str, ...] = (),
) -> Iterator[str]:
  """Yields the files below `folder`; `above` are the real folders so far."""
  if not parts:
    yield from _file(folder, bad)
    return
  head, rest = parts[0], parts[1:]
  path = os.path.join(folder, head)
  if os.path.lexists(path):
    yield from _expand(path, rest, bad, above)
    return
  if not _MAGIC.search(head):
    return
  try:
    real = os.path.realpath(folder or '.', strict=True)
    names = sorted(os.listdir(folder or '.'))
  except (NotADirectoryError, FileNotFoundError):
    return
  except OSError as e:
    bad.append(_unreadable(folder, e))
    return
  if real in above:
    bad.append(Bad(folder, 'is a link in a circle', '; remove the link'))
    return
  recursive = head == '**'
  if recursive:
    yield from _expand(folder, rest or ('*',), bad, above)
    head = '*'
  for name in fnmatch.filter(names, head):
    path = os.path.join(folder, name)
    if name.startswith('.') and not head.startswith('.'):
      continue
    if not recursive:
      yield from _expand(path, rest, bad, above)
    elif os.path.isdir(path):
      yield from _expand(path, parts, bad, (*above, real))


def _file(path: str, bad: list[Bad]) -> Iterator[str]:
  try:
    os.stat(path)
  except OSError as e:
    bad.append(_unreadable(path, e))
    return
  if os.path.isfile(path):
    yield path


def _unreadable(path: str, error: OSError) -> Bad:
  if error.errno == errno.ELOOP:
    return Bad(path, 'is a link in a circle', '; remove the link')
  if os.path.islink(path):
    return Bad(path, 'is a link that leads nowhere', '; remove the link')
  return Bad(path, 'cannot be read', f': {error.strerror}')
