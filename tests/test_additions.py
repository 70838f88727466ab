# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md says which tests ask for a choice, and they do.

Each row of a table is in a test that the page names for it, or in one of the
tests of its own paper or wing.
"""

import functools
import importlib
import pathlib
import re

import pytest

from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.spec import Table

ROOT = pathlib.Path(__file__).parents[1]
_NAMED = re.compile(r'((?:`[A-Z]+`(?:, )?)+) in `(gpt_jax/[\w/]+)\.py`')


def listed():
  """The tables of the page, each with the tests that it names."""
  page = (ROOT / 'docs/architecture.md').read_text(encoding='utf-8')
  section = page.split('\n## A choice\n')[1].split('\n## ')[0]
  for line in section.splitlines():
    if line.startswith('| ') and '`tests/' in line:
      tables, tests = line.split(' | ')[1:3]
      paths = re.findall(r'`(tests/[\w/]+\.py)`', tests)
      for names, module in _NAMED.findall(tables):
        for name in re.findall('[A-Z]+', names):
          module = module.replace('/', '.')
          yield pytest.param(table_of(module, name), paths, id=name)


def table_of(module, name):
  return getattr(importlib.import_module(module), name)


@functools.cache
def text(path):
  return (ROOT / path).read_text(encoding='utf-8')


@functools.cache
def own_tests(row):
  """The tests of the paper or the wing that a row is of."""
  if not isinstance(row, str) or row.startswith('gpt_jax.core.'):
    return []
  parts = row.partition(':')[0].split('.')[1:]
  folder = '/'.join(parts[: 1 + (parts[0] == 'papers')])
  tests = (ROOT / 'tests' / folder).rglob('test_*.py')
  return [text(str(path.relative_to(ROOT))) for path in tests]


@pytest.mark.parametrize('table, paths', [*listed()])
def test_each_choice_is_in_a_test_that_the_page_names(table, paths):
  rows = table.rows if isinstance(table, Table) else {}
  for choice in table:
    tests = [*map(text, paths), *own_tests(rows.get(choice))]
    assert any(re.search(rf'\b{choice}\b', test) for test in tests), choice


def test_the_page_has_the_tables_of_the_model():
  tables = [param.values[0] for param in listed()]
  # Of backends, scales and pipelines there is one question each.
  alone = {'attention_scale', 'pipeline'}
  missing = [
    field
    for field, table in CHOICES.items()
    if field not in alone and not any(table is other for other in tables)
  ]
  assert not missing
