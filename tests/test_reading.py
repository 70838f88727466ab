# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""README's way is the way that a run takes; each addition has its tests."""

import functools
import importlib
import pathlib
import re

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.spec import Table
from tests.support import house, tiny

ROOT = pathlib.Path(__file__).parents[1]


def hops():
  """The files from a config to the gradient, and those of the model."""
  page = (ROOT / 'README.md').read_text(encoding='utf-8')
  section = page.partition('## Where to read first')[2].partition('\nThen: ')[0]
  assert section
  # What is in brackets is another model's.
  return set(
    re.findall(r'`(gpt_jax/[\w/]+\.py)`', re.sub(r'\(.*?\)', '', section, flags=re.DOTALL))
  )


@pytest.mark.slow
def test_a_run_enters_every_file_of_the_way(tmp_path):
  with house.entered() as files:
    code = main(
      [
        'train',
        f'--config={ROOT}/configs/smoke.py',
        *tiny.flags(
          data=dict(source=f"text('{ROOT}/configs/g*.py')", holdout='tail(fraction=0.1)'),
          tokenizer=dict(name='bytes'),
          model=dict(num_layers=2, d_model=16, num_heads=2, context_length=13),
          batch=dict(micro_rows=1),
          schedule=dict(num_steps=2, name='constant(peak=1e-2)'),
          log=dict(sample_prompt=''),
        ),
        f'--workdir={tmp_path / "w"}',
      ]
    )
  assert code == 0
  way = hops()
  assert len(way) >= 9
  assert way <= files


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
