# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records of tables: TSV, CSV, JSON lines, sets of TensorFlow Datasets.

A path says by its end what it is, before .gz or .zst: `.tsv` and `.txt` (tabs,
nothing is quoted), `.csv` (quoted), `.jsonl`, `.json` (SQuAD's), `.conll` or
the ends of CoNLL's own files; or it names a split of a set that TFDS has
prepared: `tfds:glue/sst2:train`.

SQuAD's JSON is a tree of articles, paragraphs and questions (Rajpurkar et al.,
2016 and 2018). CoNLL's files have a word a line, with its tags in the columns
after it, and a blank line between sentences (Tjong Kim Sang and De Meulder,
2003).
"""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.core import spec
from gpt_jax.core.files import lines
from gpt_jax.core.files.tfds import examples
from gpt_jax.core.spec import NoFileError, UsageError

# In CoNLL's files, where documents begin; no sentence.
_DOCUMENT = '-DOCSTART-'


class Record(NamedTuple):
  """One row: its columns by name, and where it is, as 'file:line'."""

  where: str
  fields: dict[str, Any]

  def __getitem__(self, column: str) -> Any:
    """The value of a column."""
    if column not in self.fields:
      held = ', '.join(map(repr, self.fields))
      raise UsageError(
        f'{self.where}: has no column {column!r}, it holds {held}; name one '
        'of these in the call, or rename it'
      )
    return self.fields[column]


def _squad(path: str) -> Iterator[Record]:
  """The questions, at 'file:id', with `context` among their fields."""
  found = lines.record(path, lines.contents(path))
  try:
    for article in found['data']:
      for paragraph in article['paragraphs']:
        for question in paragraph['qas']:
          fields = {'context': paragraph['context'], **question}
          yield Record(f'{path}:{question["id"]}', fields)
  except (KeyError, TypeError) as e:
    why = f'{e} is missing' if isinstance(e, KeyError) else e
    raise UsageError(
      f"{path}: is not JSON as SQuAD's, with data, paragraphs and qas ({why}); "
      'fetch the file again, or give a .jsonl'
    ) from e


def _conll(path: str) -> Iterator[Record]:
  """The sentences, at 'file:line' of the first word, as `words` and `tags`.

  `tags` are those of the last column; columns '1', '2', ... are those after the
  words.
  """
  rows: list[list[str]] = []
  first = last = 0

  def sentence() -> Record:
    words, *columns = map(list, zip(*rows, strict=True))
    fields = {'words': words, 'tags': columns[-1]}
    fields |= {str(i): column for i, column in enumerate(columns, start=1)}
    return Record(f'{path}:{first}', fields)

  for number, line in lines.numbered(path, lines.fail):
    cells = lines.text(f'{path}:{number}', line).split()
    if len(cells) < 2:
      raise UsageError(f'{path}:{number}: has a word and no tag; mend or remove the line')
    # Blank lines are not numbered here: they part sentences.
    if rows and (number > last + 1 or cells[0] == _DOCUMENT):
      yield sentence()
      rows = []
    last = number
    if cells[0] == _DOCUMENT:
      continue
    if not rows:
      first = number
    elif len(cells) != len(rows[0]):
      raise UsageError(
        f'{path}:{number}: has {len(cells)} columns, the line before '
        f'{len(rows[0])}; mend or remove the line'
      )
    rows.append(cells)
  if rows:
    yield sentence()


_TFDS = re.compile(r'tfds:(.+?(?::\d+\.\d+\.\d+)?):([^:]+(?:\[.*\])?)')


def read(path: str, columns: Sequence[str] = ()) -> Iterator[Record]:
  """Streams the records of a table.

  Args:
    path: a file, or `tfds:SET:SPLIT`.
    columns: of a .tsv or .csv without a line that names them.
  """
  if path.startswith('tfds:'):
    found = _TFDS.fullmatch(path)
    if not found:
      raise UsageError(f"{path!r}: write a set and a split: 'tfds:snli:train'")
    for where, fields in examples(*found.groups()):
      yield Record(where, {n: _text(where, x) for n, x in fields.items()})
    return
  kind = lines.kind(path)
  if kind not in READERS:
    raise UsageError(
      f'{path}: is none of ' + ', '.join(READERS) + '; convert it, or rename it if it is one'
    )
  if not os.path.isfile(path):
    raise NoFileError(f'{path}: no such file')
  if kind in _ROWS:
    yield from _table(_ROWS[kind](path), columns)
  else:
    yield from _RECORDS[kind](path)


def _lines(path: str) -> Iterator[tuple[int, str]]:
  """Numbers the lines that are not blank, from 1."""
  for number, line in lines.numbered(path, lines.fail):
    yield number, lines.text(f'{path}:{number}', line)


def tsv_rows(path: str) -> Iterator[tuple[str, list[str]]]:
  """Yields 'file:line' and the cells of each row."""
  return ((f'{path}:{n}', line.split('\t')) for n, line in _lines(path))


def csv_rows(path: str) -> Iterator[tuple[str, list[str]]]:
  """As `tsv_rows`; quoted cells may hold commas and line breaks."""
  # Its own limit is shorter than an article.
  csv.field_size_limit(lines.LONGEST)
  # Quoted cells may hold line breaks: the reader counts for itself.
  reader = csv.reader(_with_blank(path), strict=True)
  while True:
    try:
      row = next(reader, None)
    except csv.Error as e:
      raise UsageError(f'{path}:{reader.line_num}: is not CSV: {e}; mend or remove the row') from e
    if row is None:
      return
    if row:
      yield f'{path}:{reader.line_num}', row


def _with_blank(path: str) -> Iterator[str]:
  """The lines, with empty ones where there is only white space."""
  last = 0
  for number, line in _lines(path):
    yield from ['\n'] * (number - last - 1)
    yield line + '\n'
    last = number


def ragged(where: str, row: Sequence[str], names: Sequence[str]) -> UsageError:
  """The error of a row that does not fit the names of the columns."""
  return UsageError(
    f'{where}: has {len(row)} columns, not {len(names)} ('
    + ', '.join(names)
    + '); mend or remove the line'
  )


def _table(rows: Iterator[tuple[str, list[str]]], columns: Sequence[str]) -> Iterator[Record]:
  names = [*columns]
  for where, row in rows:
    if not names:
      names = [name.strip() for name in row]
      for name in {*names} - {''}:
        if names.count(name) > 1:
          raise UsageError(
            f'{where}: has {names.count(name)} columns {name!r}; rename or remove all but one'
          )
      continue
    if len(row) != len(names):
      raise ragged(where, row, names)
    yield Record(where, dict(zip(names, row, strict=True)))


def _jsonl(path: str) -> Iterator[Record]:
  for number, line in lines.numbered(path, lines.fail):
    where = f'{path}:{number}'
    fields = lines.record(where, line)
    if not isinstance(fields, dict):
      raise UsageError(
        f'{where}: is not a JSON object but {spec.shown(fields)}; write one '
        'with the fields as {"NAME": VALUE}, or remove the line'
      )
    yield Record(where, fields)


def _text(where: str, value: Any) -> Any:
  """Bytes as text, also within lists; anything else as it is."""
  if isinstance(value, list | tuple):
    return [_text(where, x) for x in value]
  if hasattr(value, 'tolist'):  # NumPy's arrays and numbers
    return _text(where, value.tolist())
  return lines.decoded(where, value) if isinstance(value, bytes) else value


# Readers by the ending of a file: of the rows of a table, or of whole records.
_ROWS = {'.tsv': tsv_rows, '.txt': tsv_rows, '.csv': csv_rows}
_RECORDS = {
  '.jsonl': _jsonl,
  '.json': _squad,
  **dict.fromkeys(('.conll', '.train', '.testa', '.testb'), _conll),
}
READERS = (*_ROWS, *_RECORDS)
