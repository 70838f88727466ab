# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources: which documents there are, and what is said of bad files."""

import gzip
import json
import os

import pytest
import zstandard

from gpt_jax.core.files import lines
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources

FIELD = 'data.source'


def read(text):
  return list(sources.documents(FIELD, text))


def two_frames(data):
  """Compresses as zstd does when it appends to a file."""
  compress = zstandard.ZstdCompressor().compress
  return compress(data[:10]) + compress(data[10:])


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


@pytest.mark.parametrize('ending', ['jsonl', 'jsonl.gz', 'jsonl.zst'])
def test_jsonl_is_one_document_a_line(corpus, ending):
  lines = [json.dumps({'body': f'text {i}', 'n': i}) for i in range(3)]
  data = '\n'.join([*lines[:2], '', lines[2]]).encode()
  data = gzip.compress(data) if ending.endswith('gz') else data
  data = two_frames(data) if ending.endswith('zst') else data
  (corpus / f'part.{ending}').write_bytes(data)
  assert read(f"jsonl('part.{ending}', field='body')") == [
    (f'part.{ending}:1', 'text 0'),
    (f'part.{ending}:2', 'text 1'),
    (f'part.{ending}:4', 'text 2'),
  ]


BAD = b"""{"text": "one"}
{"text": "two"
{"body": "three"}
{"text": "\xff"}
{"text": ""}
{"text": "six"}
"""


def test_what_is_bad_is_skipped_and_counted(corpus, caplog):
  caplog.set_level('INFO')
  (corpus / 'a.jsonl').write_bytes(BAD)
  (corpus / 'b.jsonl').write_bytes(b'')
  whole = gzip.compress(b''.join(b'{"text": "%d"}\n' % i for i in range(9999)))
  (corpus / 'c.jsonl.gz').write_bytes(whole[:-2000])
  source = sources.load(FIELD, "jsonl('*.jsonl*', on_error='skip')")
  found = list(source.documents())
  assert found[:2] == [('a.jsonl:1', 'one'), ('a.jsonl:6', 'six')]
  # What comes before the break is read.
  assert 100 < len(found) < 9999
  assert found[2:] == [(f'c.jsonl.gz:{i + 1}', str(i)) for i in range(len(found) - 2)]
  told = caplog.text
  for kind in ('is not JSON', 'has no text', 'is not UTF-8', 'cannot be read'):
    assert told.count(f'skipped 1 that {kind}') == 1
  assert 'a.jsonl:2: is not JSON' in told
  assert f'c.jsonl.gz:{len(found) - 1}: cannot be read' in told
  assert 'left out 1 that held no text' in told
  caplog.clear()
  assert list(source.documents()) == found and not caplog.text


def test_files_that_are_bad_are_skipped(corpus, caplog):
  (corpus / 'bad.md').write_bytes(b'ab\xff')
  (corpus / 'good.md').write_bytes(b'abc')
  (corpus / 'link.md').symlink_to('link.md')
  assert read("text('*.md', on_error='skip')") == [('good.md', 'abc')]
  assert 'skipped 1 that is not UTF-8' in caplog.text
  assert 'skipped 1 that is a link in a circle' in caplog.text


@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_passages_are_cut_at_the_first_blank_line_after_so_many_chars(corpus, end):
  paragraphs = ['x' * n for n in (3, 5, 11, 2, 7, 1)]
  for name in ('a.md', 'b.md'):
    (corpus / name).write_bytes((end * 2).join(paragraphs).encode())
  want = ['xxx\n\nxxxxx', 'x' * 11, 'xx\n\n' + 'x' * 7, 'x']
  found = read('passages("text(\'*.md\')", chars=8)')
  assert [d.name for d in found[:4]] == [f'a.md#{i}' for i in (1, 2, 3, 4)]
  texts = [d.text.replace('\r', '') for d in found]
  assert texts == 2 * want
  assert not any(d.text.endswith(('\r', '\n')) for d in found)


def test_a_byte_order_mark_is_no_text(corpus):
  mark = b'\xef\xbb\xbf'
  (corpus / 'a.md').write_bytes(mark + 'one\ufefftwo'.encode())
  (corpus / 'b.md').write_bytes(mark)  # no text at all
  assert read("text('*.md')") == [('a.md', 'one\ufefftwo')]
  line = b'{"text": "x"}\n'
  (corpus / 'a.jsonl').write_bytes(mark + line * 2)
  assert [d.text for d in read("jsonl('a.jsonl')")] == ['x', 'x']


def odd_files(folder, end):
  """Files that cannot be read, each in another way; without a right to them."""
  (folder / f'nowhere{end}').symlink_to('gone')
  os.mkfifo(folder / f'pipe{end}')
  # A regular file whose first read fails with an I/O error.
  (folder / f'memory{end}').symlink_to('/proc/self/mem')
  (folder / f'folder{end}').mkdir()


NO_FILE = ['is a link that leads nowhere', 'is not a regular file']


@pytest.mark.parametrize(
  ('call', 'end', 'text'),
  [
    ("text('*.md'{})", '.md', 'one'),
    ("jsonl('*.jsonl'{})", '.jsonl', '{"text": "one"}'),
    ("parallel_jsonl('*.jsonl', 'a', 'b'{})", '.jsonl', '{"a": "x", "b": "y"}'),
    ("parallel_text('*.md', '*.md'{})", '.md', 'one'),
  ],
)
def test_what_is_no_readable_file_is_named_or_skipped(corpus, caplog, call, end, text):
  good = corpus / f'good{end}'
  good.write_text(text)
  odd_files(corpus, end)
  assert read(call.format(", on_error='skip'"))
  for kind in (*NO_FILE, 'cannot be read'):
    assert f'that {kind}' in caplog.text
  for name in (f'nowhere{end}', f'pipe{end}'):
    with pytest.raises(UsageError, match=rf"{name}: is .*on_error='skip'"):
      read(call.format(''))
    (corpus / name).unlink()
  remedy = "cannot be read: Input/output error; .*on_error='skip'"
  with pytest.raises(UsageError, match=f'memory{end}: {remedy}'):
    read(call.format(''))
  with pytest.raises(UsageError, match=f'memory{end}: {remedy}'):
    sources.load(FIELD, call.format('')).check()
  sources.load(FIELD, call.format(", on_error='skip'")).check()


def test_a_file_without_the_right_to_read_it(corpus, monkeypatch):
  (corpus / 'a.md').write_text('x')

  def denied(path, mode):
    raise PermissionError(13, 'Permission denied', path)

  monkeypatch.setattr(lines, 'open', denied, raising=False)
  message = 'a.md: cannot be read: Permission denied; give yourself the right'
  with pytest.raises(UsageError, match=message):
    read("text('a.md')")


@pytest.mark.parametrize(
  'call',
  [
    "text('*.md')",
    'passages("text(\'*.md\')")',
    'mixture(a:"text(\'docs/*.txt\')", b:"text(\'*.md\')")',
  ],
)
def test_the_beginnings_of_files_are_looked_at(corpus, call):
  (corpus / 'a.md').write_text('ä' * (1 << 20))  # a character is cut
  sources.load(FIELD, call).check()
  (corpus / 'b.md').write_bytes('one\ntwo é'.encode('latin1'))
  with pytest.raises(UsageError, match=r'b\.md:2: is not UTF-8: byte 4'):
    sources.load(FIELD, call).check()
