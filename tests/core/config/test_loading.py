# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Config files: the shipped ones, the user's own, those of a wheel."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from absl import flags

from gpt_jax.__main__ import main
from gpt_jax.core.config import loading
from gpt_jax.core.spec import UsageError

ROOT = pathlib.Path(__file__).parents[3]
SMOKE = f'{ROOT}/configs/smoke.py'
MINE = """
from configs import smoke

def get_config(arg=''):
  config = smoke.get_config().unlock()
  config.model.num_layers = 3
  config.batch.{name} = 24
  return config.lock()
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A folder without configs/."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def test_a_config_that_is_not_here_is_the_shipped_one(elsewhere):
  config = loading.load_config('configs/smoke.py', ['--config.seed=7'])
  assert config.seed == 7 and config.model.d_model == 256
  sizes = loading.load_config('configs/gpt2.py:medium', [])
  assert sizes.model.d_model == 1024
  deeper = loading.load_config('configs/finetune/rte.py', [])
  assert 'rte' in deeper.finetune.task


OURS = """
from configs import base
import helper

def get_config(arg=''):
  config = base.get_config().unlock()
  config.seed = helper.SEED
  return config.lock()
"""


@pytest.mark.parametrize('folder', ['mine', 'configs', 'configs/finetune'])
def test_nothing_is_shadowed(elsewhere, folder):
  """Neighbours, above it and beside it, of modules installed and of ours."""
  fails = "raise RuntimeError('a module of the neighbour runs')"
  for name in ('configs/__init__', 'wandb', 'random', 'gpt_jax/__init__'):
    write(elsewhere / f'{name}.py', fails)
    write(elsewhere / folder / f'{name}.py', fails)
  for name in ('__init__', 'numpy', 'sched', 'base2/__init__'):
    write(elsewhere / folder / f'{name}.py', fails)
  write(elsewhere / folder / 'helper.py', 'SEED = 11')
  more = 'import sched\nimport sys\nassert sched.scheduler\n'
  write(elsewhere / folder / 'mine.py', more + OURS)
  path = [*sys.path]
  sys.modules.pop('sched', None)
  config = loading.load_config(str(elsewhere / folder / 'mine.py'), [])
  assert (config.seed, config.model.d_model) == (11, 768)
  assert sys.path == path
  assert 'helper' not in sys.modules


def test_a_helper_is_not_that_of_the_config_before(elsewhere):
  for i, folder in enumerate(('a', 'b')):
    write(elsewhere / folder / 'helper.py', f'SEED = {i + 3}')
    write(elsewhere / folder / 'mine.py', OURS)
    assert loading.load_config(f'{folder}/mine.py', []).seed == i + 3


def test_the_package_configs_has_what_lies_beside(elsewhere):
  write(elsewhere / 'configs/finetune/helper.py', 'SEED = 5')
  write(elsewhere / 'configs/above.py', 'SEED = 7')
  mine = OURS.replace('import helper', 'from configs.finetune import helper')
  write(
    elsewhere / 'configs/finetune/mine.py',
    'from configs import above\n' + mine.replace('SEED', 'SEED * above.SEED'),
  )
  config = loading.load_config('configs/finetune/mine.py', [])
  assert config.seed == 35
  assert 'configs.above' not in sys.modules
  with pytest.raises(UsageError, match=r'line 2: ImportError: cannot import'):
    write(elsewhere / 'mine.py', '\nfrom configs import above')
    loading.load_config('mine.py', [])


@pytest.mark.parametrize('package', [False, True])
def test_two_configs_of_one_name(elsewhere, package):
  """Neither is taken silently."""
  write(elsewhere / 'configs/mine.py', MINE.format(name='size'))
  if package:
    write(elsewhere / 'configs/__init__.py', '1 / 0')
  other = elsewhere / 'configs/smoke.py'
  shutil.copy(SMOKE, other)
  assert loading.load_config('configs/mine.py', []).batch.size == 24
  # It may start from ours of its own name.
  other.write_text(MINE.format(name='size'))
  assert loading.load_config('configs/smoke.py', []).model.num_layers == 3
  with pytest.raises(UsageError, match='rename the latter'):
    loading.load_config('configs/mine.py', [])


def test_what_a_config_prints_is_no_result(elsewhere, capsys):
  text = "print('loading')\n" + MINE.format(name='size')
  write(elsewhere / 'mine.py', text.replace('  config =', '  print(1)\n  config ='))
  flags = ['--config=mine.py', '--config.model.vocab_size=97', '--json']
  assert main(['inspect', *flags]) == 0
  said = capsys.readouterr()
  assert json.loads(said.out)['parameters'] > 0
  assert said.err.startswith('loading\n1\n')


@pytest.mark.parametrize(
  'path, size',
  [
    ('a:b/mine.py', ''),
    ('mi:ne.py', ''),
    ('x.python/mine.py', ''),
    ('a:b/c.py:d/mine.py', ':x:y.z'),
  ],
)
def test_a_path_with_colons(elsewhere, path, size):
  text = MINE.format(name='size')
  if size:
    text = text.replace('return', 'assert arg == "x:y.z"\n  return')
  write(elsewhere / path, text)
  config = loading.load_config(path + size, ['--config.seed=3'])
  assert (config.seed, config.batch.size) == (3, 24)


def test_flags_from_a_file(elsewhere):
  write(elsewhere / 'mine.py', MINE.format(name='size'))
  write(elsewhere / 'flags', '--config.seed=5\n--config\nmine.py\n')
  values = flags.FlagValues()
  loading.define(values)
  loading.parse(values, ['gpt-jax', '--flagfile=flags', '--config.seed=7'])
  assert values['config'].value.seed == 7
  assert values['config'].value.model.num_layers == 3


@pytest.mark.parametrize(
  ('override', 'said'),
  [
    ('seed=1.5', "seed='1.5': must be a whole number, such as 0"),
    ('optim.clip_norm=x', "optim.clip_norm='x': must be a number, such as 1.0"),
    ('checkpoint.keep=', "checkpoint.keep='': must be a whole number, such as"),
    # With a ': ', as in absl's message.
    ('mesh.data=a: b', "mesh.data='a: b': must be a whole number, such as 1"),
    # Nothing is set there.
    ('model.d_ff=w', "model.d_ff='w': must be a whole number"),
    (
      'batch.size=abc',
      "batch.size='abc': must be a whole number of rows, such as 512, or "
      "stages as in 'ramp(0:512, 50k_steps:1024)'",
    ),
    ('batch.size=12.5', 'batch.size=12.5: must be a whole number of rows, such as 512, or'),
  ],
)
def test_a_value_of_another_type(capsys, override, said):
  assert main(['inspect', f'--config={SMOKE}', f'--config.{override}']) == 2
  err = capsys.readouterr().err
  assert err.startswith(f'gpt-jax inspect: {said}') and err.count('\n') == 1


def test_configs_of_an_installed_wheel(tmp_path):
  """What setup.py puts into a wheel, without the clone beside it."""
  clone, wheel = tmp_path / 'clone', tmp_path / 'wheel'
  ignored = shutil.ignore_patterns('__pycache__')
  for name in ('gpt_jax', 'configs'):
    shutil.copytree(ROOT / name, clone / name, ignore=ignored)
  shutil.copy(ROOT / 'setup.py', clone)
  build = ['setup.py', '-q', 'build_py', '--build-lib', str(wheel)]
  subprocess.run([sys.executable, *build], cwd=clone, check=True)
  assert {p.name for p in wheel.iterdir()} == {'gpt_jax'}
  packed = wheel / 'gpt_jax/shipped/configs'
  for folder in ('configs', 'gpt_jax'):
    ours = packed if folder == 'configs' else wheel / 'gpt_jax'
    for kind in ('*.py', '*.html', '*.json'):
      for path in (ROOT / folder).rglob(kind):
        assert (ours / path.relative_to(ROOT / folder)).is_file()
  home = tmp_path / 'home'
  write(home / 'mine.py', MINE.format(name='size'))
  program = (
    f'import sys; sys.path[0] = {str(wheel)!r}\n'
    'from gpt_jax.core.config import loading\n'
    f'assert loading.root() == {str(wheel / "gpt_jax/shipped")!r}\n'
    "smoke = loading.load_config('configs/smoke.py', [])\n"
    "mine = loading.load_config('mine.py', [])\n"
    'print(smoke.batch.size, mine.batch.size, mine.model.d_model)\n'
  )
  # -I: neither PYTHONPATH nor the working directory; -S would lose jax.
  done = subprocess.run(
    [sys.executable, '-I', '-c', program], cwd=home, capture_output=True, text=True
  )
  assert (done.stderr, done.stdout) == ('', '8 24 256\n')
