# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/files.md, and how they compare with a folder."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / 'docs/files.md'
_CODE = re.compile(r'`([^`]+)`')
_VARIES = re.compile(r'(?<![A-Z])(STEP|NAME|PROCESS|SET|N)(?![A-Z_a-z])')


class Row(NamedTuple):
  """A row of a table; `when` is '' for files that are always there."""

  names: list[str]
  when: str
  writer: str

  def has(self, path: str) -> bool:
    """Whether the row is about a path, relative to the table's folder."""
    return any(_pattern(name).fullmatch(path) for name in self.names)


def _pattern(name: str) -> re.Pattern[str]:
  text = re.escape(name).replace(r'\*\*', '.+')
  return re.compile(_VARIES.sub('[^/]+', text))


def fixed(name: str) -> str:
  """The beginning of a name, which its writer has as a text."""
  first = _VARIES.split(name.partition('/')[0])[0]
  return first.partition('.out')[0].lstrip('.')


def tables() -> dict[str, list[Row]]:
  """The rows below each heading."""
  found: dict[str, list[Row]] = {}
  for section in PAGE.read_text(encoding='utf-8').split('\n## ')[1:]:
    heading, _, text = section.partition('\n')
    rows = found.setdefault(heading, [])
    for line in re.findall(r'^\| (`.*) \|$', text, re.M):
      first, *rest = map(str.strip, line.split('|'))
      when, writer = (rest[0], rest[2]) if rest[1:] else ('', '')
      rows.append(Row(_CODE.findall(first), when, writer.strip('`')))
  return found


def unlisted(rows: list[Row], folder: pathlib.Path) -> list[str]:
  """Files in a folder that no row is about."""
  files = [p for p in folder.rglob('*') if p.is_file()]
  paths = [p.relative_to(folder).as_posix() for p in files]
  return [path for path in paths if not any(row.has(path) for row in rows)]


def missing(rows: list[Row], folder: pathlib.Path) -> list[str]:
  """Names that are always there, but not in this folder."""
  files = [p for p in folder.rglob('*') if p.is_file()]
  paths = [p.relative_to(folder).as_posix() for p in files]
  return [
    name
    for row in rows
    if not row.when
    for name in row.names
    if not any(_pattern(name).fullmatch(path) for path in paths)
  ]
