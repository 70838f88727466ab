# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each field of a config is explained, by the command and by a page."""

import pathlib
import typing

import pytest

from gpt_jax.core.config.defaults import FIELDS, SECTIONS
from gpt_jax.core.nn.stack import REMATS
from gpt_jax.core.nn.transformer import DTYPES
from gpt_jax.core.objectives.choices import OBJECTIVES, PRETRAINING
from gpt_jax.reports import explaining

PAGE = pathlib.Path(__file__).parents[2] / 'docs/fields.md'


@pytest.mark.parametrize(('name', 'table'), [('model.dtype', DTYPES), ('model.remat', REMATS)])
def test_names_are_those_of_the_table(name, table):
  """They are written out, as the table is in a file that imports JAX."""
  assert {*typing.get_args(FIELDS[name].takes)} == {*table}


@pytest.mark.parametrize('name', [*FIELDS, *SECTIONS])
def test_has_a_line(name):
  doc = {**FIELDS, **SECTIONS}[name].doc
  assert doc.endswith('.') or doc.endswith(('."', ': the fraction.')), doc
  assert '\n' not in doc


def test_the_page_has_each_field_once():
  written = PAGE.read_text(encoding='utf-8')
  for name in FIELDS:
    assert written.count(f'| `{name}` |') == 1, name
  # The objectives of fine-tuning are left out, as no config names them.
  objectives = written.partition('### objective.name')[2].partition('\n## ')[0]
  for name in OBJECTIVES:
    assert (f'- `{name}(' in objectives) == (name in PRETRAINING), name


def test_a_range():
  (found,) = explaining.explain('model.num_layers', {})
  assert found == {
    'field': 'model.num_layers',
    'default': 12,
    'takes': 'whole numbers from 1 to 10,000',
    'free_on_resume': False,
    'doc': 'Number of layers; in an encoder-decoder, of the decoder.',
    'calls': {},
  }


def test_calls_with_their_arguments():
  (found,) = explaining.explain('optim.on_spike', {})
  assert found['free_on_resume']
  assert found['takes'] == 'a call'
  skip = found['calls']['skip(at_most=10)']
  assert skip['takes'] == {'at_most': 'whole numbers >= 0'}
  assert skip['doc'].startswith('Skips the update of a batch')
  lines = explaining.text([found]).splitlines()
  assert lines[:2] == ["optim.on_spike='stop'", '  takes a call; free on resume']
  assert '  skip(at_most=10)' in lines


def test_a_section_and_the_users_own_names():
  found = explaining.explain('eval', {})
  assert [field['field'] for field in found] == [
    *(f'eval.{name}' for name in ('every_steps', 'rows', 'num_batches')),
    *(f'eval.{name}' for name in ('tasks', 'tasks_dir', 'sets', 'words')),
  ]
  assert found[-1]['takes'] == 'fields with names of your own'
  assert all(field['free_on_resume'] for field in found)
