# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources: which documents there are, and what is said of bad files."""

import gzip
import json

import pytest

from gpt_jax.data import sources
from gpt_jax.spec import UsageError

FIELD = 'data.source'


def read(text):
  return list(sources.documents(FIELD, text))


def test_stdlib_is_sorted_without_tests_and_installed_packages():
  found = read('stdlib')
  names = [d.name for d in found]
  assert len(names) > 500 and names == sorted(set(names))
  assert {'argparse.py', 'json/decoder.py'} <= set(names)
  parts = {part for name in names for part in name.split('/')}
  assert not parts & {'test', 'tests', 'site-packages', '__pycache__'}
  assert sum(len(d.text) for d in found) > 5e6


def test_text_names_do_not_depend_on_where_the_files_lie(corpus):
  by_relative = read("text('docs/*.txt')")
  assert read(f"text('{corpus}/docs/*.txt')") == by_relative
  assert by_relative[0].name == '00.txt' and len(by_relative) == 37
  assert [d.name for d in read("text('docs/03.txt')")] == ['03.txt']
  assert [d.name for d in read("text('**/03.txt')")] == ['docs/03.txt']


def test_text_keeps_line_ends_and_leaves_empty_files_out(corpus):
  (corpus / 'a.md').write_bytes(b'x\r\ny\rz\0')
  (corpus / 'b.md').write_bytes(b'')
  assert read("text('*.md')") == [('a.md', 'x\r\ny\rz\0')]


@pytest.mark.parametrize('ending', ['jsonl', 'jsonl.gz'])
def test_jsonl_is_one_document_a_line(corpus, ending):
  lines = [json.dumps({'body': f'text {i}', 'n': i}) for i in range(3)]
  data = '\n'.join([*lines[:2], '', lines[2]]).encode()
  data = gzip.compress(data) if ending.endswith('gz') else data
  (corpus / f'part.{ending}').write_bytes(data)
  assert read(f"jsonl('part.{ending}', field='body')") == [
    (f'part.{ending}:1', 'text 0'),
    (f'part.{ending}:2', 'text 1'),
    (f'part.{ending}:4', 'text 2'),
  ]


@pytest.mark.parametrize(
  ('name', 'data', 'call', 'words'),
  [
    (
      'a',
      b'',
      "text('no/*.txt')",
      ['data.source="text(\'no/*.txt\')"', 'no f'],
    ),
    ('a.md', b'', "text('a.md')", ['data.source', 'no text']),
    ('a.md', b'ab\xff', "text('a.md')", ['a.md: byte 2', 'UTF-8']),
    ('a.jl', b'{"text": "a"}\n{', "jsonl('a.jl')", ['a.jl:2', 'JSON']),
    ('a.jl', b'{"body": "a"}', "jsonl('a.jl')", ['a.jl:1', "'text'", 'body']),
    ('a.jl', b'{"text": 3}', "jsonl('a.jl')", ['a.jl:1', "'text'"]),
    ('a.jl', b'[1]', "jsonl('a.jl')", ['a.jl:1', 'list']),
    ('a.jl', b'"\xff"', "jsonl('a.jl')", ['a.jl:1', 'byte 1']),
    ('a.jl', b'{"text": "\\ud800"}', "jsonl('a.jl')", ['a.jl:1', 'surrogate']),
    ('a.gz', b'not gzip', "jsonl('a.gz')", ['a.gz', 'cannot be read']),
    (
      'a.gz',
      gzip.compress(b'x' * 999, mtime=0)[:-9],
      "jsonl('a.gz')",
      ['a.gz'],
    ),
    ('a', b'', 'texts', ['data.source', 'texts', 'jsonl, stdlib, text']),
  ],
)
def test_what_is_wrong_is_named(corpus, name, data, call, words):
  (corpus / name).write_bytes(data)
  with pytest.raises(UsageError) as e:
    read(call)
  for word in words:
    assert word in str(e.value), str(e.value)
  assert '\n' not in str(e.value)
