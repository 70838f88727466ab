# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md has what the code logs, and nothing else."""

import ast
import pathlib
import re

from tests.support.metrics_page import EVENTS, METRICS

ROOT = pathlib.Path(__file__).parents[2]
# What a metric of an objective or of a rollout begins with.
_GROUPS = (
  'objective/',
  'rewards/',
  'logps/',
  'completions/',
  'policy/',
  'val/',
  'loss/',
  'clip_ratio/',
  'rollout/',
  'time/',
  'memory/',
)
_VARIES = re.compile(r'[A-Z]+')


def literals(tree):
  """Texts of the code; a part that varies is X."""
  inside = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.JoinedStr):
      inside |= {id(part) for part in node.values}
      yield ''.join(part.value if isinstance(part, ast.Constant) else 'X' for part in node.values)
  for node in ast.walk(tree):
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if is_text and id(node) not in inside:
      yield node.value


def logged(path):
  """The names of `_GROUPS` in a file."""
  tree = ast.parse(path.read_text(encoding='utf-8'))
  for text in literals(tree):
    if text.startswith(_GROUPS) and not text.endswith(('/', '_')):
      yield text


def shape(name):
  """A name with each part that varies as X."""
  return _VARIES.sub('X', name)


def test_every_metric_of_an_objective_is_listed():
  listed = {shape(name) for name in METRICS}
  found = {
    name
    for room in ('core/objectives', 'papers', 'tuning')
    for path in (ROOT / 'gpt_jax' / room).rglob('*.py')
    for name in logged(path)
  }
  assert len(found) > 30
  assert found - {'memory/rollout'} <= listed, found - listed
  of_groups = {name for name in listed if name.startswith(_GROUPS)}
  assert of_groups <= found, of_groups - found


def test_every_other_metric_is_one_of_the_code():
  files = [*(ROOT / 'gpt_jax').rglob('*.py')]
  source = {
    text for path in files for text in literals(ast.parse(path.read_text(encoding='utf-8')))
  }
  # `dropped` and the like are fields of the routers' statistics.
  moe = (ROOT / 'gpt_jax/core/nn/router_stats.py').read_text()
  for name in METRICS:
    last = name.rpartition('/')[2]
    if not name.startswith(_GROUPS) and not _VARIES.fullmatch(last):
      field = name.startswith('router/') and f'  {last}: jax.Array' in moe
      assert {name, last, f'X/{last}'} & source or field, name
  for event in EVENTS:
    assert event in source


def test_the_events_are_listed():
  found = set()
  for path in (ROOT / 'gpt_jax/core/training').glob('*.py'):
    text = path.read_text(encoding='utf-8')
    found |= {*re.findall(r"event='(\w+)'", text)}
    found |= {*re.findall(r"'event': '(\w+)'", text)}
  assert found == {*EVENTS}
