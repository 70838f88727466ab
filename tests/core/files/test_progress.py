# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bars: silent where nobody watches, whole, and below the lines of the log."""

import io
import os
import pty
import subprocess
import sys

import rich.console
import rich.text

from gpt_jax.core.files import progress


def test_nothing_is_drawn_into_a_file(capfd):
  with progress.bar() as report:
    report('stage', 1, None)
    report('stage', 2, 3)
  captured = capfd.readouterr()
  assert captured.out == captured.err == ''


def test_bars_end_with_what_was_done(monkeypatch):
  """A total may be an estimate, or include text that is not read."""
  screen = io.StringIO()
  console = rich.console.Console(file=screen, force_terminal=True, width=100)
  monkeypatch.setattr(progress, 'console', console)
  with progress.bar() as report:
    report('reading', 1_000_000, 3_000_000)
    report('reading', 2_700_000, 3_000_000)
    report('comparing', 0, None)
    report('tokenizing', 1_500_000, 3_000_000)
  last = rich.text.Text.from_ansi(screen.getvalue()).plain.split('reading')[-1]
  assert '2.7/2.7 MB' in last
  assert '1.5/1.5 MB' in last
  assert '3.0 MB' not in last
  reading, tokenizing = last.split('tokenizing')[0], last.split('tokenizing')[1]
  assert 'B/s' in reading and 'B/s' in tokenizing
  assert '?' not in reading + tokenizing


LOGGING = """
import time
from gpt_jax.core.files import progress
from gpt_jax.core.runtime import log
log.set_up()
with progress.bar('rows') as report:
  report('reading', 1, 3)
  time.sleep(0.3)  # three times as long as until the bar is drawn
  log.log.info('a line')
  report('reading', 3, 3)
  if 'end' in __import__('sys').argv:
    log.end('interrupted', 130)
"""


def on_terminal(*args):
  """What `LOGGING` writes to a terminal, and its exit code."""
  outer, inner = pty.openpty()
  process = subprocess.Popen([sys.executable, '-c', LOGGING, *args], stderr=inner, stdout=inner)
  os.close(inner)
  written = b''
  try:
    while part := os.read(outer, 4096):
      written += part
  except OSError:  # Linux's end of a terminal
    pass
  os.close(outer)
  return written.decode(), process.wait()


def test_a_line_of_the_log_replaces_the_bar():
  written, code = on_terminal()
  assert code == 0
  before = written.partition('a line')[0].rpartition('reading')[2]
  assert '\x1b[2K' in before  # erases the line of the bar


def test_the_end_at_once_gives_the_cursor_back():
  written, code = on_terminal('end')
  assert code == 130
  assert written.rindex('\x1b[?25h') > written.rindex('\x1b[?25l')
  assert written.endswith('gpt-jax: interrupted\r\n')
