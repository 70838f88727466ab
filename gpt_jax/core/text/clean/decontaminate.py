# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Removes what overlaps an evaluation set by 13-grams of words.

GPT-3 (Brown et al. 2020, appendix C): "we removed ... the colliding 13-gram and
a 200 character window around it, splitting the original document into pieces",
without pieces "of less than 200 characters" and documents "split into more than
10 pieces"; n-grams found in more than 10 training documents (phrases,
boilerplate) do not count. So duplicates are best removed before.

The ending of an evaluation file's name, before .gz or .zst, gives its format:
`.csv`, `.tsv`, `.jsonl`, `.json` (JSON lines, or one JSON value). Each record
is one text: its fields joined by spaces, in their order, since a story may be
spread over five columns. Any other file must be text in UTF-8, and its
paragraphs are the texts.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from gpt_jax.core.files import globs, lines, records
from gpt_jax.core.files.document import Bad, utf8_size
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import NoFileError, UsageError
from gpt_jax.core.text import hashing, ngrams
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Findings, Outcome, Removal, Rows, Sketches
from gpt_jax.core.text.ngrams import Overlap


def files(patterns: Sequence[str]) -> dict[str, str]:
  """Name -> path of the evaluation files."""
  named = {}
  for pattern in patterns:
    try:
      matches = globs.find(pattern)
    except NoFileError as e:
      remedy = f'; write {e.instead!r}' if e.instead else ''
      raise UsageError(f'data.clean: decontaminate: {e}{remedy}') from None
    for bad in matches.bad:
      raise bad
    named |= matches
  return named


def read(patterns: Sequence[str], field: str, n: int) -> Iterator[tuple[str, str]]:
  """Yields the evaluation texts, each with its file and line.

  Args:
    field: of a record: one, several as in 'context, ending', or '' for all.
    n: words of an overlap. Where all fields are read, the first line of a table
      is taken for the names of its columns if it has fewer words than that;
      else it is a text too, so that none is lost from a table without names.
  """
  names = [name.strip() for name in field.split(',') if name.strip()]
  for name, path in files(patterns).items():
    ending = lines.kind(path).lower()
    if ending in _TABLES:
      found = _table(path, _TABLES[ending](path), names, n)
    elif ending in ('.jsonl', '.json'):
      found = _json(path, names, whole=ending == '.json')
    else:
      found = _paragraphs(path)
    for where, text in found:
      yield f'{name}{where.removeprefix(path)}', text


def _table(
  path: str, rows: Iterator[tuple[str, list[str]]], names: Sequence[str], n: int
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


def _json(path: str, names: Sequence[str], *, whole: bool) -> Iterator[tuple[str, str]]:
  values = (_value(f'{path}:{number}', line) for number, line in lines.numbered(path, lines.fail))
  if whole:  # one value may lie on many lines
    try:
      yield from _records([*values], names)
      return
    except _NotLinesError:
      values = (_value(path, lines.contents(path)) for _ in range(1))
  try:
    yield from _records(values, names)
  except _NotLinesError as e:
    raise e.bad from e


class _NotLinesError(ValueError):
  """A line is no JSON value."""

  def __init__(self, bad: Bad):
    super().__init__(f'{bad}')
    self.bad = bad


def _value(where: str, data: bytes) -> tuple[str, Any]:
  _decoded(where, data)  # its error names the formats
  try:
    return where, lines.record(where, data)
  except Bad as e:
    raise _NotLinesError(e) from e


def _records(
  values: Iterator[tuple[str, Any]] | list[tuple[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, str]]:
  """Yields a text for each item of a list, and one for any other value."""
  for where, value in values:
    for i, item in enumerate(value if isinstance(value, list) else [value]):
      at = f'{where}:{i + 1}' if isinstance(value, list) else where
      if names:
        if not isinstance(item, dict):
          why = f': it has no {names[0]!r}; mend it, or leave out field='
          raise Bad(at, 'is not a JSON object', why)
        record = records.Record(at, item)
        item = [record[name] for name in names]
      yield at, ' '.join(lines.texts_in(item))


def _paragraphs(path: str) -> Iterator[tuple[str, str]]:
  first = last = 0
  held: list[str] = []
  for number, line in lines.numbered(path, lines.fail):
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
    raise Bad(where, 'is not text', f': character {text.index(chr(0))}; {remedy}')
  return text


# By the end of the name: what reads the rows of a table.
_TABLES: dict[str, Callable[[str], Iterator[tuple[str, list[str]]]]] = {
  '.csv': records.csv_rows,
  '.tsv': records.tsv_rows,
}


log = logging.getLogger('gpt_jax')


# GPT-3's, in characters and pieces.
_WINDOW, _LEAST, _MOST = 200, 200, 10


@dataclasses.dataclass(frozen=True)
class Decontaminate(steps.Global):
  """Removes documents or pieces; a global step.

  A row is an n-gram of the evaluation set in a document: its value is the
  n-gram's number, its key a hash of that. A finding is an n-gram that counts:
  its value is the number.
  """

  patterns: tuple[str, ...]
  field: str
  n: int
  rule: str
  frequent: int  # documents that hold an n-gram, above which it is ignored
  name = 'decontaminate'

  @property
  def files(self) -> dict[str, str]:
    return files(self.patterns)

  def check(self) -> None:
    if not self.patterns:
      raise UsageError("data.clean: name the evaluation files, as in decontaminate('test/*.jsonl')")
    grams = index(self.patterns, self.field, self.n)
    if not len(grams):
      raise UsageError(
        f'data.clean: {", ".join(self.patterns)}: holds no text of {self.n} '
        'words; give decontaminate a smaller n, or other files'
      )
    if grams.num_short:
      log.warning(
        '%s: %d of %d texts have fewer than %d words and will not be found',
        ', '.join(self.patterns),
        grams.num_short,
        len(grams.labels),
        self.n,
      )

  def rows(self, text: str) -> Rows:
    """The n-grams of the evaluation set in a document, each once."""
    found = index(self.patterns, self.field, self.n).find(text)
    grams = np.unique(np.array([o.gram for o in found], np.uint64))
    return Rows(grams * hashing.FACTOR, grams)

  def judge(
    self, keys: np.ndarray, places: np.ndarray, values: np.ndarray, sketches: Sketches
  ) -> Findings:
    """Keeps the n-grams that few enough documents have."""
    starts = steps.group_starts(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    counts = np.repeat(sizes <= (self.frequent or len(keys)), sizes)
    return Findings(places[counts], values[counts])

  def notes(self) -> dict[str, int]:
    """Counts the evaluation texts, and those too short to be found."""
    grams = index(self.patterns, self.field, self.n)
    return {'evaluation_texts': len(grams.labels), 'too_short': grams.num_short, 'words': self.n}

  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Removes the document, or cuts it into pieces."""
    if not len(values):
      return steps.keep(document)
    grams = index(self.patterns, self.field, self.n)
    wanted = {*values.tolist()}
    found = [o for o in grams.find(document.text) if o.gram in wanted]
    label = grams.labels[grams.holders(found[0].gram)[0]]
    why = f'{label}: "{grams.text(found[0].gram)}"'
    rule = f'overlap with {label.rpartition(":")[0]}'
    if self.rule == 'documents':
      return steps.remove(document, rule, why)
    pieces = [*_pieces(document.text, found)]
    if len(pieces) > _MOST:
      return steps.remove(document, f'{rule}, in more than {_MOST} places', why)
    kept = [piece for piece in pieces if len(piece) >= _LEAST]
    size = utf8_size(document.text) - sum(map(utf8_size, kept))
    removal = Removal(rule, max(len(pieces) - 1, 1), size, why)
    if len(kept) == 1:
      return Outcome([document._replace(text=kept[0])], [removal])
    return Outcome(
      [
        document._replace(place=document.place + i, name=f'{document.name}#{i}', text=text)
        for i, text in enumerate(kept)
      ],
      [removal],
    )


def decontaminate(
  *patterns: str,
  field: str = '',
  n: Count = 13,
  rule: Literal['documents', 'pieces'] = 'documents',
  frequent: Whole = 10,
) -> Decontaminate:
  """Removes what overlaps evaluation files.

  Args:
    *patterns: of files in CSV, TSV, JSON lines, or plain text.
    field: of a record, or several: 'context, ending'; by default all.
    n: the fewest words of an overlap.
    rule: 'documents' are removed whole, or 'pieces' are cut as for GPT-3.
    frequent: n-grams in more documents than this are ignored; 0: none is.
  """
  return Decontaminate(patterns, field, n, rule, frequent)


@functools.cache
def index(patterns: tuple[str, ...], field: str, n: int) -> ngrams.Index:
  """The n-grams of the evaluation files."""
  return ngrams.Index(read(patterns, field, n), n)


def _pieces(text: str, found: list[Overlap]) -> Iterator[str]:
  """Cuts out the overlaps and the characters around them."""
  start = 0
  for overlap in found:
    stop = max(overlap.start - _WINDOW, 0)
    # Overlaps ascend; windows that meet are one.
    if stop > start:
      yield text[start:stop].strip()
    start = max(start, overlap.stop + _WINDOW)
  if start < len(text):
    yield text[start:].strip()
