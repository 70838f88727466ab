# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: down, from the commands to the call-strings."""

import ast
import functools
import json
import pathlib
import subprocess
import sys

import pytest

from gpt_jax import __main__

ROOT = pathlib.Path(__file__).parents[1] / 'gpt_jax'
FILES = sorted(ROOT.rglob('*.py'))
# From the ground up: a room imports from the floors below its own alone.
FLOORS = (
  ('ranges', 'ring_order'),
  ('spec',),
  ('malloc', 'sharding', 'files', 'nn', 'optim'),
  ('tasks',),
  ('text',),
  ('tokenizers',),
  ('tokens',),
  ('rows',),
  ('decoding', 'objectives'),
  ('config',),
  ('hf',),
  ('costs',),
  ('runtime',),
  ('checkpoints',),
  ('training',),
  ('finetuning', 'evaluation', 'planning', 'serving'),
  ('plots',),
  ('posttraining',),
  ('flags', 'benchmarks'),
  ('cli',),
  ('commands',),
  ('__main__',),
)
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
# Linen's modules stay in nn/; these read its metadata of logical axes only.
READS_METADATA = {'training.parts', 'sharding', 'costs.flops'}


def name(path):
  """`nn.attention`, or `train`."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts)


@functools.cache
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


def test_every_room_has_its_floor():
  assert {part(path) for path in FILES} - {'__init__'} == {*FLOOR}


@pytest.mark.parametrize('path', FILES, ids=name)
def test_nothing_imports_configs(path):
  assert not {i for i in imports(path) if i.partition('.')[0] == 'configs'}


@pytest.mark.parametrize('path', FILES, ids=name)
def test_imports_go_down(path):
  own = part(path)
  above = {r for r in of_ours(path) - {own} if FLOOR[r] >= FLOOR.get(own, -1)}
  assert not above, f'{name(path)} imports {above}, which are not below it'


@pytest.mark.parametrize('path', FILES, ids=name)
def test_nothing_imports_a_command(path):
  assert not {i for i in imports(path) if i.startswith('gpt_jax.commands')}


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
    'nn.get_logical_axis_rules',
  }


def test_step_knows_the_objective_and_not_the_model():
  found = {
    i for i in imports(ROOT / 'training/step.py') if i.startswith('gpt_jax')
  }
  assert {i.rpartition('.')[0] for i in found} <= {
    'gpt_jax.objectives.base',
    'gpt_jax.objectives.loss',
    'gpt_jax.optim',  # rounding, average: how parameters take an update
    'gpt_jax.optim.rounding',
    'gpt_jax.optim.micro_batches',
    'gpt_jax.optim.train_state',
    # The parts of a batch: how they lie on devices, and whose draws are whose.
    *('gpt_jax', 'gpt_jax.nn', 'gpt_jax.nn.layers'),
    'gpt_jax.optim.wrappers',
  }


def test_hf_knows_the_model_and_none_of_its_layers():
  for path in FILES:
    if part(path) == 'hf':
      of_nn = {i for i in imports(path) if i.startswith('gpt_jax.nn')}
      # Its activations alone.
      assert not {i for i in of_nn if i.startswith('gpt_jax.nn.layers.')}
      assert {i.split('.')[2] for i in of_nn} <= {
        *('attend', 'build', 'caches', 'choices', 'embed', 'layers'),
        *('params', 'positions', 'stack', 'transformer'),
      }


def test_training_loads_neither_tensorflow_nor_pickle():
  for path in FILES:
    roots = {i.partition('.')[0] for i in imports(path)}
    # A process of its own, which is measured against.
    if path.relative_to(ROOT).as_posix() == 'benchmarks/worker.py':
      roots -= {'torch'}
    assert not roots & {'tensorflow', 'torch', 'pickle', 'cloudpickle'}, path


def test_tests_mirror_the_house():
  """A folder of tests is named for the room that it tests."""
  tests = ROOT.parent / 'tests'
  folders = {p.parent.relative_to(tests) for p in tests.glob('*/**/test_*.py')}
  # launch/ is beside gpt_jax/.
  strange = {f for f in folders if not (ROOT / f).is_dir()} - {
    pathlib.Path('launch')
  }
  assert not strange


# What takes long to import.
SLOW = (
  *('jax', 'flax', 'optax', 'orbax', 'grain', 'tensorstore', 'matplotlib'),
  *('scipy.stats', 'sklearn', 'tensorboardX', 'torch', 'transformers'),
)
SMOKE = '--config=configs/smoke.py'
TYPOS = [
  *(
    ['train', SMOKE, '--workdir=w', f'--config.{x}']
    for x in (
      *('model.num_layer=3', 'modell.num_layers=3', 'batch.rows=x'),
      *('model.num_layers=x', 'model.num_layers=0', 'optim.clip_norm=nan'),
      *('model.ffn=swiglo', 'model.norm=layernorm(', 'objective.name=cuasal'),
      *('model.attention=full, locale(3)', 'schedule.name=cosine(lr=1e-3)'),
      *('optim.name=adamw(b1=2.0)', 'data.rows=streams', 'optim.ema=emma'),
      *('model.num_heads=3', 'tokenizer.name=bytess', 'data.source=jsnol(1)'),
    )
  ),
  *(['train', SMOKE], ['train', '--workdir=w'], ['train', '--wordkir=w']),
  ['train', 'configs/smoke.py'],
  *(['train', '--config=nope.py'], ['train', '--config=configs/gpt2.py:7b']),
  ['finetune', '--config=configs/finetune/rte.py', '--config.finetune.peek=1'],
  *(['generate', '--workdir=w', '--top_k=-1'], ['generate', '--prompt=x']),
  *(['evaluate', '--workdir=w', '--tasks=lambad'], ['inspect', '--field=x']),
  *(['benchmark', SMOKE, '--what=speed'], ['convert', '--workdir=w']),
  *(['plan', '--search'], ['plan', SMOKE, '--topology=v9:2x2']),
]
# Prints the exit code of each command line, and which slow modules it loads.
RUN = """
import contextlib, io, json, sys
from gpt_jax import __main__
for argv in json.loads(sys.argv[1]):
  with contextlib.redirect_stdout(io.StringIO()):
    code = __main__.main(argv)
  loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
  print(json.dumps([argv, code, loaded]))
"""


def run_python(code, *args):
  """The lines that a new process prints, each as JSON."""
  done = subprocess.run(
    [sys.executable, '-c', code, *map(json.dumps, args)],
    cwd=ROOT.parent,
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return [*map(json.loads, done.stdout.splitlines())]


def test_help_and_typos_are_answered_without_jax():
  helped = [[name, '--help'] for name in __main__.COMMANDS]
  found = run_python(RUN, [*helped, *TYPOS], SLOW)
  assert found == [
    *([argv, 0, []] for argv in helped),
    *([argv, 2, []] for argv in TYPOS),
  ]


def test_configs_are_read_without_jax():
  code = """
import json, pathlib, sys
from gpt_jax import config
from gpt_jax.config import loading
for path in sorted(pathlib.Path('configs').rglob('*.py')):
  config.check_unresolved(loading.read(str(path)))
print(json.dumps([x for x in json.loads(sys.argv[1]) if x in sys.modules]))
"""
  assert run_python(code, SLOW) == [[]]
