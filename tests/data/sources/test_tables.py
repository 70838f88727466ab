# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parquet files as documents."""

import pytest

from gpt_jax.data.sources import sources
from gpt_jax.spec import UsageError

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
    "parquet('a.parquet', 'n')": ["'n'", 'text (BYTE_ARRAY)', 'n (INT64)'],
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


def test_what_is_bad_is_skipped(table, caplog):
  (table / 'b.parquet').write_bytes(b'no')
  call = "parquet('*.parquet', 'raw', on_error='skip')"
  assert len(read(call)) == 600
  assert 'skipped 1 that is not UTF-8' in caplog.text
  assert 'skipped 1 that is not a Parquet file' in caplog.text
