# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a process prints: tables of names, and its last words in the log."""

import io
import subprocess
import sys

import pytest
import rich.console
from rich.text import Text

from gpt_jax.core.runtime import tables

NAME = 'params/decoder/periods/block_0/attention/query.kernel.' * 3 + 'end'


def table():
  rows = tables.TextTable('name', 'count', 'of', title='A [title]', right=('count',))
  rows.add_row(NAME, '7', Text('[x] :smile:', 'green'))
  rows.add_row('two\nlines', '1,234', 'b', end_section=True)
  return rows


def test_in_a_pipe_nothing_is_cut(capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '40')
  monkeypatch.setenv('FORCE_COLOR', '1')
  tables.console().print(table())
  width = len(NAME)
  assert capsys.readouterr().out.splitlines() == [
    'A [title]',
    f'{"name":{width}}  count  of',
    f'{NAME}      7  [x] :smile:',
    f'{"two":{width}}  1,234  b',
    'lines',
  ]


@pytest.mark.parametrize('width', [40, 60, 80])
def test_on_a_terminal_names_are_folded_between_parts(width):
  file = io.StringIO()
  rich.console.Console(
    file=file, width=width, force_terminal=True, no_color=True, markup=False
  ).print(table())
  rows = [line.split('│') for line in file.getvalue().splitlines()]
  pieces = [row[1].strip() for row in rows if len(row) == 5]
  at = pieces.index('two')
  assert ''.join(pieces[:at]) == NAME
  assert all(piece[-1] in '/.' for piece in pieces[: at - 1])


@pytest.mark.parametrize(
  ('text', 'width', 'lines'),
  [
    ('model.vocab_size', 10, ['model.', 'vocab_size']),
    ('see docs/a.md now', 9, ['see', 'docs/a.md', 'now']),
    ('a/b/c', 3, ['a/', 'b/c']),
    ('', 5, ['']),
    ('../x', 9, ['../x']),
  ],
)
def test_where_a_line_is_folded(text, width, lines):
  assert tables.fold(text, width) == lines


# Threads log without end while the process ends itself.
PROGRAM = """
import sys, threading, time
from gpt_jax.core.runtime import log

def talk():
  while True:
    log.log.info('a line')

sys.setswitchinterval(1e-6)
log.set_up()
for _ in range(4):
  threading.Thread(target=talk, daemon=True).start()
time.sleep(0.1)
log.end('the last line', 75)
"""


def test_nothing_is_logged_after_the_line_of_the_end():
  for _ in range(3):
    done = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True)
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].endswith(': the last line')
