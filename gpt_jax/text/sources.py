# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources of documents: text files, JSON lines, Parquet, and joins of them.

`SOURCES` at the foot lists the choices of `data.source`; pairs of texts are in
`pairs`, TensorFlow datasets in `files.tfds`.
"""

import collections
import functools
import logging
import os
import pathlib
import re
import sysconfig
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from gpt_jax import spec
from gpt_jax.files import lines
from gpt_jax.files.document import (
  Bad,
  Document,
  OnError,
  Reader,
  Skip,
  Source,
  Unit,
  build,
)
from gpt_jax.files.tfds import tfds, tfds_dir
from gpt_jax.ranges import Count
from gpt_jax.spec import NoFileError, Pair, UsageError, optional
from gpt_jax.text import pairs

# The most rows of Parquet decoded at once, and about the most bytes. The reader
# also holds a row group, compressed.
_ROWS, _HELD = 256, 1 << 27

# Arrow's types of texts, which files may also declare as bytes.
_TEXTS = {
  f'{size}{kind}' for kind in ('string', 'binary') for size in ('', 'large_')
} | {'string_view', 'binary_view'}


def parquet(
  pattern: str, column: str = 'text', on_error: OnError = 'fail'
) -> Reader:
  """One document a row: its text is the entry of `column`.

  A column inside another is named as in 'meta.text', like one whose name has a
  dot. Empty entries hold no text; a bad file or entry is an error, or counted
  with `on_error='skip'`. Needs the extra `tfds`.
  """
  tables = optional('pyarrow.parquet', 'parquet(...) needs pyarrow', 'tfds')
  files = _found(f'parquet({pattern!r})', pattern)

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    try:
      for number, value in enumerate(_values(tables, path, column)):
        try:
          text = _text(f'{path}:{number}', value)
        except Bad as e:
          skip(e)
          continue
        yield Document(f'{name}:{number}', text)
    except Bad as e:
      skip(e)
    except (OSError, ValueError, NotImplementedError) as e:  # pyarrow's
      why = str(e).partition('\n')[0]
      skip(Bad(path, 'cannot be read', f': {why}; fetch the file again'))

  units = [Unit(functools.partial(unit, *named)) for named in files.items()]
  return Reader(lines.with_bad(files, units), files, None, on_error)


def _values(tables: Any, path: str, column: str) -> Iterator[Any]:
  """Yields the entries of a column: str, bytes or None."""
  try:
    top, *inner = _column_path(path, tables.read_schema(path), column)
    # A text that many rows share is held once.
    opened = tables.ParquetFile(path, read_dictionary=[column])
  except Bad:
    raise
  except ValueError as e:  # ArrowInvalid
    why = str(e).partition('\n')[0]
    raise Bad(path, 'is not a Parquet file', f': {why}') from e
  with opened as file:
    leaves = [file.schema.column(i).path for i in range(len(file.schema))]
    number = leaves.index(column)
    for group in range(file.num_row_groups):
      held = file.metadata.row_group(group)
      size = held.column(number).total_uncompressed_size
      rows = held.num_rows * _HELD // max(size, 1)
      for batch in file.iter_batches(
        batch_size=min(max(rows, 1), _ROWS),
        row_groups=[group],
        columns=[column],
      ):
        values = batch.column(batch.schema.get_field_index(top))
        for name in inner:
          values = values.field(name)
        for i in range(len(values)):
          yield values[i]


def _column_path(path: str, schema: Any, column: str) -> list[str]:
  """The names that lead to a column of texts, from the outermost."""
  found = [*_leaves(schema)]
  named = [(names, kind) for names, kind in found if '.'.join(names) == column]
  if len(named) == 1 and _holds_texts(named[0][1]):
    return named[0][0]
  several = f', {len(named)} of them' * (len(named) > 1)
  held = ', '.join(f'{".".join(names)} ({kind})' for names, kind in found)
  raise Bad(
    path,
    f'has no column of texts {column!r}',
    f'{several}, it holds {held}; name one of texts as in '
    "parquet('glob', column='text'); lists of texts are to be joined before",
  )


def _leaves(fields: Any) -> Iterator[tuple[list[str], Any]]:
  """All columns that hold no others: their names from the outermost, and type.

  A list is one column, whatever it holds.
  """
  for field in fields:
    if str(field.type).startswith('struct<'):
      for names, kind in _leaves(field.type):
        yield [field.name, *names], kind
    else:
      yield [field.name], field.type


def _holds_texts(kind: Any) -> bool:
  kind = str(getattr(kind, 'storage_type', kind))
  return kind.removeprefix('dictionary<values=').partition(',')[0] in _TEXTS


def _text(where: str, value: Any) -> str:
  """The text of an Arrow scalar; '' for an empty entry."""
  try:
    text = value.as_py() or ''
  except UnicodeDecodeError as e:
    raise lines.not_utf8(where, e) from e
  if len(text) > lines.LONGEST:
    raise Bad(where, lines.TOO_LONG, '; split the text, or leave it out')
  return lines.decoded(where, text) if isinstance(text, bytes) else text


_BLANK_LINES = re.compile(r'\r?\n\s*\n')
_NUMBERS = re.compile(r'(?:#\d+)+$')


def parents(
  field: str, text: str, *, cleaned: bool = False
) -> Callable[[str], str]:
  """Maps the name of a document to that of the document it was cut from.

  Where documents may have been cut, the parent's name lacks the numbers at the
  end: that of 'book.txt#7' and of 'book.txt#7#0' is 'book.txt'. Elsewhere each
  document is its own parent.

  Args:
    field: the config's field that has the call.
    text: the call of a source.
    cleaned: whether `data.clean` was applied, which may cut any document.
  """
  call = spec.parse(field, text)[0]
  if cleaned or call.name == 'passages':
    return _without_numbers
  if call.name != 'mixture':
    return lambda name: name
  within = {
    pair.key: parents(f'data.sources.{pair.key}', pair.value)
    for pair in call.args
  }

  def parent(name: str) -> str:
    source, slash, rest = name.partition('/')
    return source + slash + within[source](rest)

  return parent


def _without_numbers(name: str) -> str:
  return _NUMBERS.sub('', name)


def cut(text: str, chars: int) -> Iterator[str]:
  """Cuts a text at the first blank line after each `chars` characters."""
  start = 0
  for blank in _BLANK_LINES.finditer(text):
    if blank.start() - start >= chars:
      yield text[start : blank.start()]
      start = blank.end()
  if start < len(text):
    yield text[start:]


log = logging.getLogger('gpt_jax')

# The files of a folder that are read as texts.
_ENDINGS = ('.txt', '.text', '.md', '.markdown', '.rst', '.org', '.tex')

_SHOWN = 7  # the most paths, or endings, that a line of the log names

# Bytes that one worker reads at once; each file counts for `_OPEN` bytes more.
_UNIT, _OPEN = 1 << 26, 1 << 16


def documents(field: str, text: str) -> Iterator[Document]:
  """Streams the documents of a call of `SOURCES`, which stands in `field`."""
  return load(field, text).documents()


def load(field: str, text: str) -> Source:
  """Builds a source without reading any document."""
  try:
    reader = spec.build(field, text, SOURCES)
  except NoFileError as e:
    name = spec.parse(field, text)[0].name
    remedy = f'; write {name}({e.instead!r})' if e.instead else ''
    raise UsageError(f'{field}={text!r}: {e}{remedy}') from None
  return build(f'{field}={text!r}', reader)


def of_pairs(field: str, text: str) -> bool:
  """Whether a source, or the first of a mixture, holds pairs of texts."""
  call = spec.parse(field, text)[0]
  if call.name == 'mixture':
    pair = call.args[0]
    return of_pairs(f'data.sources.{pair.key}', pair.value)
  return call.name in pairs.SOURCES


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
  return _text_files(lines.Matches(sorted(files.items())))


def text(*patterns: str, on_error: OnError = 'fail') -> Reader:
  """One document a file, in UTF-8; `**` in a pattern spans folders.

  A folder stands for the files below it with one of the `_ENDINGS` of texts,
  which the log names. A bad file is an error, or counted with
  `on_error='skip'`.
  """
  if not patterns:
    raise UsageError("text(): names no files; write text('books/**/*.txt')")
  call = f'text({", ".join(map(repr, patterns))})'
  return _text_files(_found(call, *map(_in_folder, patterns)), on_error)


def _found(call: str, *patterns: str) -> lines.Matches:
  """The files of patterns; logs what the wildcards of `call` pass over."""
  files = lines.find(*patterns)
  if files.hidden:
    _log_once(
      f'{call}: left out {len(files.hidden)} hidden, whose names begin with a '
      f'dot: {_some(files.hidden)}'
    )
  if files.folders:
    _log_once(
      f'{call}: left out what lies in folders ({len(files.folders)}), which a '
      f'pattern with /**/ would read: {_some(files.folders)}'
    )
  return files


def _some(paths: Sequence[str]) -> str:
  """The first of some paths."""
  return ', '.join([*paths[:_SHOWN], *['...'] * (len(paths) > _SHOWN)])


def _in_folder(pattern: str) -> str:
  """The pattern of the texts in a folder; any other pattern as it is."""
  if not lines.is_folder(pattern):
    return pattern
  below = f'{pattern.rstrip("/")}/**/*'
  try:
    everything = lines.find(below)
  except NoFileError:
    return pattern  # `find` will say so
  found = [name for name in everything if name.endswith(_ENDINGS)]
  if not found:
    return pattern  # `find` will say what its files are
  _log_once(
    f'text({pattern!r}): reads the files below this folder that end in '
    + _endings(found)
  )
  if others := everything.keys() - {*found}:
    _log_once(
      f'text({pattern!r}): left out other files ({len(others)}), that end in '
      + _endings(others)
    )
  return f'{below}{{{",".join(_ENDINGS)}}}'


def _endings(names: Collection[str]) -> str:
  """'.md (5), .txt (3)': the endings of names, the most frequent first."""
  ends = sorted(os.path.splitext(name)[1] for name in names)
  counts = collections.Counter(ends)
  ends = [f'{end or "nothing"} ({n})' for end, n in counts.most_common(_SHOWN)]
  return ', '.join([*ends, *['...'] * (len(counts) > _SHOWN)])


@functools.cache
def _log_once(message: str):
  """Logs a message once, although sources are built often."""
  log.info('%s', message)


def jsonl(
  pattern: str, field: str = 'text', on_error: OnError = 'fail'
) -> Reader:
  """One document a line: its text is the entry `field` of a JSON object.

  Files whose names end in .gz are read through gzip, in .zst through zstd. A
  bad line is an error, or counted with `on_error='skip'`.
  """
  files = _found(f'jsonl({pattern!r})', pattern)
  call = "jsonl('glob', field='text')"

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    for number, line in lines.numbered(path, skip):
      try:
        (text,) = lines.entries(f'{path}:{number}', line, [field], call)
      except Bad as e:
        skip(e)
        continue
      yield Document(f'{name}:{number}', text)

  units = [Unit(functools.partial(unit, *named)) for named in files.items()]
  units = lines.with_bad(files, units)
  return Reader(units, files, lines.total_size(files), on_error)


def mixture(*calls: Pair) -> Reader:
  """All documents of several sources, in order, as 'name/document'.

  The corpus from which a mixture in `data.source` draws.
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
    del skip  # each source has its own
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
  last may have fewer), 'name#1' and on. Whole books have so few ends of
  documents that the embedding of that token is hardly trained, and text after
  it, as in every evaluation of a single text, is scored wrongly.
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
      for number, text in enumerate(cut(document.text, chars), start=1):
        yield Document(f'{document.name}#{number}', text)

  units = [
    Unit(functools.partial(unit, part), part.skipped) for part in whole.units
  ]
  return Reader(
    *(units, whole.files, whole.num_bytes),
    stream=functools.partial(unit, whole),
    skipped=whole.skipped,
  )


def _text_files(files: lines.Matches, on_error: OnError = 'fail') -> Reader:
  def unit(named: Sequence[tuple[str, str]], skip: Skip) -> Iterator[Document]:
    for name, path in named:
      try:
        text = lines.whole(path)
      except Bad as e:
        skip(e)
        continue
      yield Document(name, text)

  units = [Unit(functools.partial(unit, group)) for group in _groups(files)]
  units = lines.with_bad(files, units)
  return Reader(units, files, lines.total_size(files), on_error)


def _groups(files: dict[str, str]) -> Iterator[list[tuple[str, str]]]:
  """Groups the files so that each group takes about as long to read."""
  group, size = [], 0
  for name, path in files.items():
    group.append((name, path))
    size += os.path.getsize(path) + _OPEN
    if size >= _UNIT:
      yield group
      group, size = [], 0
  if group:
    yield group


SOURCES = {
  'stdlib': stdlib,
  'text': text,
  'jsonl': jsonl,
  'mixture': mixture,
  'parquet': parquet,
  'passages': passages,
  **pairs.SOURCES,
  'tfds': tfds,
  'tfds_dir': tfds_dir,
}
