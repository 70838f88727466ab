# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parquet files as documents."""

import pytest

from gpt_jax.core.files import lines
from gpt_jax.core.text import parquet as parquet_source
from gpt_jax.core.text import sources

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
  assert read("parquet('*.parquet')") == [(f'a.parquet:{i}', f'é{i}') for i in range(601) if i % 7]
  assert read("parquet('a.parquet', column='meta.body')")[600].text == 'm600'
  assert read("parquet('a.parquet', 'wide')")[600].text == 'w'
  assert read("parquet('a.parquet', 'dict')")[600].text == 'f'


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


def test_a_long_text_is_skipped(corpus, monkeypatch):
  write('a.parquet', {'text': ['a', 'b' * 101, 'c' * 100]})
  monkeypatch.setattr(lines, 'LONGEST', 100)
  found = read("parquet('a.parquet', on_error='skip')")
  assert [document.text[0] for document in found] == ['a', 'c']


@pytest.mark.parametrize('group', [7, 10**6])
def test_as_many_rows_are_decoded_as_fit(corpus, monkeypatch, group):
  texts = [f'{i}' * 50 for i in range(61)]
  write('a.parquet', {'text': texts}, row_group_size=group)
  monkeypatch.setattr(parquet_source, '_HELD', 300)
  assert [document.text for document in read("parquet('a.parquet')")] == texts


def test_what_is_bad_is_skipped(table, caplog):
  (table / 'b.parquet').write_bytes(b'no')
  call = "parquet('*.parquet', 'raw', on_error='skip')"
  assert len(read(call)) == 600
  assert 'skipped 1 that is not UTF-8' in caplog.text
  assert 'skipped 1 that is not a Parquet file' in caplog.text


def test_errors_of_arrow_alone_are_skipped(table, caplog, monkeypatch):
  """Some of pyarrow's errors are none of Python's own kinds."""
  pa = pytest.importorskip('pyarrow')
  values = parquet_source._values

  def exceeding(tables, path, column):
    if path == 'b.parquet':
      raise pa.lib.ArrowCapacityError('too much')
    return values(tables, path, column)

  monkeypatch.setattr(parquet_source, '_values', exceeding)
  (table / 'b.parquet').write_bytes((table / 'a.parquet').read_bytes())
  assert len(read("parquet('*.parquet', on_error='skip')")) == 515
  assert 'b.parquet: cannot be read: too much; fetch' in caplog.text


def test_damaged_files_are_skipped_or_read(table):
  """Each bit of the schema and of the footer, and each length, in turn."""
  whole = (table / 'a.parquet').read_bytes()
  other = table / 'b.parquet'
  for cut in range(0, len(whole), len(whole) // 7):
    other.write_bytes(whole[:cut])
    assert len(read("parquet('*.parquet', on_error='skip')")) >= 515
  for place in range(len(whole) - 400, len(whole), 17):
    data = bytearray(whole)
    data[place] ^= 1 << place % 8
    other.write_bytes(data)
    assert len(read("parquet('*.parquet', on_error='skip')")) >= 515
