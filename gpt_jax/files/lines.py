# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text files of users: patterns, compression, lines, JSON.

One rule for all: a line ends at a line feed, and carriage returns before it
belong to the line end. A lone carriage return, or any other line end of
Unicode, is text. A byte-order mark at the start of a file is dropped. Bytes
that are not UTF-8 are refused with file and line. A file is decompressed if its
name ends in .gz, .zst or .zstd.
"""

import codecs
import collections
import errno
import fnmatch
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

import zstandard

from gpt_jax.files.document import Bad, Document, Skip, Unit
from gpt_jax.spec import NoFileError, UsageError

COMPRESSED = ('.gz', '.zst', '.zstd')

# The most bytes of a line, decompressed. A line is held in memory, several
# times over while it becomes a text, and 7 MB of gzip may hold one of 7 GB.
LONGEST = 1 << 26
# The most bytes of a compressed file that is read as a whole.
LARGEST = 1 << 28
# `Bad.kind` of a longer line.
TOO_LONG = f'has more than {LONGEST >> 20} MiB in one line'

# Bytes that are decompressed at once: four of zstd may stand for 128 KiB.
_BLOCK = 1 << 10
_PASSED_OVER = 1 << 20  # bytes of a longer line that are read at once
_LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes
# Errors of reading a file, also of broken compression.
_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)


def numbered(path: str, skip: Skip) -> Iterator[tuple[int, bytes]]:
  """Yields the lines that are not blank, with their numbers; see `every`."""
  for number, line in enumerate(every(path, skip), start=1):
    if line.strip():
      yield number, line


def every(path: str, skip: Skip) -> Iterator[bytes]:
  """Yields all lines, with their ends.

  A line of more than `LONGEST` bytes goes to `skip`, and b'' stands in its
  place. A file that breaks off, or that cannot be read at all, goes to `skip`
  once, after the lines before.
  """
  number = 0
  try:
    with opened(path) as file:
      for line in _limited(path, file, skip):
        number += 1
        yield line
  except _ERRORS as e:
    skip(_lines_unreadable(f'{path}:{number + 1}' if number else path, e))


def texts(path: str) -> Iterator[tuple[str, str]]:
  """Yields 'file:line' and the text of each line, blank ones too."""
  if not os.path.exists(path):
    raise UsageError(f'{path}: no such file; name another')
  for number, line in enumerate(every(path, fail), start=1):
    where = f'{path}:{number}'
    yield where, text(where, line)


def piped() -> Iterator[tuple[str, str]]:
  """Like `texts`, from standard input, each line as soon as it arrives."""
  name = 'standard input'
  found = _limited(name, sys.stdin.buffer, fail)
  for number, line in enumerate(found, start=1):
    where = f'{name}:{number}'
    yield where, text(where, line)


def text(where: str, line: bytes) -> str:
  """The text of a line without its end; `where` is 'file:line'."""
  return decoded(where, line).rstrip('\r\n')


def whole(path: str) -> str:
  """The text of a file as a whole, with its line ends as they are."""
  return decoded(path, contents(path))


def contents(path: str) -> bytes:
  """A file as a whole, without a byte-order mark.

  Raises:
    Bad: it cannot be read, or has more than `LARGEST` bytes, decompressed.
  """
  limit = LARGEST + 1 if path.endswith(COMPRESSED) else -1
  try:
    with opened(path) as file:
      data = file.read(limit)
  except _ERRORS as e:
    raise _lines_unreadable(path, e) from e
  if 0 < limit <= len(data):
    most = f'has more than {LARGEST >> 20} MiB, decompressed'
    raise Bad(path, most, '; split the file, or decompress it')
  return data.removeprefix(codecs.BOM_UTF8)


def whole_input() -> str:
  """Like `whole`, from standard input, without a line end at the end."""
  data = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)
  found = decoded('standard input', data)
  return found.removesuffix('\n').removesuffix('\r')


def decoded(
  where: str, data: bytes, remedy: str = 'convert it to UTF-8'
) -> str:
  """Decodes UTF-8; `where` and `remedy` are for the error."""
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as e:
    raise not_utf8(where, e, remedy) from e


def not_utf8(
  where: str, error: UnicodeDecodeError, remedy: str = 'convert it to UTF-8'
) -> Bad:
  """The error of bytes that are not UTF-8."""
  return Bad(where, 'is not UTF-8', f': byte {error.start}; {remedy}')


def fail(bad: Bad):
  """A `Skip` that skips nothing."""
  raise bad


def _limited(name: str, file: BinaryIO, skip: Skip) -> Iterator[bytes]:
  """The lines of an open file, without a byte-order mark; see `every`."""
  for number, line in enumerate(
    iter(lambda: file.readline(LONGEST + 1), b''), start=1
  ):
    if number == 1:
      line = line.removeprefix(codecs.BOM_UTF8)
    if len(line) <= LONGEST:
      yield line
      continue
    where = f'{name}:{number}'
    skip(Bad(where, TOO_LONG, '; split the line, or leave it out'))
    while line and not line.endswith(b'\n'):
      line = file.readline(_PASSED_OVER)
    yield b''


def _lines_unreadable(where: str, error: Exception) -> Bad:
  why = getattr(error, 'strerror', None) or error
  return Bad(where, 'cannot be read', f': {why}; fetch the file again')


def kind(path: str) -> str:
  """The ending of a file's name, such as '.csv', before one of compression."""
  for end in COMPRESSED:
    path = path.removesuffix(end)
  return os.path.splitext(path)[1]


def opened(path: str) -> BinaryIO:
  """Opens a file for reading, decompressed."""
  if path.endswith('.gz'):
    return cast(BinaryIO, gzip.open(path, 'rb'))
  if path.endswith(COMPRESSED):
    return cast(BinaryIO, io.BufferedReader(_Zstd(path), 1 << 17))
  return open(path, 'rb')


class _Zstd(io.RawIOBase):
  """A zstd file of any number of frames; a truncated one is an error.

  The library's own reader takes a truncated file for a complete one.
  """

  def __init__(self, path: str):
    self._file = open(path, 'rb')  # noqa: SIM115 (see close)
    self._decompressor = zstandard.ZstdDecompressor(
      max_window_size=_LARGEST_WINDOW
    )
    self._frame = None
    self._input, self._output = b'', memoryview(b'')

  def readable(self) -> bool:
    return True

  def readinto(self, buffer) -> int:
    while not self._output:
      self._input = self._input or self._file.read(_BLOCK)
      if not self._input:
        if self._frame is not None:
          raise EOFError('the file ended before its last frame did')
        return 0
      if self._frame is None:
        self._frame = self._decompressor.decompressobj()
      self._output = memoryview(self._frame.decompress(self._input))
      self._input = b''
      if self._frame.eof:
        self._input, self._frame = self._frame.unused_data, None
    count = min(len(buffer), len(self._output))
    buffer[:count] = self._output[:count]
    self._output = self._output[count:]
    return count

  def close(self):
    self._file.close()
    super().close()


# The files that a pattern such as `books/**/*.txt` names. `glob` follows a link
# to a folder above it until the system gives up, and reads each file dozens of
# times: here such a link is an error.

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
    named |= {
      pathlib.Path(os.path.relpath(p, root or '.')).as_posix(): p for p in paths
    }
  for name in named:
    try:
      name.encode()
    except UnicodeEncodeError:
      raise UsageError(
        f'{name!a}: the name of this file is not in UTF-8; rename it'
      ) from None
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


def with_bad(files: Matches, units: Sequence[Unit]) -> Sequence[Unit]:
  """The units of a source, after one that reports the bad links, if any."""

  def tell(skip: Skip) -> Iterator[Document]:
    for bad in files.bad:
      skip(bad)
    return iter(())

  return [Unit(tell), *units] if files.bad else units


def total_size(*files: dict[str, str]) -> int | None:
  """About how many bytes of text files hold; None if any is compressed."""
  paths = [path for found in files for path in found.values()]
  if any(path.endswith(COMPRESSED) for path in paths):
    return None
  return sum(map(os.path.getsize, paths))


def _expand(
  folder: str,
  parts: tuple[str, ...],
  passed: _Passed,
  above: tuple[str, ...] = (),
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
    passed.bad.append(Bad(folder, 'is a link in a circle', '; remove the link'))
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


def _unreadable_match(path: str, error: OSError) -> Bad:
  if error.errno == errno.ELOOP:
    return Bad(path, 'is a link in a circle', '; remove the link')
  if os.path.islink(path):
    return Bad(path, 'is a link that leads nowhere', '; remove the link')
  return Bad(path, 'cannot be read', f': {error.strerror}')


# JSON of users' files.

# Names of an object that a message lists.
_LISTED = 20


def value(where: str, data: bytes, once: Collection[str] | None = None) -> Any:
  """Parses JSON in UTF-8; `Bad` where Python cannot.

  Python also refuses numbers of thousands of digits and values nested a
  thousand deep.

  Args:
    where: 'file:line', for messages.
    data: a line, or a file.
    once: names that no object may have twice, since only the last value would
      be kept; None: no name may.
  """

  def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(found)
    if len(made) < len(found):
      seen = set()
      for name, _ in found:
        if name in seen and (once is None or name in once):
          raise ValueError(f'an object has {name!r:.60} twice')
        seen.add(name)
    return made

  try:
    return json.loads(data.decode('utf-8'), object_pairs_hook=pairs)
  except UnicodeDecodeError as e:
    raise not_utf8(where, e) from e
  except RecursionError as e:
    raise Bad(where, 'is not JSON', ': values within values, too deep') from e
  except ValueError as e:
    # Python's own advice, after the ';', is for programmers.
    why = str(e).partition(';')[0]
    raise Bad(where, 'is not JSON', f': {why}; mend or remove it') from e


def record(where: str, data: bytes) -> Any:
  """Parses JSON all of whose texts are used; refuses half a surrogate pair."""
  found = value(where, data)
  if b'\\u' in data:  # an escape may write half of a surrogate pair
    for text in texts_in(found):
      _check_characters(where, text)
  return found


def texts_in(found: Any) -> Iterator[str]:
  """All texts in a JSON value, in order."""
  left = [found]
  while left:
    part = left.pop()
    if isinstance(part, str):
      yield part
    elif isinstance(part, dict):
      left += reversed(part.values())
    elif isinstance(part, list):
      left += reversed(part)


def entries(
  where: str, line: bytes, fields: Sequence[str], call: str
) -> list[str]:
  """The texts under some fields of a JSON object; `Bad` if they are not there.

  Args:
    where: 'file:line', for messages.
    line: in UTF-8.
    fields: of the object.
    call: an example of how a config names fields, for messages.
  """
  found, wanted = value(where, line, fields), []
  for field in fields:
    if not isinstance(found, dict) or not isinstance(found.get(field), str):
      held = type(found).__name__
      if isinstance(found, dict):
        held = sorted(found)[:_LISTED]
      raise Bad(
        where,
        f'has no text under {field!r}',
        f', it holds {held}; name the entry as in {call}',
      )
    wanted.append(found[field])
    if b'\\u' in line:  # an escape may write half of a surrogate pair
      _check_characters(where, wanted[-1], f' in {field!r}')
  return wanted


def _check_characters(where: str, text: str, place: str = ''):
  """Refuses half of a surrogate pair; `place` is for the message."""
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as e:
    raise Bad(
      where,
      'holds half of a surrogate pair',
      f': {text[e.start]!r}{place} is no character; remove it',
    ) from e
