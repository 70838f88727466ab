# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files that a pattern such as `books/**/*.txt` names.

`glob` follows a link to a folder above it until the system gives up, and reads
each file dozens of times: here such a link is an error.
"""

import collections
import errno
import fnmatch
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt_jax.core.files.document import Bad, Document, Skip, Stream, unreadable
from gpt_jax.core.files.lines import COMPRESSED
from gpt_jax.core.spec import NoFileError, UsageError

# `Bad.kind` of what a pattern names that is no file.
_CIRCLE, _NOWHERE = 'is a link in a circle', 'is a link that leads nowhere'
_IRREGULAR = 'is not a regular file'
NO_FILES = (_CIRCLE, _NOWHERE, _IRREGULAR)

# Files in a folder whose endings are looked at.
_LOOKED_AT = 10_000

_MAGIC = re.compile(r'[*?\[{]')
_BRACES = re.compile(r'\{([^{}]*,[^{}]*)\}')


class Matches(dict[str, str]):
  """Name -> path, sorted by name."""

  bad: Sequence[Bad] = ()  # links that lead nowhere or in a circle
  # What wildcards passed over: what is hidden, and folders whose files none of
  # the patterns reads.
  hidden: Sequence[str] = ()
  folders: Sequence[str] = ()


class _Passed(NamedTuple):
  """What `_expand` comes across that is no file to read."""

  bad: list[Bad]
  hidden: set[str]
  folders: set[str]


def find(*patterns: str) -> Matches:
  """Finds the files of patterns, as `glob` does: `**` spans folders.

  Braces are expanded: `*.{md,txt}`. A file or folder that exists stands for
  itself, whatever its name: `odd[1]/a.txt`.

  Names are relative to the part of the pattern without wildcards, so that they
  do not depend on where the corpus lies; with several patterns, to the folder
  that these parts have in common.

  Raises:
    NoFileError: one of the patterns matches none.
  """
  expanded = [os.path.expanduser(pattern) for pattern in patterns]
  roots = [_root(pattern) for pattern in expanded]
  root = roots[0]
  if len({*roots}) > 1:
    root = os.path.commonpath([*map(os.path.abspath, roots)])
  passed = _Passed([], set(), set())
  named: dict[str, str] = {}
  for pattern, path in zip(patterns, expanded, strict=True):
    # Through a link, a pattern with two wildcards may give a path twice.
    paths = {p for part in _parts(path) for p in _expand('', part, passed)}
    if not paths and not passed.bad:
      raise _none(pattern, path)
    named |= {pathlib.Path(os.path.relpath(p, root or '.')).as_posix(): p for p in paths}
  for name in named:
    try:
      name.encode()
    except UnicodeEncodeError:
      raise UsageError(f'{name!a}: the name of this file is not in UTF-8; rename it') from None
  found = Matches(sorted(named.items()))
  found.bad = sorted({str(b): b for b in passed.bad}.values(), key=str)
  found.hidden = sorted(passed.hidden)
  if not any('**' in pattern for pattern in patterns):
    found.folders = sorted(passed.folders)
  return found


def is_folder(pattern: str) -> bool:
  """Whether a pattern is the path of a folder."""
  return os.path.isdir(os.path.expanduser(pattern))


def _none(pattern: str, path: str) -> NoFileError:
  if os.path.isdir(path):
    instead = f'{pattern.rstrip("/")}/**/*{_usual_ending(path)}'
    return NoFileError(f'{pattern!r} is a folder', instead)
  return NoFileError(f'no file matches {pattern!r}; check the path')


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
  """The parts of a path, for each of the alternatives in braces."""
  found = _BRACES.search(pattern)
  if found is None or os.path.lexists(pattern):
    yield pathlib.PurePath(pattern).parts
    return
  for part in found[1].split(','):
    yield from _parts(pattern[: found.start()] + part + pattern[found.end() :])


def _usual_ending(folder: str) -> str:
  """The most common ending of the first files below a folder."""
  walked = (name for _, _, names in os.walk(folder) for name in names)
  endings = collections.Counter(
    os.path.splitext(name)[1]
    for name in itertools.islice(walked, _LOOKED_AT)
    if not name.startswith('.')
  )
  return endings.most_common(1)[0][0] if endings else '.txt'


def with_bad(files: Matches, units: Sequence[Stream]) -> Sequence[Stream]:
  """The units of a source, after one that reports the bad links, if any."""

  def tell(skip: Skip) -> Iterator[Document]:
    for bad in files.bad:
      skip(bad)
    return iter(())

  return [tell, *units] if files.bad else units


def total_size(*files: dict[str, str]) -> int | None:
  """About how many bytes of text files hold; None if any is compressed."""
  paths = [path for found in files for path in found.values()]
  if any(path.endswith(COMPRESSED) for path in paths):
    return None
  return sum(map(size, paths))


def size(path: str) -> int:
  """The bytes of a file; 0 if it has just vanished, which reading reports."""
  try:
    return os.path.getsize(path)
  except OSError:
    return 0


def _expand(
  folder: str, parts: tuple[str, ...], passed: _Passed, above: tuple[str, ...] = ()
) -> Iterator[str]:
  """Yields the files below `folder`; `above` are the real folders so far."""
  if not parts:
    yield from _file(folder, passed)
    return
  head, rest = parts[0], parts[1:]
  path = os.path.join(folder, head)
  if os.path.lexists(path):
    yield from _expand(path, rest, passed, above)
    return
  if not _MAGIC.search(head):
    return
  try:
    real = os.path.realpath(folder or '.', strict=True)
    names = sorted(os.listdir(folder or '.'))
  except (NotADirectoryError, FileNotFoundError):
    return
  except OSError as e:
    passed.bad.append(_unreadable_match(folder, e))
    return
  if real in above:
    passed.bad.append(Bad(folder, _CIRCLE, '; remove the link'))
    return
  recursive = head == '**'
  if recursive:
    yield from _expand(folder, rest or ('*',), passed, above)
    head = '*'
  for name in fnmatch.filter(names, head):
    path = os.path.join(folder, name)
    if name.startswith('.') and not head.startswith('.'):
      # On the way to what the rest names, a folder is all that is passed over.
      if os.path.isdir(path) if recursive else not rest:
        passed.hidden.add(path)
      continue
    if not recursive:
      yield from _expand(path, rest, passed, above)
    elif os.path.isdir(path):
      yield from _expand(path, parts, passed, (*above, real))


def _file(path: str, passed: _Passed) -> Iterator[str]:
  try:
    os.stat(path)
  except OSError as e:
    passed.bad.append(_unreadable_match(path, e))
    return
  if os.path.isfile(path):
    yield path
  elif os.path.isdir(path):
    passed.folders.add(path)
  else:  # a pipe without a writer would be waited for
    remedy = '; remove it, or copy what it holds'
    passed.bad.append(Bad(path, _IRREGULAR, remedy))


def _unreadable_match(path: str, error: OSError) -> Bad:
  if error.errno == errno.ELOOP:
    return Bad(path, _CIRCLE, '; remove the link')
  if os.path.islink(path):
    return Bad(path, _NOWHERE, '; remove the link')
  return unreadable(path, error)
