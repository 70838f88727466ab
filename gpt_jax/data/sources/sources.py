# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources of documents: Python's own source files, text files, JSON lines.

Tables and TensorFlow datasets are in `tables` and `tfds`.
"""

import codecs
import collections
import functools
import logging
import os
import pathlib
import sysconfig
from collections.abc import Callable, Iterator, Sequence

from gpt_jax import spec
from gpt_jax.data import lines, matches
from gpt_jax.data.sources import json_lines, parallel, source
from gpt_jax.data.sources import passages as passages_lib
from gpt_jax.data.sources.source import (
  Bad,
  Document,
  Reader,
  Skip,
  Source,
  Unit,
)
from gpt_jax.data.sources.tables import parquet
from gpt_jax.data.sources.tfds import tfds, tfds_dir
from gpt_jax.ranges import Count
from gpt_jax.spec import Pair, UsageError

log = logging.getLogger('gpt_jax')

# The files of a folder that are read as texts.
_ENDINGS = ('.txt', '.text', '.md', '.markdown', '.rst', '.org', '.tex')

# What one worker reads at once, in bytes; or fewer small files, each of
# which counts for `_OPEN` bytes more.
_UNIT, _OPEN = 1 << 26, 1 << 16


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
    reader = spec.build(field, text, SOURCES)
  except matches.NoFile as e:
    name = spec.parse(field, text)[0].name
    remedy = f'; write {name}({e.instead!r})' if e.instead else ''
    raise UsageError(f'{field}={text!r}: {e}{remedy}') from None
  return source.build(f'{field}={text!r}', reader)


def of_pairs(field: str, text: str) -> bool:
  """Whether a source holds pairs of texts: see `parallel`.

  Args:
    field: where the call stands in the config.
    text: the call; of a mixture, that of `data.mixture.corpus`.
  """
  call = spec.parse(field, text)[0]
  if call.name == 'mixture':
    pair = call.args[0]
    return of_pairs(f'data.sources.{pair.key}', pair.value)
  return call.name in parallel.SOURCES


def stdlib() -> Reader:
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
  return _text_files(matches.Matches(sorted(files.items())))


def text(*patterns: str, on_error: str = 'fail') -> Reader:
  """One document a file, in UTF-8; `**` in a pattern spans folders.

  A folder by itself stands for the files below it whose names end as those of
  texts do, `_ENDINGS`; the log says which. A file that is bad is an error, or
  counted with `on_error='skip'`.
  """
  if not patterns:
    raise UsageError("text(): names no files; write text('books/**/*.txt')")
  return _text_files(matches.find(*map(_in_folder, patterns)), on_error)


def _in_folder(pattern: str) -> str:
  """What is read of a folder; anything else as it is."""
  if not matches.is_folder(pattern):
    return pattern
  inside = f'{pattern.rstrip("/")}/**/*{{{",".join(_ENDINGS)}}}'
  try:
    found = matches.find(inside)
  except matches.NoFile:
    return pattern  # `find` says what its files are
  counts = collections.Counter(os.path.splitext(name)[1] for name in found)
  _tell(
    f'text({pattern!r}): reads the files below this folder that end in '
    + ', '.join(f'{end} ({n})' for end, n in sorted(counts.items()))
  )
  return inside


@functools.cache
def _tell(message: str):
  """Says it once: a source is looked up often."""
  log.info('%s', message)


def jsonl(pattern: str, field: str = 'text', on_error: str = 'fail') -> Reader:
  """One document a line: its text is the entry `field` of a JSON object.

  Files whose name ends in .gz are read through gzip, in .zst through zstd. A
  line that is bad is an error, or counted with `on_error='skip'`.
  """
  files = matches.find(pattern)
  call = "jsonl('glob', field='text')"

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    for number, line in lines.numbered(path, skip):
      try:
        (text,) = json_lines.entries(f'{path}:{number}', line, [field], call)
      except Bad as e:
        skip(e)
        continue
      yield Document(f'{name}:{number}', text)

  units = [Unit(functools.partial(unit, *named)) for named in files.items()]
  units = matches.with_bad(files, units)
  return Reader(units, files, matches.total_size(files), on_error)


def mixture(*calls: Pair) -> Reader:
  """All documents of several sources, one after another, as 'name/document'.

  What `data.mixture` draws from.

  Raises:
    UsageError: some sources hold pairs of texts, and some do not.
  """
  kinds = [of_pairs(f'data.sources.{p.key}', p.value) for p in calls]
  if len({*kinds}) > 1:
    raise UsageError(
      f'data.sources.{calls[kinds.index(True)].key} holds pairs of texts and '
      f'data.sources.{calls[kinds.index(False)].key} does not; a mixture has '
      'sources of one kind'
    )
  read = {
    pair.key: load(f'data.sources.{pair.key}', pair.value) for pair in calls
  }

  def unit(
    name: str, documents: Callable[[], Iterator[Document]], skip: Skip
  ) -> Iterator[Document]:
    del skip  # the sources have their own
    for document in documents():
      yield Document(f'{name}/{document.name}', document.text)

  def stream(skip: Skip) -> Iterator[Document]:
    for name, part in read.items():
      yield from unit(name, part.documents, skip)

  sizes = [part.num_bytes for part in read.values()]
  known = [size for size in sizes if size is not None]
  files = {
    f'{name}/{file}': path
    for name, part in read.items()
    for file, path in part.files.items()
  }
  total = sum(known) if len(known) == len(sizes) else None

  def named(name: str, part: Source) -> dict[str, int]:
    return {f'{name}: {kind}': n for kind, n in part.skipped().items()}

  def skipped() -> dict[str, int]:
    found = {}
    for name, part in read.items():
      found |= named(name, part)
    return found

  units = [
    Unit(
      functools.partial(unit, name, of_part.documents),
      functools.partial(named, name, of_part),
    )
    for name, part in read.items()
    for of_part in part.units
  ]
  return Reader(units, files, total, stream=stream, skipped=skipped)


def passages(documents: str, chars: Count = 1000) -> Reader:
  """Cuts the documents of another source, `passages("text('books/*.txt')")`.

  Each is cut at blank lines into documents of at least `chars` characters (the
  last may have fewer), 'name#1' and on. Whole books hold so few ends of
  documents that the vector of that token is hardly trained, and what follows
  it, as in all evaluation of a text by itself, is scored wrongly.
  """
  if of_pairs('passages', documents):
    raise UsageError(
      f'passages({documents!r}): would cut sides of pairs; name the source of '
      'pairs itself'
    )
  whole = load('passages', documents)

  def unit(part: Source, skip: Skip) -> Iterator[Document]:
    del skip  # the source has its own
    for document in part.documents():
      for number, text in enumerate(
        passages_lib.cut(document.text, chars), start=1
      ):
        yield Document(f'{document.name}#{number}', text)

  units = [
    Unit(functools.partial(unit, part), part.skipped) for part in whole.units
  ]
  return Reader(
    *(units, whole.files, whole.num_bytes),
    stream=functools.partial(unit, whole),
    skipped=whole.skipped,
  )


def _text_files(files: matches.Matches, on_error: str = 'fail') -> Reader:
  def unit(named: Sequence[tuple[str, str]], skip: Skip) -> Iterator[Document]:
    for name, path in named:
      try:
        text = _decode(path)
      except Bad as e:
        skip(e)
        continue
      yield Document(name, text)

  units = [Unit(functools.partial(unit, group)) for group in _groups(files)]
  units = matches.with_bad(files, units)
  return Reader(units, files, matches.total_size(files), on_error)


def _groups(files: dict[str, str]) -> Iterator[list[tuple[str, str]]]:
  """Cuts the files into groups that take about as long to read."""
  group, size = [], 0
  for name, path in files.items():
    group.append((name, path))
    size += os.path.getsize(path) + _OPEN
    if size >= _UNIT:
      yield group
      group, size = [], 0
  if group:
    yield group


def _decode(path: str) -> str:
  # Decoding bytes keeps '\r\n' as it is, where text mode would not. A
  # byte-order mark is no part of the text.
  try:
    data = pathlib.Path(path).read_bytes()
    return data.removeprefix(codecs.BOM_UTF8).decode('utf-8')
  except UnicodeDecodeError as e:
    raise Bad(
      path,
      'is not UTF-8',
      f': byte {e.start} ({e.reason}); convert the file to UTF-8 or leave it '
      'out',
    ) from e
  except OSError as e:
    raise Bad(path, 'cannot be read', f': {e.strerror}') from e


SOURCES = {
  'stdlib': stdlib,
  'text': text,
  'jsonl': jsonl,
  'mixture': mixture,
  'parquet': parquet,
  'passages': passages,
  **parallel.SOURCES,
  'tfds': tfds,
  'tfds_dir': tfds_dir,
}
