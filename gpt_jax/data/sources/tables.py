# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents from the rows of Parquet files."""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from gpt_jax.data import lines, matches
from gpt_jax.data.sources.source import Bad, Document, Reader, Skip, Unit
from gpt_jax.spec import UsageError, install

# Rows decoded at once, or fewer so that they hold about so many bytes; the
# reader holds a row group besides, as it is compressed.
_ROWS, _HELD = 256, 1 << 27


# Arrow's types of texts, which files may also call bytes.
_TEXTS = {
  f'{size}{kind}' for kind in ('string', 'binary') for size in ('', 'large_')
} | {'string_view', 'binary_view'}


def parquet(
  pattern: str, column: str = 'text', on_error: str = 'fail'
) -> Reader:
  """One document a row: its text is the entry of `column`.

  A column inside another is named as in 'meta.text', as is one whose name has
  a dot. Empty entries hold no text; a file or an entry that is bad is an
  error, or counted with `on_error='skip'`. Needs the extra `tfds`.
  """
  tables = _pyarrow()
  files = matches.find(pattern)

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
  return Reader(matches.with_bad(files, units), files, None, on_error)


def _pyarrow() -> Any:
  try:
    return importlib.import_module('pyarrow.parquet')
  except ImportError as e:
    raise UsageError(
      f'parquet(...) needs pyarrow; run {install("tfds")}'
    ) from e


def _values(tables: Any, path: str, column: str) -> Iterator[Any]:
  """Yields the entries of a column: str, bytes or None."""
  try:
    top, *inner = _way(path, tables.read_schema(path), column)
    # A text that many rows have is held once.
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


def _way(path: str, schema: Any, column: str) -> list[str]:
  """The names that lead to a column of texts, from the outermost."""
  found = [*_leaves(schema)]
  named = [(way, kind) for way, kind in found if '.'.join(way) == column]
  if len(named) == 1 and _holds_texts(named[0][1]):
    return named[0][0]
  several = f', {len(named)} of them' * (len(named) > 1)
  held = ', '.join(f'{".".join(way)} ({kind})' for way, kind in found)
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
      for way, kind in _leaves(field.type):
        yield [field.name, *way], kind
    else:
      yield [field.name], field.type


def _holds_texts(kind: Any) -> bool:
  kind = str(getattr(kind, 'storage_type', kind))
  return kind.removeprefix('dictionary<values=').partition(',')[0] in _TEXTS


def _text(where: str, value: Any) -> str:
  """The text of an Arrow scalar; '' for an empty entry."""
  try:
    text = value.as_py() or ''
    if len(text) > lines.LONGEST:
      raise Bad(where, lines.TOO_LONG, '; split the text, or leave it out')
    return text.decode('utf-8') if isinstance(text, bytes) else text
  except UnicodeDecodeError as e:
    raise Bad(where, 'is not UTF-8', f': byte {e.start}') from e
