# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of all kinds as records; what is said of bad ones."""

import json

import pytest

from gpt_jax.core.files import records
from gpt_jax.core.spec import UsageError
from tests.support.tables import put


def test_tables_of_all_kinds_hold_the_same(tmp_path):
  rows = [{'a': 'x "y"', 'b': '1'}, {'a': 'z', 'b': ''}]
  files = {
    't.tsv': 'a\tb\nx "y"\t1\n\nz\t\n',
    't.txt': '\ufeffa\tb\r\nx "y"\t1\r\nz\t\r\n',
    't.csv': 'a,b\n"x ""y""",1\nz,\n',
    't.tsv.gz': 'a\tb\nx "y"\t1\nz\t\n',
    't.jsonl': ''.join(json.dumps(row) + '\n' for row in rows),
  }
  for name, text in files.items():
    found = list(records.read(put(tmp_path, name, text)))
    assert [r.fields for r in found] == rows, name
  lines = [r.where for r in records.read(str(tmp_path / 't.tsv'))]
  assert [line.rpartition(':')[2] for line in lines] == ['2', '4']
  bare = put(tmp_path, 'bare.tsv', 'x\t1\nz\t2\n')
  found = [r.fields for r in records.read(bare, ('a', 'b'))]
  assert found == [{'a': 'x', 'b': '1'}, {'a': 'z', 'b': '2'}]


def test_a_quoted_entry_may_span_lines(tmp_path):
  path = put(tmp_path, 't.csv', 'a,b\n"x\ny",1\nz,2\n')
  found = list(records.read(path))
  assert found[0]['a'] == 'x\ny'
  assert found[1].where == f'{path}:4'


@pytest.mark.parametrize(
  'name, text, why',
  [
    ('t.tsv', 'a\tb\nx\n', r't\.tsv:2: has 1 columns, not 2 \(a, b\)'),
    ('t.csv', 'a,b, a,\n1,2,3,\n', r"t\.csv:1: has 2 columns 'a'; rename"),
    ('t.jsonl', '{"a": 1}\n[]\n', r't\.jsonl:2: is not a JSON object'),
    ('t.jsonl', '{"a": \n', r't\.jsonl:1: is not JSON'),
    ('t.csv', 'a\n"x\n', r't\.csv:2: is not CSV'),
    ('t.xls', '', 'is none of .tsv'),
    ('gone/', '', 'no such file|is none of'),
  ],
)
def test_a_bad_table_names_file_and_line(tmp_path, name, text, why):
  path = str(tmp_path / 'gone.tsv')
  if name != 'gone/':
    path = put(tmp_path, name, text)
  with pytest.raises(UsageError, match=why):
    list(records.read(path))
