# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/notebook.ipynb, which docs/python.md is as a notebook.

python -m tests.support.notebook > docs/notebook.ipynb

A block of Python is a cell, and what follows `<!-- printed -->` is what the
cell prints. The section of names at the end is left out.
"""

import contextlib
import io
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / 'docs/python.md'
NOTEBOOK = ROOT / 'docs/notebook.ipynb'
# Where the table of names begins.
NAMES = '## The public interface\n'
_CODE = re.compile(
  r'^```python\n(?P<code>.*?)^```\n'
  r'(?:\n<!-- printed -->\n```\n(?P<printed>.*?)^```\n)?',
  re.MULTILINE | re.DOTALL,
)


class Cell(NamedTuple):
  """A cell of code: the text before it, the code, and what it prints."""

  before: str
  code: str
  printed: str


def cells() -> list[Cell]:
  """The cells of the page."""
  text, _, _ = PAGE.read_text(encoding='utf-8').partition(NAMES)
  found, start = [], 0
  for block in _CODE.finditer(text):
    before = text[start : block.start()].strip()
    found.append(Cell(before, block['code'], block['printed'] or ''))
    start = block.end()
  assert not text[start:].strip(), 'text after the last cell'
  return found


def notebook() -> str:
  """The text of the notebook, in Jupyter's format 4.5."""
  found: list[dict[str, Any]] = []
  for number, cell in enumerate(cells(), start=1):
    found.append(_cell('markdown', f'text-{number}', cell.before))
    stream = {'name': 'stdout', 'output_type': 'stream'}
    outputs = [stream | {'text': _lines(cell.printed)}] * bool(cell.printed)
    code = _cell('code', f'code-{number}', cell.code.strip())
    found.append(code | {'execution_count': number, 'outputs': outputs})
  kernel = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}
  whole = {
    'cells': found,
    'metadata': {'kernelspec': kernel, 'language_info': {'name': 'python'}},
    'nbformat': 4,
    'nbformat_minor': 5,
  }
  return json.dumps(whole, indent=1, ensure_ascii=False) + '\n'


def _cell(kind: str, name: str, text: str) -> dict[str, Any]:
  return {'cell_type': kind, 'id': name, 'metadata': {}, 'source': _lines(text)}


def _lines(text: str) -> list[str]:
  return text.splitlines(keepends=True)


def run() -> Iterator[str]:
  """Runs the cells of the notebook in this folder; yields what each prints."""
  names: dict[str, Any] = {'__name__': '__main__'}
  for cell in json.loads(NOTEBOOK.read_text(encoding='utf-8'))['cells']:
    if cell['cell_type'] == 'code':
      with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(''.join(cell['source']), cell['id'], 'exec'), names)
      yield printed.getvalue()


if __name__ == '__main__':
  if sys.argv[1:] == ['run']:
    print(json.dumps([*run()]))
  else:
    print(notebook(), end='')
