# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of all kinds as records, and what is said of what does not fit."""

import json
from typing import Any, NotRequired, TypedDict

import pytest

from gpt_jax.core import ranges
from gpt_jax.core.files import records, schema
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


class Part(TypedDict):
  id: int


class Whole(TypedDict):
  name: str
  parts: list[Part]
  size: NotRequired[ranges.Count | None]
  sizes: NotRequired[dict[str, int]]
  loss: NotRequired[float]


GOOD = {'name': 'x', 'parts': [{'id': 1}], 'more': {}}


@pytest.mark.parametrize(
  'more',
  [
    {},
    {'size': 3, 'sizes': {'a': 2}, 'loss': 2},
    {'size': None, 'loss': float('nan')},
    {'loss': float('-inf'), 'parts': []},
  ],
)
def test_what_fits(more):
  assert schema.problem({**GOOD, **more}, Whole) == ''


@pytest.mark.parametrize(
  ('value', 'said'),
  [
    ([], 'it must be an object'),
    ({}, 'it lacks name, parts'),
    ({**GOOD, 'name': 3}, 'name must be a text'),
    ({**GOOD, 'parts': {}}, 'parts must be a list'),
    ({**GOOD, 'parts': [{'id': 1}, 5]}, 'parts.1 must be an object'),
    ({**GOOD, 'parts': [{}]}, 'parts.0 lacks id'),
    ({**GOOD, 'parts': [{'id': True}]}, 'parts.0.id must be a whole number'),
    ({**GOOD, 'parts': [{'id': 10**30}]}, 'parts.0.id must be at most '),
    ({**GOOD, 'size': 0}, 'size must be at least 1'),
    ({**GOOD, 'sizes': {'a': None}}, 'sizes.a must be a whole number'),
    ({**GOOD, 'loss': 'x'}, 'loss must be a number'),
    ({**GOOD, 'loss': 10**400}, 'loss must be at most the largest float32'),
    ({**GOOD, 'loss': False}, 'loss must be a number'),
  ],
)
def test_what_does_not(value, said):
  assert schema.problem(value, Whole).startswith(said)


def test_anything():
  assert schema.problem(object(), Any) == ''
