# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: down, from the commands to the call-strings."""

import ast
import functools
import json
import pathlib
import re
import subprocess
import sys

import pytest

from gpt_jax import __main__
from tests.support import house

ROOT = pathlib.Path(__file__).parents[1] / 'gpt_jax'
FILES = sorted(ROOT.rglob('*.py'))
# From the ground up: a room imports from the floors below its own alone. The
# core imports nothing else, papers the core, and wings the core; wings know
# papers by the names of their choices.
CORE = (
  ('malloc', 'plugins', 'ranges', 'ring_order'),
  ('spec', 'entries'),
  ('sharding', 'files', 'nn', 'optim'),
  ('text',),
  ('tokenizers',),
  ('tokens',),
  ('rows',),
  ('objectives',),
  ('config',),
  ('costs',),
  ('runtime',),
  ('checkpoints',),
  ('training',),
)
FLOORS = (
  *(tuple(f'core.{room}' for room in rooms) for rooms in CORE),
  ('papers',),
  ('tasks', 'decoding', 'preparing_on_beam'),
  ('hf_tokenizers',),
  ('hf', 'resilience'),
  # What is trained, which whoever opens a run knows; and how.
  ('tuning.objectives',),
  ('hub', 'opening'),
  ('studies',),
  ('evaluation', 'planning', 'serving', 'plain', 'looking'),
  ('reports', 'ejecting'),
  ('tuning',),
  ('flags', 'benchmarks'),
  ('cli',),
  ('commands',),
  ('__main__',),
)
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
# Linen's modules stay in core/nn/ and papers/; these read its metadata of
# logical axes only.
READS_METADATA = {'core.training.parts', 'core.sharding', 'core.costs.flops'}


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


def room(module):
  """`core.nn` of `core.nn.attention`, and `planning` of `planning.hlo`."""
  inner = '.'.join(module.split('.')[:2])
  first = module.partition('.')[0]
  return inner if first == 'core' or inner in FLOOR else first


def of_ours(path):
  """The rooms of gpt_jax that a file imports."""
  return {
    room(i.removeprefix('gpt_jax.'))
    for i in imports(path)
    if i.startswith('gpt_jax.') and i != 'gpt_jax.core'
  }


def part(path):
  """The room of a file, or the file itself."""
  return room(name(path))


def above(path):
  """The rooms that a file imports though they are not below its own."""
  here = FLOOR.get(part(path), -1)
  return {r for r in of_ours(path) - {part(path)} if FLOOR[r] >= here}


def test_every_room_has_its_floor():
  assert {part(path) for path in FILES if path.name != '__init__.py'} == {*FLOOR}


@pytest.mark.parametrize('path', FILES, ids=name)
def test_nothing_imports_configs(path):
  assert not {i for i in imports(path) if i.partition('.')[0] == 'configs'}


@pytest.mark.parametrize('path', FILES, ids=name)
def test_imports_go_down(path):
  assert not above(path), f'{name(path)}: {above(path)} are not below it'


def test_the_core_names_no_module_outside_itself():
  """What papers and wings add is found by a field: see `core.plugins`."""
  example = 'gpt_jax.papers.NAME'  # in a docstring
  for path in FILES:
    if name(path).startswith('core.'):
      text = path.read_text(encoding='utf-8').replace(example, '')
      assert {*re.findall(r'\bgpt_jax\.([a-z]\w*)', text)} <= {'core'}, path


@pytest.mark.parametrize('path', FILES, ids=name)
def test_nothing_imports_a_command(path):
  assert not {i for i in imports(path) if i.startswith('gpt_jax.commands')}


@pytest.mark.parametrize(
  'path', [p for p in FILES if part(p) not in ('core.nn', 'papers')], ids=name
)
def test_linen_stays_in_nn_and_papers(path):
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
    'nn.meta',
    'nn.LogicallyPartitioned',
    'nn.get_partition_spec',
    'nn.logical_to_mesh_sharding',
    'nn.logical_axis_rules',
    'nn.get_logical_axis_rules',
  }


def test_step_knows_the_objective_and_not_the_model():
  found = {i for i in imports(ROOT / 'core/training/step.py') if i.startswith('gpt_jax')}
  assert {i.rpartition('.')[0] for i in found} <= {
    'gpt_jax.core.objectives.base',
    'gpt_jax.core.objectives.loss',
    'gpt_jax.core.optim',  # rounding, average: how parameters take an update
    'gpt_jax.core.optim.rounding',
    'gpt_jax.core.optim.micro_batches',
    'gpt_jax.core.optim.train_state',
    # The parts of a batch: how they lie on devices, and whose draws are whose.
    'gpt_jax.core',
    'gpt_jax.core.nn',
    'gpt_jax.core.nn.layers',
    'gpt_jax.core.optim.wrappers',
    'gpt_jax.core.optim.schedules',  # the type of a schedule
    'gpt_jax.core.spec',  # the table of norms by layer
    'gpt_jax.core.training',
    'gpt_jax.core.training.exact',  # the order in which a batch is summed
  }


def test_plain_stands_alone_and_is_read_by_eject_only():
  for path in FILES:
    if part(path) == 'plain':
      roots = {i.partition('.')[0] for i in imports(path)}
      assert of_ours(path) <= {'plain'}
      assert roots - {'gpt_jax'} <= {'jax', 'numpy', *sys.stdlib_module_names}
    elif part(path) != 'ejecting':
      assert 'plain' not in of_ours(path), path


def test_hf_knows_the_model_and_none_of_its_layers():
  for path in FILES:
    if part(path) == 'hf':
      of_nn = {i for i in imports(path) if i.startswith('gpt_jax.core.nn.')}
      # Its activations alone.
      assert not {i for i in of_nn if i.startswith('gpt_jax.core.nn.layers.')}
      assert {i.split('.')[3] for i in of_nn} <= {
        'attend',
        'build',
        'caches',
        'choices',
        'layers',
        'params',
        'positions',
        'row',
        'stack',
        'transformer',
      }


def test_training_loads_neither_tensorflow_nor_pickle():
  for path in FILES:
    roots = {i.partition('.')[0] for i in imports(path)}
    # A process of its own, which is measured against.
    if path.relative_to(ROOT).as_posix() == 'benchmarks/worker.py':
      roots -= {'torch'}
    assert not roots & {'tensorflow', 'torch', 'pickle', 'cloudpickle'}, path


def test_pre_training_leads_to_few_files():
  """All that `train` reaches by imports; it may shrink. `make house` prints it."""
  modules = house.closure('gpt_jax.commands.train')
  assert len(modules) <= 120, sorted(modules)
  assert house.lines_of(modules) <= 29_200


def test_tests_mirror_the_house():
  """A folder of tests is named for the room that it tests."""
  tests = ROOT.parent / 'tests'
  folders = {p.parent.relative_to(tests) for p in tests.glob('*/**/test_*.py')}
  # launch/ is beside gpt_jax/.
  strange = {f for f in folders if not (ROOT / f).is_dir()} - {pathlib.Path('launch')}
  assert not strange


def test_the_core_has_public_names():
  """docs/python.md: one module under two names, whichever comes first."""
  code = """
import json, sys
from gpt_jax.training.run import Run
from gpt_jax import sharding
from gpt_jax.core.training import run
from gpt_jax.core import sharding as of_core
import gpt_jax.tokenizers.tokenizer
modules = [run, of_core, sys.modules['gpt_jax.core.tokenizers.tokenizer']]
print(json.dumps([
  Run is run.Run, sharding is of_core,
  sys.modules['gpt_jax.tokenizers.tokenizer'] is modules[2],
  [m.__spec__.name for m in modules],
]))
"""
  names = ('training.run', 'sharding', 'tokenizers.tokenizer')
  assert run_python(code) == [[True, True, True, [f'gpt_jax.core.{name}' for name in names]]]


@pytest.mark.parametrize('path', FILES, ids=name)
def test_the_package_uses_full_names(path):
  known = {p.relative_to(ROOT).parts[0].removesuffix('.py') for p in FILES}
  assert {i.split('.')[1] for i in imports(path) if '.' in i and i.startswith('gpt_jax.')} <= known


# What takes long to import.
SLOW = (
  'jax',
  'flax',
  'optax',
  'orbax',
  'grain',
  'tensorstore',
  'matplotlib',
  'scipy.stats',
  'sklearn',
  'tensorboardX',
  'torch',
  'transformers',
)
SMOKE = '--config=configs/smoke.py'
TYPOS = [
  *(
    ['train', SMOKE, '--workdir=w', f'--config.{x}']
    for x in (
      'model.num_layer=3',
      'modell.num_layers=3',
      'batch.rows=x',
      'model.num_layers=x',
      'model.num_layers=0',
      'optim.clip_norm=nan',
      'model.ffn=swiglo',
      'model.norm=layernorm(',
      'objective.name=cuasal',
      'model.attention=full, locale(3)',
      'schedule.name=cosine(lr=1e-3)',
      'optim.name=adamw(b1=2.0)',
      'data.rows=streams',
      'optim.ema=emma',
      'model.num_heads=3',
      'tokenizer.name=bytess',
      'data.source=jsnol(1)',
    )
  ),
  ['train', SMOKE],
  ['train', '--workdir=w'],
  ['train', '--wordkir=w'],
  ['train', 'configs/smoke.py'],
  ['train', '--config=nope.py'],
  ['train', '--config=configs/gpt2.py:7b'],
  ['finetune', '--config=configs/finetune/rte.py', '--config.finetune.peek=1'],
  ['generate', '--workdir=w', '--top_k=-1'],
  ['generate', '--prompt=x'],
  ['evaluate', '--workdir=w', '--tasks=lambad'],
  ['inspect', '--field=x'],
  ['benchmark', SMOKE, '--what=speed'],
  ['convert', '--workdir=w'],
  ['plan', '--search'],
  ['plan', SMOKE, '--topology=v9:2x2'],
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
  helped.append(['--version'])
  found = run_python(RUN, [*helped, *TYPOS], SLOW)
  assert found == [*([argv, 0, []] for argv in helped), *([argv, 2, []] for argv in TYPOS)]


def test_configs_are_read_without_jax():
  code = """
import json, pathlib, sys
from gpt_jax.core import config
from gpt_jax.core.config import loading
for path in sorted(pathlib.Path('configs').rglob('*.py')):
  config.check_unresolved(loading.read(str(path)))
print(json.dumps([x for x in json.loads(sys.argv[1]) if x in sys.modules]))
"""
  assert run_python(code, SLOW) == [[]]
