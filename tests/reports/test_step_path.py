# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The path of a step: what it lists is there, in order, and in the docs.

python tests/reports/test_step_path.py    # writes docs/architecture.md anew
"""

import pathlib
import re

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.reports import step_path
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / 'docs/architecture.md'
SHOWN = ('configs/gpt2.py', 'configs/bert.py')


def of_config(path):
  config = config_lib.resolve_model(loading.read(path))
  return step_path.functions(config)


def of_tiny(**overrides):
  config = config_lib.resolve(tiny.config(**overrides))
  return step_path.functions(config)


def block(page, path):
  """The code block of the page that follows the name of a config."""
  return re.search(rf'\(`{path}`\):\n\n```\n(.*?)```', page, re.DOTALL)


@pytest.mark.parametrize('path', SHOWN)
def test_the_page_shows_the_rooms_of_a_step(path):
  text = block(PAGE.read_text(encoding='utf-8'), path)[1]
  assert text == f'{step_path.rooms(of_config(path))}\n'


def test_each_line_names_a_definition_and_comes_once():
  entered = of_tiny()
  assert len({*entered}) == len(entered)
  for function in entered:
    lines = (ROOT / 'gpt_jax' / function.file).read_text('utf-8').splitlines()
    rest = lines[function.line - 1 :]
    first = next(line for line in rest if line.lstrip().startswith('def '))
    assert f'def {function.name.rpartition(".")[2]}(' in first, function


def test_callers_come_before_callees_and_are_indented_less():
  """The order of the hops in README, down to the matrix product."""
  depths = {function.name: function.depth for function in of_tiny()}
  hops = (
    'train_step',
    'Causal.loss',
    'Transformer.__call__',
    'Stack.__call__',
    'Block.__call__',
    'Attention.__call__',
    'attend',
  )
  names = [name for name in depths if name in hops]
  assert names == [*hops]
  assert [depths[hop] for hop in hops] == sorted({depths[hop] for hop in hops})


def test_experts_are_on_the_path_of_a_model_that_has_them_alone():
  dense = {f.name for f in of_tiny(**{'model.ffn': 'relu'})}
  experts = {f.name for f in of_tiny(**{'model.ffn': 'switch(num_experts=2)'})}
  assert 'FeedForward.__call__' in dense - experts
  assert 'Switch.__call__' in experts - dense


if __name__ == '__main__':
  page = PAGE.read_text(encoding='utf-8')
  for shown in SHOWN:
    old = block(page, shown)
    new = step_path.rooms(of_config(shown))
    page = f'{page[: old.start(1)]}{new}\n{page[old.end(1) :]}'
  PAGE.write_text(page, encoding='utf-8')
