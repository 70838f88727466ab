# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: DESIGN.md, section 2."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / 'gpt_jax'
FILES = sorted(ROOT.rglob('*.py'))
PACKAGES = ('nn', 'objectives', 'data', 'optim', 'decoding', 'hf')

ENTRY_POINTS = {
  *('train', 'finetune', 'evaluate', 'generate', 'prepare', 'plan', 'convert'),
  *('inspect', 'plot', 'doctor', 'benchmark', 'benchmarks'),
  *('ablation', 'compare', 'scaling', 'planning', 'tokenizers', '__main__'),
}
# What else of gpt_jax a package or module may import, besides its own files.
ALLOWED = {
  'spec': set(),
  'nn': {'spec'},
  'optim': {'spec'},
  'data': {'spec'},
  # It validates call-strings, so it knows the tables of choices.
  'config': {'nn', 'objectives', 'optim', 'spec'},
  'objectives': {'nn', 'spec'},
  'decoding': {'nn', 'spec'},
  'hf': {'nn', 'spec'},
  'step': {'objectives', 'optim', 'state'},
}
# Linen's modules stay in nn/; these read its metadata of logical axes only.
READS_METADATA = {'state', 'sharding', 'flops'}


def name(path):
  """`nn.attention`, or `train`."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts)


def imports(path):
  """Full names: of modules, and of what is taken from them."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}: a relative import'
      found |= {f'{node.module}.{alias.name}' for alias in node.names}
  return found


def of_ours(path):
  """The top-level parts of gpt_jax that a file imports."""
  return {i.split('.')[1] for i in imports(path) if i.startswith('gpt_jax.')}


def part(path):
  """The package of a file, or the file itself."""
  return name(path).partition('.')[0]


def test_the_checked_files_are_all():
  parts = {part(path) for path in FILES}
  assert {'nn', 'optim', 'data', 'objectives', 'decoding'} <= parts
  assert {'train', 'spec', 'config', 'step', 'state'} <= parts
  folders = {p.name for p in ROOT.iterdir() if p.is_dir()} - {'__pycache__'}
  # Entry points in files: `benchmark`; `plan` and `scaling`.
  known = {*PACKAGES, 'benchmarks', 'evaluation', 'planning'}
  assert folders <= known, 'a new package needs a rule here'


@pytest.mark.parametrize('path', FILES, ids=name)
def test_nothing_imports_configs(path):
  assert not {i for i in imports(path) if i.partition('.')[0] == 'configs'}


@pytest.mark.parametrize(
  'path', [p for p in FILES if part(p) in ALLOWED], ids=name
)
def test_one_way(path):
  own = part(path)
  assert of_ours(path) - {own} <= ALLOWED[own]


@pytest.mark.parametrize(
  'path', [p for p in FILES if part(p) not in ENTRY_POINTS], ids=name
)
def test_only_entry_points_import_entry_points(path):
  assert not of_ours(path) & ENTRY_POINTS


@pytest.mark.parametrize(
  'path', [p for p in FILES if part(p) != 'nn'], ids=name
)
def test_linen_stays_in_nn(path):
  linen = {i for i in imports(path) if i.startswith('flax')}
  if name(path) not in READS_METADATA:
    assert not linen
    return
  assert linen <= {'flax.linen'}
  used = {
    ast.unparse(node)
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == 'nn'
  }
  assert used <= {
    *('nn.meta', 'nn.LogicallyPartitioned', 'nn.get_partition_spec'),
    *('nn.logical_to_mesh_sharding', 'nn.logical_axis_rules'),
  }


def test_step_knows_the_objective_and_not_the_model():
  found = {i for i in imports(ROOT / 'step.py') if i.startswith('gpt_jax')}
  assert {i.rpartition('.')[0] for i in found} <= {
    'gpt_jax.objectives.base',
    'gpt_jax.optim',  # rounding, average: how parameters take an update
    'gpt_jax.optim.average',
    'gpt_jax.training.state',
  }


def test_hf_knows_the_transformer_alone():
  for path in FILES:
    if part(path) == 'hf':
      of_nn = {i for i in imports(path) if i.startswith('gpt_jax.nn')}
      assert {i.split('.')[2] for i in of_nn} <= {'caches', 'transformer'}


def test_training_loads_neither_tensorflow_nor_pickle():
  for path in FILES:
    roots = {i.partition('.')[0] for i in imports(path)}
    assert not roots & {'tensorflow', 'torch', 'pickle', 'cloudpickle'}, path
