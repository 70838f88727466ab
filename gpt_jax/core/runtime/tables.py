# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that commands print, from which names are copied.

On a terminal they have borders, and a name that is wider than its column is
folded after a `/` or a `.`. Elsewhere, as in a pipe, nothing is cut or folded.
"""

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.table
from rich.cells import cell_len
from rich.measure import Measurement
from rich.text import Text

# Wider than any line, so that rich folds none.
_NO_LIMIT = 1_000_000


def console() -> rich.console.Console:
  """Prints to standard output; what is in brackets is text, not a style."""
  terminal = sys.stdout is not None and sys.stdout.isatty()
  return rich.console.Console(
    width=None if terminal else _NO_LIMIT, force_terminal=terminal, markup=False, emoji=False
  )


class TextTable:
  """Rows of texts under a head and a title."""

  def __init__(self, *columns: str, title: str = '', right: Sequence[str] = ()):
    """An empty table.

    Args:
      columns: the head of each.
      title: above the table.
      right: the columns that are justified to the right.
    """
    self._title, self._columns, self._right = title, columns, {*right}
    self._rows: list[tuple[str | Text, ...]] = []
    self._sections: set[int] = set()

  def add_row(self, *cells: str | Text, end_section: bool = False) -> None:
    """Adds a row; `Text` has a style, and lines of its own."""
    self._rows.append(cells)
    if end_section:
      self._sections.add(len(self._rows))

  def __rich_console__(
    self, console: rich.console.Console, options: rich.console.ConsoleOptions
  ) -> Iterator[Any]:
    """What rich prints."""
    if self._title:
      yield Text(self._title, 'italic')
    if console.is_terminal:
      yield self._bordered()
    else:
      yield from self._plain()

  def _bordered(self) -> rich.table.Table:
    table = rich.table.Table()
    for name in self._columns:
      justify = 'right' if name in self._right else 'left'
      table.add_column(Text(name), justify=justify, overflow='fold')
    for number, cells in enumerate(self._rows, start=1):
      folded = (_Folded(x) if isinstance(x, str) else x for x in cells)
      table.add_row(*folded, end_section=number in self._sections)
    return table

  def _plain(self) -> Iterator[Text]:
    """The lines, without styles; the last column is not filled up."""
    rows = [self._columns, *self._rows]
    lines = [
      line
      for cells in rows
      for line in itertools.zip_longest(*(str(cell).split('\n') for cell in cells), fillvalue='')
    ]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
      cells = []
      for name, cell, width in zip(self._columns, line, widths, strict=True):
        space = ' ' * (width - cell_len(cell))
        cells.append(space + cell if name in self._right else cell + space)
      yield Text('  '.join(cells).rstrip())


class _Folded:
  """A cell whose long words are folded after `/` and `.`."""

  def __init__(self, text: str):
    self._text = text

  def __rich_measure__(
    self, console: rich.console.Console, options: rich.console.ConsoleOptions
  ) -> Measurement:
    widest = max(map(cell_len, self._text.split('\n')))
    least = max((cell_len(x.rstrip()) for x in _pieces(self._text)), default=0)
    return Measurement(least, widest)

  def __rich_console__(
    self, console: rich.console.Console, options: rich.console.ConsoleOptions
  ) -> Iterator[Text]:
    lines = (fold(x, options.max_width) for x in self._text.split('\n'))
    yield Text('\n'.join(itertools.chain(*lines)))


def fold(text: str, width: int) -> list[str]:
  """Folds a line between words, and inside of wider ones after `/` and `.`."""
  lines = ['']
  for word in re.findall(r'\s*\S+', text):
    pieces = [word] if cell_len(word.strip()) <= width else _pieces(word)
    for piece in pieces:
      if lines[-1] and cell_len(lines[-1] + piece) > width:
        lines.append(piece.lstrip())
      else:
        lines[-1] += piece
  return lines


def _pieces(text: str) -> list[str]:
  return re.findall(r'\s*[^\s/.]*[/.]+|\s*[^\s/.]+', text)
