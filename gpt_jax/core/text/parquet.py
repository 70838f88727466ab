# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents from the columns of Parquet files."""

import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from gpt_jax.core.files import globs, lines
from gpt_jax.core.files.document import Bad, Document, OnError, Skip, Source, unreadable
from gpt_jax.core.spec import optional
from gpt_jax.core.text.sources import matching

# The most rows of Parquet decoded at once, and about the most bytes. The reader
# also holds a row group, compressed.
_ROWS, _HELD = 256, 1 << 27

# Arrow's types of texts, which files may also declare as bytes.
_TEXTS = {f'{size}{kind}' for kind in ('string', 'binary') for size in ('', 'large_')} | {
  'string_view',
  'binary_view',
}


def parquet(pattern: str, column: str = 'text', on_error: OnError = 'fail') -> Source:
  """One document per row; its text is the entry of `column`.

  A column inside another is named as in 'meta.text', like one whose name has a
  dot. Empty entries hold no text; a bad file or entry is an error, or counted
  with `on_error='skip'`. Needs the extra `tfds`.
  """
  tables = optional('pyarrow.parquet', 'parquet(...) needs pyarrow', 'tfds')
  files = matching(f'parquet({pattern!r})', pattern)

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    return rows(tables, name, path, [column], skip)

  def look(path: str) -> None:
    check_column(tables, path, column)

  units = [functools.partial(unit, *named) for named in files.items()]
  units = globs.with_bad(files, units)
  return Source(units=units, files=files, on_error=on_error, look=look)


def rows(
  tables: Any, name: str, path: str, columns: Sequence[str], skip: Skip
) -> Iterator[Document]:
  """The rows of a file as documents 'NAME:NUMBER', from 0.

  Args:
    tables: the module pyarrow.parquet.
    name: of the file, in the names of documents.
    path: of the file.
    columns: that have the texts, which a blank line separates; of empty ones none.
    skip: gets what is bad.
  """
  try:
    read = (_values(tables, path, column) for column in columns)
    for number, values in enumerate(zip(*read, strict=True)):
      try:
        texts = [_text(f'{path}:{number}', value) for value in values]
      except Bad as e:
        skip(e)
        continue
      yield Document(f'{name}:{number}', '\n\n'.join(filter(None, texts)))
  except Bad as e:
    skip(e)
  except _parquet_errors() as e:
    skip(unreadable(path, e))


def check_column(tables: Any, path: str, column: str) -> None:
  """Raises `Bad` where `rows` would for the beginning of a file."""
  try:
    _column_path(path, tables.read_schema(path), column)
  except _parquet_errors() as e:
    raise unreadable(path, e) from e


def _parquet_errors() -> tuple[type[Exception], ...]:
  """What pyarrow raises of a damaged file.

  Most of its errors are also Python's, but not all, such as a capacity that is
  exceeded; a name or a number that is damaged breaks Python's own code.
  """
  arrow: Any = importlib.import_module('pyarrow')
  return (
    arrow.ArrowException,
    OSError,
    ValueError,
    NotImplementedError,
    LookupError,
    TypeError,
    OverflowError,
  )


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
    remedy = 'fetch the file again, or remove it'
    raise Bad(path, 'is not a Parquet file', f': {why}; {remedy}') from e
  with opened as file:
    leaves = [file.schema.column(i).path for i in range(len(file.schema))]
    number = leaves.index(column)
    for group in range(file.num_row_groups):
      held = file.metadata.row_group(group)
      size = held.column(number).total_uncompressed_size
      rows = held.num_rows * _HELD // max(size, 1)
      for batch in file.iter_batches(
        batch_size=min(max(rows, 1), _ROWS), row_groups=[group], columns=[column]
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
