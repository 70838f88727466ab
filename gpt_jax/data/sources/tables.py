# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents from the rows of Parquet files."""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from gpt_jax.data import matches
from gpt_jax.data.sources.source import Bad, Document, Reader, Skip, Unit
from gpt_jax.spec import UsageError

# Rows decoded at once; the reader holds a row group besides.
_ROWS = 256


def parquet(
  pattern: str, column: str = 'text', on_error: str = 'fail'
) -> Reader:
  """One document a row: its text is the entry of `column`.

  A column inside another is named as in 'meta.text'. Empty entries hold no
  text; a file or an entry that is bad is an error, or counted with
  `on_error='skip'`. Needs the extra `tfds`.
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
    except OSError as e:  # as all of pyarrow's errors of reading
      why = str(e).partition('\n')[0]
      skip(Bad(path, 'cannot be read', f': {why}; fetch the file again'))

  units = [Unit(functools.partial(unit, *named)) for named in files.items()]
  return Reader(matches.with_bad(files, units), files, None, on_error)


def _pyarrow() -> Any:
  try:
    return importlib.import_module('pyarrow.parquet')
  except ImportError as e:
    raise UsageError(
      'parquet(...) needs pyarrow; run pip install -c constraints.txt -e '
      "'.[tfds]'"
    ) from e


def _values(tables: Any, path: str, column: str) -> Iterator[Any]:
  """Yields the entries of a column: str, bytes or None."""
  try:
    opened = tables.ParquetFile(path)
  except ValueError as e:  # ArrowInvalid
    why = str(e).partition('\n')[0]
    raise Bad(path, 'is not a Parquet file', f': {why}') from e
  with opened as file:
    leaves = map(file.schema.column, range(len(file.schema)))
    kinds = {leaf.path: leaf.physical_type for leaf in leaves}
    if kinds.get(column) != 'BYTE_ARRAY':
      held = ', '.join(f'{name} ({kind})' for name, kind in kinds.items())
      raise Bad(
        path,
        f'has no column of texts {column!r}',
        f", it holds {held}; name the column as in parquet('glob', "
        "column='text')",
      )
    for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
      values = batch.column(0)
      for part in column.split('.')[1:]:
        values = values.field(part)
      for i in range(len(values)):
        yield values[i]


def _text(where: str, value: Any) -> str:
  """The text of an Arrow scalar; '' for an empty entry."""
  try:
    text = value.as_py() or ''
    return text.decode('utf-8') if isinstance(text, bytes) else text
  except UnicodeDecodeError as e:
    raise Bad(where, 'is not UTF-8', f': byte {e.start}') from e
