# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""All that reads a file of texts has the same lines."""

import pathlib

import pytest

from gpt_jax.decoding import files as prompt_files
from gpt_jax.evaluation import likelihood, text_tasks
from gpt_jax.files import lines, records
from gpt_jax.spec import UsageError
from gpt_jax.tasks import choices, files
from gpt_jax.text import sources
from tests.support.stdin import stdin_of

# A byte-order mark; a lone carriage return, a form feed, a line separator and a
# second mark within lines; two kinds of line ends; none at the end.
DATA = '\ufeffalpha\rbeta\ngam\x0cma\r\nde\u2028lta\n\ufeffeta\nlast'.encode()
# As `wc -l` counts.
LINES = ['alpha\rbeta', 'gam\x0cma', 'de\u2028lta', '\ufeffeta', 'last']


def piped(path, monkeypatch):
  monkeypatch.setattr('sys.stdin', stdin_of(pathlib.Path(path).read_bytes()))
  return [*lines.piped()]


def pairs(path, monkeypatch):
  found = sources.documents('data.source', f"parallel_text('{path}', '{path}')")
  return [(name.removesuffix('#target'), text) for name, text in [*found][1::2]]


def held_out(path, monkeypatch):
  found = likelihood.Text(files.Files('', ''), path)
  return found.texts()


READERS = {
  'lines': lambda path, m: [*lines.texts(path)],
  'standard input': piped,
  'prompts': lambda path, m: [x[:2] for x in prompt_files.read(path)],
  'sources': lambda path, m: [
    tuple(x) for x in prompt_files.read_sources(path)
  ],
  'parallel_text': pairs,
  'evaluate': lambda path, m: text_tasks._lines('', path),
  'passages': lambda path, m: [
    (x.where, x['text']) for x in choices._passages(path)
  ],
  'table': lambda path, m: [(x, y[0]) for x, y in records.tsv_rows(path)],
  'held-out text': held_out,
}


@pytest.mark.parametrize('reader', READERS)
def test_lines_end_at_line_feeds(tmp_path, monkeypatch, reader):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_bytes(DATA)
  found = READERS[reader]('a.txt', monkeypatch)
  name = 'standard input' if reader == 'standard input' else 'a.txt'
  assert found == [(f'{name}:{n}', x) for n, x in enumerate(LINES, start=1)]


@pytest.mark.parametrize('reader', READERS)
def test_what_is_no_utf8_is_refused_with_its_place(
  tmp_path, monkeypatch, reader
):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_bytes(b'a\nbc\xff\nd')
  where = {
    'standard input': 'standard input:2: is not UTF-8: byte 2',
    'held-out text': 'a.txt: is not UTF-8: byte 4',  # read as a whole
  }.get(reader, 'a.txt:2: is not UTF-8: byte 2')
  with pytest.raises(UsageError, match=where):
    READERS[reader]('a.txt', monkeypatch)


def test_lines_of_json(tmp_path, monkeypatch):
  """A byte-order mark, and both line ends."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.jsonl').write_bytes(
    b'\xef\xbb\xbf{"prompt": "alpha", "source": "x"}\r\n'
    b'{"prompt": "a\\rb", "source": "y"}'
  )
  assert [x.text for x in prompt_files.read('a.jsonl')] == ['alpha', 'a\rb']
  assert [x.text for x in prompt_files.read_sources('a.jsonl')] == ['x', 'y']


@pytest.mark.parametrize(
  'data, expected',
  [
    (b'\xef\xbb\xbfa\rb\r\nc\r\n', 'a\rb\r\nc'),
    (b'a\n\n', 'a\n'),
    (b'a', 'a'),
  ],
)
def test_a_prompt_of_standard_input_is_a_whole_text(
  monkeypatch, data, expected
):
  monkeypatch.setattr('sys.stdin', stdin_of(data))
  (prompt,) = prompt_files.typed('--prompt', ['-'])
  assert prompt == expected
