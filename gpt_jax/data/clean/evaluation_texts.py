# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The texts of evaluation files, for finding them in a corpus.

What a file is, its name says, before .gz or .zst: `.csv`, `.tsv`, `.jsonl`,
`.json` (JSON lines, or one JSON value). Of these each record is one text: its
fields joined by spaces, in their order, since a story may be spread over five
columns. Any other file must be text in UTF-8, and its paragraphs are the texts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpt_jax.data import lines, matches, ngrams, records
from gpt_jax.data.sources import json_lines
from gpt_jax.data.sources.source import Bad
from gpt_jax.spec import UsageError


def files(patterns: Sequence[str]) -> dict[str, str]:
  """Name -> path of the evaluation files.

  Raises:
    UsageError: there is none.
  """
  found = {}
  for pattern in patterns:
    try:
      found |= matches.find(pattern)
    except matches.NoFile as e:
      remedy = f'; write {e.instead!r}' if e.instead else ''
      raise UsageError(f'data.clean: decontaminate: {e}{remedy}') from None
  return found


def read(
  patterns: Sequence[str], field: str, n: int
) -> Iterator[tuple[str, str]]:
  """Yields the evaluation texts, each with its file and line.

  Args:
    patterns: of the files.
    field: of a record: one, several as in 'context, ending', or '' for all.
    n: words of an overlap. Where all fields are read, the first line of a table
      names its columns if it has fewer words; else it is a text too, so that
      none is lost from a table without names.

  Raises:
    UsageError: a file is not as it must be.
  """
  names = [name.strip() for name in field.split(',') if name.strip()]
  for name, path in files(patterns).items():
    plain = path
    for ending in lines.COMPRESSED:
      plain = plain.removesuffix(ending)
    ending = plain.rpartition('.')[2].lower()
    if ending in _TABLES:
      found = _table(path, _TABLES[ending](path), names, n)
    elif ending in ('jsonl', 'json'):
      found = _json(path, names, whole=ending == 'json')
    else:
      found = _paragraphs(path)
    for where, text in found:
      yield f'{name}{where.removeprefix(path)}', text


def _table(
  path: str,
  rows: Iterator[tuple[str, list[str]]],
  names: Sequence[str],
  n: int,
) -> Iterator[tuple[str, str]]:
  header: list[str] = []
  for where, row in rows:
    if not header:
      header = [name.strip() for name in row]
      if len(row) == 1 and any(c in row[0] for c in ';\t|'):
        raise UsageError(
          f'{where}: {row[0][:60]!r} is one column; separate columns by '
          'commas in a .csv, by tabs in a .tsv'
        )
      if names or len(ngrams.words(' '.join(row))) < n:
        continue
    if len(row) != len(header):
      raise records.ragged(where, row, header)
    if names:
      record = records.Record(where, dict(zip(header, row, strict=True)))
      row = [record[name] for name in names]
    yield where, ' '.join(row)


def _json(
  path: str, names: Sequence[str], *, whole: bool
) -> Iterator[tuple[str, str]]:
  values = _values(path)
  if whole:  # one value may lie on many lines
    try:
      yield from _records([*values], names)
      return
    except _NotLinesError:
      values = _of_one_value(path)
  try:
    yield from _records(values, names)
  except _NotLinesError as e:
    raise e.bad from e


class _NotLinesError(ValueError):
  """A line is no JSON value."""

  def __init__(self, bad: Bad):
    super().__init__(f'{bad}')
    self.bad = bad


def _values(path: str) -> Iterator[tuple[str, Any]]:
  for number, line in lines.numbered(path, _fail):
    yield _value(f'{path}:{number}', line)


def _of_one_value(path: str) -> Iterator[tuple[str, Any]]:
  yield _value(path, lines.contents(path))


def _value(where: str, data: bytes) -> tuple[str, Any]:
  _decoded(where, data)  # says what else might be given
  try:
    return where, json_lines.record(where, data)
  except Bad as e:
    raise _NotLinesError(e) from e


def _records(
  values: Iterator[tuple[str, Any]] | list[tuple[str, Any]],
  names: Sequence[str],
) -> Iterator[tuple[str, str]]:
  """A list is a list of records; of anything else all texts are one."""
  for where, value in values:
    for i, item in enumerate(value if isinstance(value, list) else [value]):
      at = f'{where}:{i + 1}' if isinstance(value, list) else where
      if names:
        if not isinstance(item, dict):
          raise Bad(at, 'is no JSON object', f': it has no {names[0]!r}')
        record = records.Record(at, item)
        item = [record[name] for name in names]
      yield at, ' '.join(json_lines.texts(item))


def _paragraphs(path: str) -> Iterator[tuple[str, str]]:
  first = last = 0
  held: list[str] = []
  for number, line in lines.numbered(path, _fail):
    text = _decoded(f'{path}:{number}', line)
    if number > last + 1 and held:
      yield f'{path}:{first}', ''.join(held)
      held = []
    first = first if held else number
    held.append(text)
    last = number
  if held:
    yield f'{path}:{first}', ''.join(held)


def _decoded(where: str, line: bytes) -> str:
  remedy = 'give CSV, TSV, JSON lines or plain text in UTF-8'
  text = lines.decoded(where, line, remedy)
  if '\0' in text:
    raise Bad(
      where, 'is not text', f': character {text.index(chr(0))}; {remedy}'
    )
  return text


def _fail(bad: Bad):
  raise bad


# By the end of the name: what reads the rows of a table.
_TABLES: dict[str, Callable[[str], Iterator[tuple[str, list[str]]]]] = {
  'csv': records.csv_rows,
  'tsv': records.tsv_rows,
}
