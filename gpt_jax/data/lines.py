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
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import zstandard

from gpt_jax.data.sources.source import Bad, Skip
from gpt_jax.spec import UsageError

COMPRESSED = ('.gz', '.zst', '.zstd')

# Small enough that a block of nothing but zeros does not fill the memory.
_BLOCK = 1 << 16
_LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes


def numbered(path: str, skip: Skip) -> Iterator[tuple[int, bytes]]:
  """Numbers the lines from 1, and yields those that are not blank.

  As `every`.
  """
  for number, line in enumerate(every(path, skip), start=1):
    if line.strip():
      yield number, line


def every(path: str, skip: Skip) -> Iterator[bytes]:
  """Yields all lines, with their ends.

  See `text` for their text. A file that breaks off, or that cannot be read at
  all, goes to `skip` as one thing: the lines before have been yielded.
  """
  number = 0
  try:
    with opened(path) as file:
      for line in _unmarked(file):
        number += 1
        yield line
  except (OSError, EOFError, zlib.error, zstandard.ZstdError) as e:
    where = f'{path}:{number + 1}' if number else path
    why = getattr(e, 'strerror', None) or e
    skip(Bad(where, 'cannot be read', f': {why}; fetch the file again'))


def texts(path: str) -> Iterator[tuple[str, str]]:
  """Yields 'file:line' and the text of each line, blank ones too."""
  if not os.path.exists(path):
    raise UsageError(f'{path}: no such file; name another')

  def fail(bad: Bad):
    raise bad

  for number, line in enumerate(every(path, fail), start=1):
    where = f'{path}:{number}'
    yield where, text(where, line)


def piped() -> Iterator[tuple[str, str]]:
  """As `texts`, of standard input, each line as soon as it comes."""
  for number, line in enumerate(_unmarked(sys.stdin.buffer), start=1):
    where = f'standard input:{number}'
    yield where, text(where, line)


def text(where: str, line: bytes) -> str:
  """The text of a line without its end; `where` is 'file:line'."""
  return decoded(where, line).rstrip('\r\n')


def whole(path: str) -> str:
  """The text of a file as a whole, with its line ends as they are."""
  with opened(path) as file:
    return decoded(path, file.read().removeprefix(codecs.BOM_UTF8))


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


def _unmarked(lines: Iterable[bytes]) -> Iterator[bytes]:
  """Drops a byte-order mark from the first line."""
  for number, line in enumerate(lines):
    yield line if number else line.removeprefix(codecs.BOM_UTF8)


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
    self._input = self._output = b''

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
      self._output = self._frame.decompress(self._input)
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
