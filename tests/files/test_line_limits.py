# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What no reader may hold: long lines, bombs, JSON that Python cannot read."""

import gzip
import json
import tracemalloc

import pytest
import zstandard

from gpt_jax.files import lines, records
from gpt_jax.spec import UsageError
from gpt_jax.text import sources
from gpt_jax.text.clean import decontaminate

MIB = 1 << 20
PACKED = {
  '': bytes,
  '.gz': lambda data: gzip.compress(data, 9),
  '.zst': zstandard.ZstdCompressor().compress,
}
LONG = '"' + 'long ' * 30 + '"'


def write(folder, name, data):
  ending = '.' + name.rpartition('.')[2]
  pack = PACKED.get(ending, PACKED[''])
  (folder / name).write_bytes(pack(data))
  return str(folder / name)


def fail(bad):
  raise bad


@pytest.mark.parametrize('ending', PACKED)
@pytest.mark.parametrize('end', [b'\n', b''])
def test_a_long_line_is_left_out(tmp_path, monkeypatch, ending, end):
  monkeypatch.setattr(lines, 'LONGEST', 10)
  longest = b'9 letters\n'
  data = [b'a\n', b'x' * 11 + b'\n', b'\n', longest, b'y' * 3000 + end]
  path = write(tmp_path, f'a{ending}', b''.join(data))
  found = []
  assert [*lines.every(path, found.append)] == [
    b'a\n',
    b'',
    b'\n',
    longest,
    b'',
  ]
  assert [*lines.numbered(path, lambda bad: None)] == [
    (1, b'a\n'),
    (4, longest),
  ]
  why = 'has more than 64 MiB in one line; split the line, or leave it out'
  assert [str(bad) for bad in found] == [f'{path}:{n}: {why}' for n in (2, 5)]


@pytest.mark.parametrize('ending', ['.gz', '.zst'])
def test_a_bomb_is_not_held(tmp_path, monkeypatch, ending):
  monkeypatch.setattr(lines, 'LONGEST', MIB)
  monkeypatch.setattr(lines, 'LARGEST', MIB)
  size = (64 if ending == '.gz' else 256) * MIB
  pieces = [b'{}\n', bytes(size), b'\n{}\n']
  path = write(tmp_path, f'a{ending}', b''.join(pieces))
  assert (tmp_path / f'a{ending}').stat().st_size < MIB
  tracemalloc.start()
  try:
    found = [*lines.numbered(path, lambda bad: None)]
    with pytest.raises(UsageError, match='more than 1 MiB, decompressed'):
      lines.contents(path)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert found == [(1, b'{}\n'), (3, b'{}\n')]
  assert peak < 96 * MIB  # a kilobyte of zstd may stand for 32 MiB


# What stands in the place of a number beside a text, and what is said of it.
BAD = {
  'digits': ('9' * 5000, 'is not JSON: .*5000 digits; mend or remove it'),
  'deep': ('[' * 20000 + ']' * 20000, 'is not JSON: values within values'),
  'twice': ('1, "text": "again"', "is not JSON: an object has 'text' twice"),
  'long': (LONG, 'has more than 64 MiB in one line'),
  'broken': ('', 'is not JSON: '),
}
SURROGATE = {'surrogate': ('1', 'holds half of a surrogate pair')}
# A call, or what reads a file.
READERS = {
  'jsonl': "jsonl('a.jsonl', on_error='{}')",
  'parallel_jsonl': "parallel_jsonl('a.jsonl', 'text', 'text', on_error='{}')",
}
TABLES = {
  'records': lambda path: [*records.read(path)],
  'decontaminate': lambda path: [*decontaminate.read([path], '', 1)],
}


def put(tmp_path, monkeypatch, kind):
  monkeypatch.chdir(tmp_path)
  value, why = (BAD | SURROGATE)[kind]
  if kind == 'long':
    monkeypatch.setattr(lines, 'LONGEST', 90)
  text = '"a\\ud800"' if kind == 'surrogate' else '"bad"'
  good = json.dumps({'text': 'good', 'id': 1})
  rows = [good, f'{{"text": {text}, "id": {value}}}', good]
  return write(tmp_path, 'a.jsonl', '\n'.join(rows).encode()), why


@pytest.mark.parametrize('kind', BAD | SURROGATE)
@pytest.mark.parametrize('name', READERS)
def test_a_bad_line_of_json_is_refused_or_skipped(
  tmp_path, monkeypatch, caplog, kind, name
):
  _, why = put(tmp_path, monkeypatch, kind)
  call = READERS[name]
  with pytest.raises(UsageError, match=rf'^a\.jsonl:2: {why}'):
    [*sources.documents('data.source', call.format('fail'))]
  found = [*sources.documents('data.source', call.format('skip'))]
  assert {document.text for document in found} == {'good'}
  assert 'skipped 1 that' in caplog.text


@pytest.mark.parametrize('kind', BAD | SURROGATE)
@pytest.mark.parametrize('name', TABLES)
def test_a_bad_line_of_a_table_is_refused(tmp_path, monkeypatch, kind, name):
  path, why = put(tmp_path, monkeypatch, kind)
  with pytest.raises(UsageError, match=rf'a\.jsonl:2: {why}'):
    TABLES[name](path)


@pytest.mark.parametrize(
  'kind', ['digits', 'deep', 'surrogate', 'broken', 'gz']
)
def test_bad_json_of_squad_is_refused(tmp_path, kind):
  value, why = (BAD | SURROGATE | {'gz': ('1', 'cannot be read')})[kind]
  data = f'{{"data": [], "version": "\\ud800", "n": {value}}}'.encode()
  if kind != 'surrogate':
    data = data.replace(b'\\ud800', b'')
  name = 'a.json'
  if kind == 'gz':
    name, data = 'a.json.gz', b'not gzip'
    (tmp_path / name).write_bytes(data)
  else:
    write(tmp_path, name, data)
  with pytest.raises(UsageError, match=rf'a\.json.*: {why}'):
    [*records.read(str(tmp_path / name))]


def test_nested_texts_of_evaluation_files_are_read(tmp_path):
  depth = 500
  data = '{"a": ["one", ' + '[' * depth + '"two"' + ']' * depth + ']}'
  path = write(tmp_path, 'a.jsonl', data.encode())
  assert [*decontaminate.read([path], '', 1)] == [('a.jsonl:1', 'one two')]


def test_numbers_of_pairs_stay_where_a_line_is_left_out(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(lines, 'LONGEST', 20)
  write(tmp_path, 'a', b'a1\n' + b'a2' * 20 + b'\na3\n')
  write(tmp_path, 'b', b'b1\nb2\nb3\n')
  call = "parallel_text('a', 'b', on_error='{}')"
  with pytest.raises(UsageError, match=r'^a:2: has more than'):
    [*sources.documents('data.source', call.format('fail'))]
  found = [*sources.documents('data.source', call.format('skip'))]
  assert [document.text for document in found] == ['a1', 'b1', 'a3', 'b3']
  write(tmp_path, 'b', b'b1\nb2\n')
  with pytest.raises(UsageError, match='a has 3 lines and b has 2'):
    [*sources.documents('data.source', call.format('skip'))]


def test_a_quote_that_is_not_closed_does_not_take_all(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, 'LONGEST', 99)
  path = write(tmp_path, 'a.csv', b'text\n"x\n' + b'y\n' * 100)
  with pytest.raises(UsageError, match=r'a\.csv:\d+: is not CSV'):
    [*records.read(path)]
