# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts in which something is marked: SQuAD's and CoNLL's files as published.

SQuAD's JSON is a tree of articles, paragraphs and questions (Rajpurkar et al.,
2016 and 2018). CoNLL's files have a word a line, with its tags in the columns
after it, and a blank line between sentences (Tjong Kim Sang and De Meulder,
2003).
"""

from collections.abc import Iterator
from typing import Any

from gpt_jax.data import lines
from gpt_jax.data.sources import json_lines
from gpt_jax.spec import UsageError

# Says where documents begin, and is no sentence.
_DOCUMENT = '-DOCSTART-'


def squad(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """The questions: 'file:id', and its fields with those of `context`.

  Raises:
    UsageError: it is no such tree.
  """
  found = json_lines.record(path, lines.contents(path))
  try:
    for article in found['data']:
      for paragraph in article['paragraphs']:
        for question in paragraph['qas']:
          fields = {'context': paragraph['context'], **question}
          yield f'{path}:{question["id"]}', fields
  except (KeyError, TypeError) as e:
    why = f'{e} is missing' if isinstance(e, KeyError) else e
    raise UsageError(
      f"{path}: is not JSON as SQuAD's, with data, paragraphs and qas ({why}); "
      'fetch the file again, or give a .jsonl'
    ) from e


def conll(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """The sentences: 'file:line' of the first word, `words` and `tags`.

  `tags` are those of the last column; columns '1', '2', ... are those after the
  words.

  Raises:
    UsageError: a line has no tag, or another number of columns.
  """
  rows: list[list[str]] = []
  first = last = 0

  def sentence() -> tuple[str, dict[str, Any]]:
    words, *columns = map(list, zip(*rows, strict=True))
    fields = {'words': words, 'tags': columns[-1]}
    fields |= {str(i): column for i, column in enumerate(columns, start=1)}
    return f'{path}:{first}', fields

  def fail(bad: UsageError):
    raise bad

  for number, line in lines.numbered(path, fail):
    cells = _cells(path, number, line)
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


def _cells(path: str, number: int, line: bytes) -> list[str]:
  cells = lines.text(f'{path}:{number}', line).split()
  if len(cells) < 2:
    raise UsageError(
      f'{path}:{number}: has a word and no tag; mend or remove the line'
    )
  return cells
