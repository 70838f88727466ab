# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Config files: old names of fields, the user's own, those of a wheel."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from gpt_jax import config as config_lib
from gpt_jax.config import loading
from gpt_jax.spec import UsageError

ROOT = pathlib.Path(__file__).parents[2]
SMOKE = f'{ROOT}/configs/smoke.py'
MINE = """
from configs import smoke

def get_config(arg=''):
  config = smoke.get_config().unlock()
  config.model.num_layers = 3
  config.batch.{name} = 24
  return config.lock()
"""


def imported():
  return [name for name in sys.modules if name.partition('.')[0] == 'configs']


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A folder without configs/, and what is imported undone."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  kept = {
    n: m for n, m in sys.modules.items() if n.partition('.')[0] == 'configs'
  }
  yield tmp_path
  for name in [n for n in sys.modules if n.partition('.')[0] == 'configs']:
    del sys.modules[name]
  sys.modules.update(kept)


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


@pytest.mark.parametrize('flag', ['--config.batch.rows', '-config.batch.rows'])
def test_the_old_override(flag, caplog):
  config = loading.load_config(SMOKE, [f'{flag}=24'])
  assert config_lib.resolve(config).batch.to_dict() == {
    'size': 24,
    'length': None,
    'micro_rows': None,
  }
  assert [r.getMessage() for r in caplog.records] == [
    'batch.rows is now batch.size'
  ]


def test_the_new_override_is_said_nothing_of(caplog):
  assert loading.load_config(SMOKE, ['--config.batch.size=24']).batch.size == 24
  assert not caplog.records


@pytest.mark.parametrize(
  'overrides, size',
  [
    ([], 24),
    (['--config.batch.size=40'], 40),
    (['--config.batch.rows=40'], 40),
  ],
)
def test_a_config_file_of_before(elsewhere, caplog, overrides, size):
  """An override holds against the file, whatever name it takes."""
  write(elsewhere / 'mine.py', MINE.format(name='rows'))
  config = loading.load_config('mine.py', overrides)
  assert config.is_locked
  assert config.model.num_layers == 3
  assert config_lib.resolve(config).batch.size == size
  assert {r.getMessage() for r in caplog.records} == {
    'batch.rows is now batch.size'
  }


def test_a_config_that_is_not_here_is_the_shipped_one(elsewhere):
  config = loading.load_config('configs/smoke.py', ['--config.seed=7'])
  assert config.seed == 7 and config.model.d_model == 256
  sizes = loading.load_config('configs/gpt2.py:medium', [])
  assert sizes.model.d_model == 1024
  deeper = loading.load_config('configs/finetune/rte.py', [])
  assert 'rte' in deeper.finetune.task
  for name in ('configs/nope.py', 'smoke.py', './configs/../configs/x.py'):
    with pytest.raises(UsageError, match='no such file'):
      loading.load_config(name, [])


@pytest.mark.parametrize('package', [False, True])
def test_the_users_own_configs_come_first(elsewhere, package):
  """`configs/` of the user's own may hold a smoke.py too."""
  write(elsewhere / 'configs/mine.py', MINE.format(name='size'))
  mine = MINE.replace('import smoke', 'import gpt2').replace('smoke.', 'gpt2.')
  write(elsewhere / 'configs/smoke.py', mine.format(name='size'))
  if package:
    write(elsewhere / 'configs/__init__.py', '')
  sys.modules.pop('configs', None)
  sys.modules.pop('configs.smoke', None)
  config = loading.load_config('configs/mine.py', [])
  # Through the user's smoke.py, which starts from our gpt2.py.
  assert (config.model.d_model, config.model.num_layers) == (768, 3)


def test_a_package_of_the_users_own_that_fails_is_named(elsewhere):
  write(elsewhere / 'configs/mine.py', MINE.format(name='size'))
  write(elsewhere / 'configs/__init__.py', '1 / 0')
  sys.modules.pop('configs', None)
  with pytest.raises(UsageError, match=r'configs/__init__.py: ZeroDivision'):
    loading.load_config('configs/mine.py', [])


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
    for path in (ROOT / folder).rglob('*.py'):
      assert (ours / path.relative_to(ROOT / folder)).is_file()
  home = tmp_path / 'home'
  write(home / 'mine.py', MINE.format(name='size'))
  program = (
    f'import sys; sys.path[0] = {str(wheel)!r}\n'
    'from gpt_jax.config import loading, shipped\n'
    f'assert shipped.root() == {str(wheel / "gpt_jax/shipped")!r}\n'
    "smoke = loading.load_config('configs/smoke.py', [])\n"
    "mine = loading.load_config('mine.py', [])\n"
    'print(smoke.batch.size, mine.batch.size, mine.model.d_model)\n'
  )
  # -I: neither PYTHONPATH nor the working directory; -S would lose jax.
  done = subprocess.run(
    [sys.executable, '-I', '-c', program],
    cwd=home,
    capture_output=True,
    text=True,
  )
  assert (done.stderr, done.stdout) == ('', '8 24 256\n')
