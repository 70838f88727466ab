# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parquet files as documents."""

import pytest

from gpt_jax.files import lines
from gpt_jax.spec import UsageError
from gpt_jax.text import sources

pa = pytest.importorskip('pyarrow', reason='needs the extra tfds')
parquet = pytest.importorskip('pyarrow.parquet', reason='needs the extra tfds')


def read(text):
  return list(sources.documents('data.source', text))


@pytest.fixture
def table(corpus):
  table = pa.table(
    {
      'text': [f'é{i}' if i % 7 else None for i in range(601)],
      'wide': pa.array(['w'] * 601, pa.large_string()),
      'raw': pa.array([b'ab'] * 600 + [b'\xff'], pa.binary()),
      'dict': pa.array(['d', 'e'] * 300 + ['f']).dictionary_encode(),
      'n': list(range(601)),
      'meta': [{'body': f'm{i}', 'n': i} for i in range(601)],
    }
  )
  parquet.write_table(table, corpus / 'a.parquet', row_group_size=100)
  return corpus


def test_one_document_a_row(table):
  assert read("parquet('*.parquet')") == [
    (f'a.parquet:{i}', f'é{i}') for i in range(601) if i % 7
  ]
  assert read("parquet('a.parquet', column='meta.body')")[600].text == 'm600'
  assert read("parquet('a.parquet', 'wide')")[600].text == 'w'
  assert read("parquet('a.parquet', 'dict')")[600].text == 'f'


def test_what_is_wrong_is_named(table):
  (table / 'b.parquet').write_bytes(b'no')
  data = (table / 'a.parquet').read_bytes()
  broken = data[:4] + bytes(3000) + data[3004:]
  (table / 'c.parquet').write_bytes(broken)
  for call, words in {
    "parquet('a.parquet', 'n')": ["'n'", 'text (string)', 'n (int64)'],
    "parquet('a.parquet', 'body')": ["'body'", 'meta.body'],
    "parquet('a.parquet', 'raw')": ['a.parquet:600: is not UTF-8: byte 0'],
    "parquet('b.parquet')": ['b.parquet: is not a Parquet file'],
    "parquet('c.parquet')": ['c.parquet: cannot be read'],
  }.items():
    with pytest.raises(UsageError) as e:
      read(call)
    for word in words:
      assert word in str(e.value), str(e.value)
    assert '\n' not in str(e.value)


def write(path, table, **options):
  parquet.write_table(pa.table(table), path, **options)


def test_names_with_dots(corpus):
  texts = [f'é{i}' for i in range(5)]
  write('flat.parquet', {'meta.text': texts, 'meta.text.x': ['n'] * 5})
  write('inner.parquet', {'a.b': [{'c.d': {'e': t}, 'c': 'n'} for t in texts]})
  for call in (
    "parquet('flat.parquet', 'meta.text')",
    "parquet('inner.parquet', column='a.b.c.d.e')",
  ):
    assert [document.text for document in read(call)] == texts


@pytest.mark.parametrize('rows', [[['a'], []], [{'x': 'a'}, None]])
def test_what_a_refusal_names_can_be_read(corpus, rows):
  kind = pa.list_(pa.string()) if rows[0] == ['a'] else pa.map_(*['string'] * 2)
  rows = [[*row.items()] if isinstance(row, dict) else row for row in rows]
  write('a.parquet', {'text': pa.array(rows, kind), 'body.x': ['a', 'b']})
  for column in ('text', 'text.list.element', 'text.key_value.key', 'body'):
    held = r'it holds text \((list|map)<.*>\), body\.x \(string\); name'
    with pytest.raises(UsageError, match=f'no column of texts .*{held}'):
      read(f"parquet('a.parquet', '{column}')")
  assert len(read("parquet('a.parquet', 'body.x')")) == 2


def test_two_columns_of_one_name_are_refused(corpus):
  rows = [pa.array(['a']), pa.array([{'text': 'b'}])]
  write('a.parquet', pa.Table.from_arrays(rows, ['meta.text', 'meta']))
  with pytest.raises(UsageError, match=', 2 of them, it holds'):
    read("parquet('a.parquet', 'meta.text')")


def test_a_long_text_is_refused_or_skipped(corpus, monkeypatch):
  write('a.parquet', {'text': ['a', 'b' * 101, 'c' * 100]})
  monkeypatch.setattr(lines, 'LONGEST', 100)
  with pytest.raises(UsageError, match=r'a\.parquet:1: has more than 64 MiB'):
    read("parquet('a.parquet')")
  found = read("parquet('a.parquet', on_error='skip')")
  assert [document.text[0] for document in found] == ['a', 'c']


@pytest.mark.parametrize('group', [7, 10**6])
def test_as_many_rows_are_decoded_as_fit(corpus, monkeypatch, group):
  texts = [f'{i}' * 50 for i in range(61)]
  write('a.parquet', {'text': texts}, row_group_size=group)
  monkeypatch.setattr(sources, '_HELD', 300)
  assert [document.text for document in read("parquet('a.parquet')")] == texts


def test_what_is_bad_is_skipped(table, caplog):
  (table / 'b.parquet').write_bytes(b'no')
  call = "parquet('*.parquet', 'raw', on_error='skip')"
  assert len(read(call)) == 600
  assert 'skipped 1 that is not UTF-8' in caplog.text
  assert 'skipped 1 that is not a Parquet file' in caplog.text
