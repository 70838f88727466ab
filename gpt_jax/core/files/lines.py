# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text files of users: compression, lines, JSON.

One rule for all: a line ends at a line feed, and carriage returns before it
belong to the line end. A lone carriage return, or any other line end of
Unicode, is text. A byte-order mark at the start of a file is dropped. Bytes
that are not UTF-8 are refused with file and line. A file is decompressed if its
name ends in .gz, .zst or .zstd.
"""

import codecs
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, BinaryIO, cast

import zstandard

from gpt_jax.core.files.document import Bad, OnBad, Skip, unreadable
from gpt_jax.core.spec import UsageError

COMPRESSED = ('.gz', '.zst', '.zstd')
_OTHERWISE_COMPRESSED = ('.xz', '.bz2', '.lzma', '.lz4', '.br', '.zip', '.7z')

# The most bytes of a line, decompressed. A line is held in memory, several
# times over while it becomes a text, and 7 MB of gzip may hold one of 7 GB.
LONGEST = 1 << 26
# The most bytes of a compressed file that is read as a whole.
LARGEST = 1 << 28
# `Bad.kind` of a longer line.
TOO_LONG = f'has more than {LONGEST >> 20} MiB in one line'

_LOOKED_AT_BYTES = 1 << 20  # of a file, before long work
# Bytes that are decompressed at once: four of zstd may stand for 128 KiB.
_BLOCK = 1 << 10
_PASSED_OVER = 1 << 20  # bytes of a longer line that are read at once
_LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes
# Errors of reading a file, also of broken compression.
_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)


def numbered(path: str, skip: OnBad) -> Iterator[tuple[int, bytes]]:
  """Yields the lines that are not blank, with their numbers; see `every`."""
  for number, line in enumerate(every(path, skip), start=1):
    if line.strip():
      yield number, line


def every(path: str, skip: OnBad) -> Generator[bytes]:
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
    skip(unreadable(f'{path}:{number + 1}' if number else path, e))
  except _UnknownCompressionError as e:
    skip(e)


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
    raise unreadable(path, e) from e
  if 0 < limit <= len(data):
    most = f'has more than {LARGEST >> 20} MiB, decompressed'
    raise Bad(path, most, '; split the file, or decompress it')
  return data.removeprefix(codecs.BOM_UTF8)


def whole_input() -> str:
  """Like `whole`, from standard input, without a line end at the end."""
  data = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)
  found = decoded('standard input', data)
  return found.removesuffix('\n').removesuffix('\r')


def decoded(where: str, data: bytes, remedy: str = 'convert it to UTF-8') -> str:
  """Decodes UTF-8; `where` and `remedy` are for the error."""
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as e:
    raise not_utf8(where, e, remedy) from e


def not_utf8(where: str, error: UnicodeDecodeError, remedy: str = 'convert it to UTF-8') -> Bad:
  """The error of bytes that are not UTF-8."""
  return Bad(where, 'is not UTF-8', f': byte {error.start}; {remedy}')


# Skips nothing.
fail = Skip()


def _limited(name: str, file: BinaryIO, skip: OnBad) -> Iterator[bytes]:
  """The lines of an open file, without a byte-order mark; see `every`."""
  for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b''), start=1):
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


def kind(path: str) -> str:
  """The ending of a file's name, such as '.csv', before one of compression."""
  for end in COMPRESSED:
    path = path.removesuffix(end)
  return os.path.splitext(path)[1]


def look(path: str) -> None:
  """Reads the beginning of a text file; `Bad` if that is not UTF-8."""
  try:
    with opened(path) as file:
      data = file.read(_LOOKED_AT_BYTES)
  except _ERRORS as e:
    raise unreadable(path, e) from e
  # A character may be cut at the end of what was read.
  decoder = codecs.getincrementaldecoder('utf-8')()
  try:
    decoder.decode(data, final=len(data) < _LOOKED_AT_BYTES)
  except UnicodeDecodeError as e:
    before = data[: e.start]
    number = before.count(b'\n') + 1
    line = data[before.rfind(b'\n') + 1 :].partition(b'\n')[0]
    text(f'{path}:{number}', line)  # which raises


class _UnknownCompressionError(Bad):
  """A file is compressed in a way that we do not read."""


def opened(path: str) -> BinaryIO:
  """Opens a file for reading, decompressed."""
  if path.endswith(_OTHERWISE_COMPRESSED):
    raise _UnknownCompressionError(
      path,
      'is compressed in a way that is not read',
      f'; decompress it, or compress it as {" or ".join(COMPRESSED[:2])}',
    )
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
    self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
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
    raise Bad(where, 'is not JSON', ': values within values, too deep; remove it') from e
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


def entries(where: str, line: bytes, fields: Sequence[str], call: str) -> list[str]:
  """The texts under some fields of a JSON object; `Bad` if they are not there.

  Args:
    where: 'file:line', for messages.
    line: in UTF-8.
    call: an example of how a config names fields, for messages.
  """
  found, wanted = value(where, line, fields), []
  for field in fields:
    if not isinstance(found, dict) or not isinstance(found.get(field), str):
      held = type(found).__name__
      if isinstance(found, dict):
        held = sorted(found)[:_LISTED]
      raise Bad(
        where, f'has no text under {field!r}', f', it holds {held}; name the entry as in {call}'
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
