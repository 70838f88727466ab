# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources of documents: Python's own source files, text files, JSON lines.

A source is read as a stream and may be read several times, always in the same
order. Documents without any text are left out.
"""

import glob
import gzip
import json
import os
import pathlib
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpt_jax import spec
from gpt_jax.spec import UsageError


class Document(NamedTuple):
  """A named text; within a source no two documents have the same name."""

  name: str
  text: str


class Source(NamedTuple):
  """A stream of documents that may be read again.

  Attributes:
    documents: starts the stream.
    num_bytes: about how much text it is; None where files are compressed.
  """

  documents: Callable[[], Iterator[Document]]
  num_bytes: int | None


def documents(field: str, text: str) -> Iterator[Document]:
  """Streams the documents of a source call such as `text('books/*.txt')`.

  Args:
    field: where the call stands in the config, for error messages.
    text: a call of one of `SOURCES`.

  Raises:
    UsageError: the call, a file or a line is not as it must be, or there is
      no document.
  """
  return load(field, text).documents()


def load(field: str, text: str) -> Source:
  """Looks a source up without reading any document; errors as `documents`."""
  try:
    source = spec.build(field, text, SOURCES)
  except _NoFile as e:
    raise UsageError(f'{field}={text!r}: {e}') from None
  return source._replace(documents=_require_text(field, text, source))


def stdlib() -> Source:
  """The standard library of the running Python, without its tests."""
  root = sysconfig.get_path('stdlib')
  skipped = {
    *('test', 'tests', 'idle_test', '__pycache__'),
    *('site-packages', 'dist-packages'),
  }
  built = ('_sysconfigdata', 'config-')  # they differ between machines
  files = {}
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = [s for s in subfolders if s not in skipped]
    for name in names:
      path = os.path.join(folder, name)
      relative = pathlib.Path(os.path.relpath(path, root)).as_posix()
      if name.endswith('.py') and not relative.startswith(built):
        files[relative] = path
  return _text_files(files)


def text(pattern: str) -> Source:
  """One document a file, in UTF-8; `**` in the pattern spans folders."""
  return _text_files(_matches(pattern))


def jsonl(pattern: str, field: str = 'text') -> Source:
  """One document a line: its text is the entry `field` of a JSON object.

  Files whose name ends in .gz are read through gzip.
  """
  files = _matches(pattern)

  def stream() -> Iterator[Document]:
    for name, path in files.items():
      for number, line in _lines(path):
        yield Document(f'{name}:{number}', _entry(path, number, line, field))

  return Source(stream, _total_size(files))


class _NoFile(ValueError):
  pass


def _require_text(
  field: str, text: str, source: Source
) -> Callable[[], Iterator[Document]]:
  def stream() -> Iterator[Document]:
    num_documents = 0
    for document in source.documents():
      if document.text:
        num_documents += 1
        yield document
    if not num_documents:
      raise UsageError(
        f'{field}={text!r}: its files hold no text; name other files'
      )

  return stream


def _matches(pattern: str) -> dict[str, str]:
  """Maps the name of each file of the pattern to its path, sorted by name.

  Names are relative to the part of the pattern without wildcards, so that they
  do not depend on where the corpus lies.
  """
  expanded = os.path.expanduser(pattern)
  paths = [p for p in glob.glob(expanded, recursive=True) if os.path.isfile(p)]
  if not paths:
    raise _NoFile(f'no file matches {pattern!r}; check the path')
  root = os.path.dirname(re.split(r'[*?\[]', expanded)[0])
  named = {
    pathlib.Path(os.path.relpath(p, root or '.')).as_posix(): p for p in paths
  }
  return dict(sorted(named.items()))


def _total_size(files: dict[str, str]) -> int | None:
  if any(path.endswith('.gz') for path in files.values()):
    return None
  return sum(os.path.getsize(path) for path in files.values())


def _text_files(files: dict[str, str]) -> Source:
  def stream() -> Iterator[Document]:
    for name, path in sorted(files.items()):
      yield Document(name, _decode(path))

  return Source(stream, _total_size(files))


def _decode(path: str) -> str:
  # Decoding bytes keeps '\r\n' as it is, where text mode would not.
  try:
    return pathlib.Path(path).read_bytes().decode('utf-8')
  except UnicodeDecodeError as e:
    raise UsageError(
      f'{path}: byte {e.start} is not UTF-8 ({e.reason}); convert the file '
      'to UTF-8 or leave it out'
    ) from e
  except OSError as e:
    raise UsageError(f'{path}: cannot be read: {e.strerror}') from e


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
  """Numbers the lines that are not blank, from 1."""
  opener = gzip.open if path.endswith('.gz') else open
  try:
    with opener(path, 'rb') as file:
      for number, line in enumerate(file, start=1):
        if line.strip():
          yield number, line
  except (OSError, EOFError, zlib.error) as e:
    raise UsageError(f'{path}: cannot be read: {e}; fetch it again') from e


def _entry(path: str, number: int, line: bytes, field: str) -> str:
  """Returns the text of one JSON line."""
  where = f'{path}:{number}'
  try:
    value = json.loads(line.decode('utf-8'))
  except UnicodeDecodeError as e:
    raise UsageError(f'{where}: byte {e.start} is not UTF-8') from e
  except json.JSONDecodeError as e:
    raise UsageError(f'{where}: is not JSON: {e}') from e
  if not isinstance(value, dict) or not isinstance(value.get(field), str):
    held = sorted(value) if isinstance(value, dict) else type(value).__name__
    raise UsageError(
      f'{where}: has no text under {field!r}, it holds {held}; name the '
      "entry as in jsonl('glob', field='text')"
    )
  text = value[field]
  if b'\\u' in line:  # an escape may write half of a surrogate pair
    try:
      text.encode('utf-8')
    except UnicodeEncodeError as e:
      raise UsageError(
        f'{where}: {field!r} holds {text[e.start]!r}, half of a surrogate '
        'pair, which is no character; remove it'
      ) from e
  return text


SOURCES = {'stdlib': stdlib, 'text': text, 'jsonl': jsonl}
