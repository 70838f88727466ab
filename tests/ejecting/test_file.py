# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files that configs are ejected to: short, formatted, of what they use alone, and they run."""

import ast
import math
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from gpt_jax.core.config import loading
from gpt_jax.core.tokens import prepare
from gpt_jax.ejecting import file, weights
from tests.support import ejected, tpu
from tests.support.ejected import LINEAGE

ROOT = pathlib.Path(__file__).parents[2]
ALLOWED = {'jax', 'numpy', *sys.stdlib_module_names}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """The file of each config of the lineage, by its name."""
  folder = tmp_path_factory.mktemp('ejected')
  for stem, (name, _) in LINEAGE.items():
    text = file.text(ejected.config_of(name), *file.described([f'--config={name}']))
    (folder / f'{stem}.py').write_text(text, encoding='utf-8')
  return folder


def test_they_are_short(files):
  for stem, (_, most) in LINEAGE.items():
    lines = (files / f'{stem}.py').read_text(encoding='utf-8').count('\n')
    assert lines <= most, f'{stem} has {lines} lines'


def test_they_are_formatted_and_hold_nothing_unused(files):
  """By ruff, with the settings of this project; every function is used."""
  settings = ['--config', str(ROOT / 'pyproject.toml')]
  for command in (['format', '--check'], ['check', '--extend-ignore', 'D,RUF022']):
    ruff = [sys.executable, '-m', 'ruff', *command, *settings, str(files)]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
  for stem in LINEAGE:
    tree = ast.parse((files / f'{stem}.py').read_text(encoding='utf-8'))
    given = {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
    given |= {x.targets[0].id for x in tree.body if isinstance(x, ast.Assign)}
    used = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)}
    assert given <= used, f'{stem}: {given - used}'


def test_they_import_jax_numpy_and_the_standard_library(files):
  for stem in LINEAGE:
    tree = ast.parse((files / f'{stem}.py').read_text(encoding='utf-8'))
    names = {a.name for x in ast.walk(tree) if isinstance(x, ast.Import) for a in x.names}
    names |= {x.module for x in ast.walk(tree) if isinstance(x, ast.ImportFrom)}
    assert {name.partition('.')[0] for name in names} <= ALLOWED


def test_no_branch_is_left_that_the_constants_decide(files):
  for stem in LINEAGE:
    tree = ast.parse((files / f'{stem}.py').read_text(encoding='utf-8'))
    constants = {x.targets[0].id for x in tree.body if isinstance(x, ast.Assign)}
    for node in ast.walk(tree):
      if isinstance(node, ast.If | ast.IfExp):
        names = {x.id for x in ast.walk(node.test) if isinstance(x, ast.Name)}
        assert not names or not names <= constants, f'{stem}: {ast.unparse(node.test)}'


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """A small config, its store and its file."""
  folder = tmp_path_factory.mktemp('small')
  texts = ['abc' * i + '\n' for i in range(1, 29)]
  (folder / 'a.txt').write_text(''.join(texts), encoding='utf-8')
  config = ejected.config_of(
    'configs/gpt2.py:small',
    **{
      'model.num_layers': 2,
      'model.d_model': 14,
      'model.num_heads': 2,
      'model.vocab_size': 257,
      'model.context_length': 11,
      'model.dtype': 'float32',
      'tokenizer.name': 'bytes',
      'data.source': f"text('{folder}/a.txt')",
      'data.holdout': 'none',
      'batch.size': 6,
    },
  )
  prepare.ensure(config, str(folder / 'store'))
  (folder / 'gpt.py').write_text(file.text(config, 'A test.'), encoding='utf-8')
  return config, folder


def run(folder, *flags):
  """The lines that the file prints, in a process that has neither gpt_jax nor Flax."""
  code = (
    'import sys, runpy\n'
    'sys.modules |= dict.fromkeys(("gpt_jax", "flax", "optax", "grain", "tensorstore"))\n'
    'runpy.run_path(sys.argv.pop(1), run_name="__main__")'
  )
  command = [
    sys.executable,
    '-I',
    '-c',
    code,
    str(folder / 'gpt.py'),
    str(folder / 'store'),
    *flags,
  ]
  done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
  assert not done.returncode, done.stderr
  return done.stdout.splitlines()


def losses(lines):
  return [line.partition(' rate')[0] for line in lines if line.startswith('step ')]


def test_it_trains_resumes_and_samples_alone(small):
  _, folder = small
  whole = run(folder, '--out', 'whole.npz', '--stop', '5', '--sample', '7')
  run(folder, '--out', 'parts.npz', '--stop', '3', '--sample', '0')
  rest = run(folder, '--out', 'parts.npz', '--stop', '5', '--sample', '7')
  assert len(losses(whole)) == 5
  assert losses(rest) == losses(whole)[3:]
  assert rest[-1] == whole[-1]
  with np.load(folder / 'whole.npz') as a, np.load(folder / 'parts.npz') as b:
    assert {*a} == {*b}
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_damaged_store_is_not_read(small, tmp_path):
  _, folder = small
  module = ejected.module_of(small[0])
  name = folder / 'store' / 'tokens' / 'c' / '0'
  data = bytearray(name.read_bytes())
  data[3] ^= 1
  copy = tmp_path / 'store'
  (copy / 'tokens' / 'c').mkdir(parents=True)
  (copy / 'manifest.json').write_bytes((folder / 'store' / 'manifest.json').read_bytes())
  (copy / 'tokens' / 'c' / '0').write_bytes(data)
  with pytest.raises(SystemExit, match='damaged'):
    module.open_store(str(copy))


def test_without_a_store_it_says_how_to_make_one(small, tmp_path):
  module = ejected.module_of(small[0])
  with pytest.raises(SystemExit, match=f'gpt-jax prepare --config CONFIG --out {tmp_path}'):
    module.open_store(str(tmp_path))


def test_an_update_that_is_not_finite_is_not_saved(small, tmp_path):
  """A step whose loss is finite, as it is of the weights before."""
  module, path = ejected.module_of(small[0]), tmp_path / 'run.npz'
  store = module.open_store(str(small[1] / 'store'))
  with jax.numpy_rank_promotion('allow'):
    module.train(store, str(path), None, 1, 1)
    before = path.read_bytes()
    module.cosine = lambda step: math.inf
    with pytest.raises(SystemExit, match='step 2: the update is not finite'):
      module.train(store, str(path), None, 2, 1)
  assert path.read_bytes() == before


def test_weights_go_there_and_back(small):
  """The file's logits from the package's weights, and the package's tree again."""
  config, folder = small
  first, logits = ejected.logits_of_package(config, np.arange(22).reshape(2, 11))
  weights.write(str(folder / 'weights.npz'), first, config, '--init')
  module = ejected.module_of(config)
  with np.load(folder / 'weights.npz') as arrays:
    loaded = module.load(str(folder / 'weights.npz'), {'params': weights.to_plain(first)})['params']
    assert len(arrays) == len(ejected.leaves(loaded))
  wider = jax.tree.map(lambda x: np.zeros((*x.shape[:-1], 5)), {'params': loaded})
  with pytest.raises(ValueError, match='cannot reshape'):
    module.load(str(folder / 'weights.npz'), wider)
  found = ejected.logits_of_file(module, loaded, np.arange(22).reshape(2, 11))
  np.testing.assert_allclose(found, logits, rtol=0, atol=2e-6)
  # What is drawn from, after five tokens, whatever follows them.
  with jax.numpy_rank_promotion('allow'):
    scores = module.next_scores(loaded, np.arange(11), 5)
  np.testing.assert_allclose(scores, logits[0, 4], rtol=0, atol=2e-6)
  back = weights.from_plain(loaded, first)
  for x, y in zip(ejected.leaves(back), ejected.leaves(first), strict=True):
    np.testing.assert_array_equal(x, y)


def test_weights_of_another_model_are_refused(small):
  config, folder = small
  other = ejected.config_of('configs/gpt2.py:small', **{'model.num_layers': 1})
  first, _ = ejected.logits_of_package(config, np.zeros((1, 3), int))
  with pytest.raises(Exception, match='and the config asks for'):
    weights.write(str(folder / 'other.npz'), first, other, '--init=W')


def test_the_title_is_the_papers():
  title, differs = file.described(['--config', 'configs/llama.py:7b'])
  assert title.startswith('LLaMA (Touvron et al., 2023), configs/llama.py:7b')
  assert differs == loading.papers()['llama'].DIFFERS


@pytest.mark.tpu
@pytest.mark.parametrize(
  'stem', [pytest.param(x, marks=[pytest.mark.long] * (x not in ('gpt2', 't5'))) for x in LINEAGE]
)
def test_a_step_compiles_for_a_chip(stem):
  """As it is but for its layers, of which two periods remain: in bfloat16, with its whole batch."""
  found = tpu.compiled('ejected', 'v5p:2x2x1', LINEAGE[stem][0])
  assert 0 < found['temporaries'] < 95 * 2**30 - found['arguments']
