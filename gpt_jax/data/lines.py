# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lines of a file that is plain or, by its name, gzip or zstd.

One rule for all files of text that users give: a line ends at a line feed, and
carriage returns before that are part of its end. A lone carriage return, or
what else Unicode parts lines with, is text. A byte-order mark at the start of a
file is no text. Bytes that are not UTF-8 are refused with file and line.
"""

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import zstandard

from gpt_jax.data.sources.source import Bad, Skip
from gpt_jax.spec import UsageError

COMPRESSED = ('.gz', '.zst', '.zstd')

# The most bytes of a line, decompressed. A line is held as a whole, several
# times over while it becomes a text, and 7 MB of gzip may hold 7 GB of one.
LONGEST = 1 << 26
# The most bytes of a compressed file that is read as a whole.
LARGEST = 1 << 28
# `Bad.kind` of a longer line.
TOO_LONG = f'has more than {LONGEST >> 20} MiB in one line'

# Bytes that are decompressed at once: four of zstd may stand for 128 KiB.
_BLOCK = 1 << 10
_PASSED_OVER = 1 << 20  # bytes of a longer line that are read at once
_LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes
# What reading a file may raise, broken compression included.
_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)


def numbered(path: str, skip: Skip) -> Iterator[tuple[int, bytes]]:
  """Numbers the lines from 1, and yields those that are not blank.

  As `every`.
  """
  for number, line in enumerate(every(path, skip), start=1):
    if line.strip():
      yield number, line


def every(path: str, skip: Skip) -> Iterator[bytes]:
  """Yields all lines, with their ends.

  See `text` for their text. A line of more than `LONGEST` bytes goes to `skip`,
  and b'' stands in its place. A file that breaks off, or that cannot be read at
  all, goes to `skip` as one thing: the lines before have been yielded.
  """
  number = 0
  try:
    with opened(path) as file:
      for line in _limited(path, file, skip):
        number += 1
        yield line
  except _ERRORS as e:
    skip(_unreadable(f'{path}:{number + 1}' if number else path, e))


def texts(path: str) -> Iterator[tuple[str, str]]:
  """Yields 'file:line' and the text of each line, blank ones too."""
  if not os.path.exists(path):
    raise UsageError(f'{path}: no such file; name another')
  for number, line in enumerate(every(path, fail), start=1):
    where = f'{path}:{number}'
    yield where, text(where, line)


def piped() -> Iterator[tuple[str, str]]:
  """As `texts`, of standard input, each line as soon as it comes."""
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
    raise _unreadable(path, e) from e
  if 0 < limit <= len(data):
    most = f'has more than {LARGEST >> 20} MiB, decompressed'
    raise Bad(path, most, '; split the file, or decompress it')
  return data.removeprefix(codecs.BOM_UTF8)


def whole_input() -> str:
  """As `whole`, of standard input, without the line end that ends it."""
  data = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)
  found = decoded('standard input', data)
  return found.removesuffix('\n').removesuffix('\r')


def decoded(
  where: str, data: bytes, remedy: str = 'convert it to UTF-8'
) -> str:
  """Text of UTF-8; `where` and `remedy` are for the error."""
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as e:
    raise Bad(where, 'is not UTF-8', f': byte {e.start}; {remedy}') from e


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


def _unreadable(where: str, error: Exception) -> Bad:
  why = getattr(error, 'strerror', None) or error
  return Bad(where, 'cannot be read', f': {why}; fetch the file again')


def opened(path: str) -> BinaryIO:
  """Opens a file, which is decompressed while it is read."""
  if path.endswith('.gz'):
    return cast(BinaryIO, gzip.open(path, 'rb'))
  if path.endswith(COMPRESSED):
    return cast(BinaryIO, io.BufferedReader(_Zstd(path), 1 << 17))
  return open(path, 'rb')


class _Zstd(io.RawIOBase):
  """A zstd file of any number of frames; one that breaks off is an error.

  The library's own reader takes a file that breaks off for its end.
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
