# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `plan` and `scaling` refuse: one line, and nothing is written."""

import importlib.util
import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.chinchilla import laws
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import report

ROOT = pathlib.Path(__file__).parents[2]

BUDGET = '--budget=1e20'
GPT2 = '--config=configs/gpt2.py:small'
SWEEP = '--config=configs/scaling.py'
SIZES = '--config.sweep.sizes=size(1, 6, 1), size(1, 10, 1), size(1, 14, 1), size(1, 22, 1)'


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder for what the commands may write; no configs are counted."""
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(laws, 'decoders', dict)
  monkeypatch.setattr(compile_lib, 'use_cpu', lambda: None)
  return tmp_path


def refused(capsys, argv: list[str]) -> str:
  assert main(argv) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1
  return error


@pytest.mark.parametrize(
  'flags, message',
  [
    # A budget.
    ([], '--config is missing'),
    ([BUDGET, '--chips=v4-8'], '--budget: works without --chips; leave it out, or --budget'),
    (['--budget=-1'], 'budget=-1'),
    (['--budget=nan'], 'budget=nan'),
    (['--budget=many'], 'budget'),
    (['--budget=1e8'], '--budget=1e+08: 1e+08 training FLOPs train no model'),
    ([BUDGET, '--days=3'], '--budget: works without --days'),
    ([BUDGET, '--inference_tokens=0'], 'inference_tokens=0'),
    (['--chips=v4-8'], '--days is missing'),
    (['--chips=v4-8', '--days=0'], 'days=0'),
    (['--chips=v4-8', '--days=1', '--mfu=40'], 'mfu=40'),
    (['--chips=v4-7', '--days=1'], 'counted in cores, 2 to a chip'),
    (['--chips=v9-8', '--days=1'], 'give KIND-NUMBER as in v4-512'),
    (['--chips=v4', '--days=1'], 'give KIND-NUMBER as in v4-512'),
    ([BUDGET, '--fit=none.json'], '--fit=none.json: is missing'),
    # A slice.
    (['--topology=v4-8'], '--config is missing'),
    # Flags that would be ignored.
    (['--failures=9', BUDGET], '--failures: works without --budget; leave it out'),
    (['--failures=9', '--search', '--slices=2'], 'without --slices, --search; leave them out'),
    (['--failures=9', GPT2, '--topology=v4-8'], '--failures: works without --config, --topology'),
    ([BUDGET, GPT2], '--budget: works without --config'),
    ([BUDGET, '--table'], '--budget: works without --table'),
    (['--chips=v4-8', '--days=1', '--tiers=tiers(every=60)'], '--chips: works without --tiers'),
    (['--recompile', '--json'], '--recompile: works without --json'),
    (['--table', '--only=gpt2'], '--table: works without --only'),
    (['--only=gpt2'], '--only: works with --recompile only; give it too'),
    (['--mfu=0.3'], '--mfu: works with --chips only'),
    (['--fit=a.json'], '--fit: works with --budget or --chips only'),
    ([GPT2, '--topology=v4-8', '--compiles=3'], '--compiles=3: works with --search only'),
    ([GPT2, '--topology=v4-8', '--search', '--memory=a.png'], '--memory: works without --search'),
    ([GPT2, '--topology=v4-8', '--search', '--last_stage'], '--last_stage: works without --search'),
    ([GPT2, '--topology=v4-8', '--why', '--json'], '--why: works without --json'),
    ([GPT2, '--topology=v4-8,v5e-8', '--why'], '--why: of one plan'),
    (['--failures=0'], '--failures=0: must be at least 1'),
    (['--failures=-3'], '--failures=-3: must be at least 1'),
    (['--failures=20001'], '--failures=20001: must be at most 20,000'),
    ([GPT2], '--topology is missing'),
    ([GPT2, '--topology=v4-8', '--slices=0'], 'slices=0'),
    ([GPT2, '--topology=v5e:16x32'], 'v5e:16x16 (256 chips)'),
    ([GPT2, '--topology=v4:4x4x5'], 'v4:4x4x4 (64 chips), v4:4x4x8 (128 chips)'),
    ([GPT2, '--topology=v4:16x16x12'], 'v4:12x16x16 (3072 chips)'),
    ([GPT2, '--topology=v4-100'], 'the nearest: v4-64 (v4:2x4x4), v4-128 (v4:4x4x4)'),
    (
      [GPT2, '--topology=v5lite-32'],
      '--topology=v5lite-32: no slice has that name; the nearest: v5',
    ),
    ([GPT2, '--topology=v4:16x16x20'], 'v4:16x16x16 (4096 chips)'),
    ([GPT2, '--topology=v4:4x4'], 'has 3 dimensions, as in v4:2x4x4'),
    ([GPT2, '--topology=v9:2x2'], 'unknown generation'),
    ([GPT2, '--topology=a100'], 'no slice has that name'),
    ([GPT2, '--topology=v4-8,v9:2x2'], '--topology=v9:2x2: unknown generation'),
    ([GPT2, '--topology=v4-8,'], '--topology=: no slice has that name'),
    ([GPT2, '--topology=v4-8', '--topology=v5e-8', '--memory=a.png'], '--topology has 2 slices'),
    # Flags of libtpu.
    ([GPT2, '--topology=v4-8', '--flags=--xla_a'], '--flags: --xla_a: give --NAME=VALUE'),
  ],
)
def test_plan(folder, capsys, flags, message):
  assert message in refused(capsys, ['plan', *flags])


@pytest.mark.parametrize('value', [-0.1, 0, float('nan'), 'many'])
def test_a_fit_that_is_no_law(folder, capsys, value):
  numbers = {key: {'value': 2.0} for key in ('E', 'A', 'B', 'alpha', 'beta')}
  path = folder / 'scaling.json'
  path.write_text(json.dumps({'approach_3': {**numbers, 'alpha': {'value': value}}}))
  error = refused(capsys, ['plan', BUDGET, f'--fit={path}'])
  assert f'--fit={path}: ' in error


def test_without_the_compiler(monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  error = refused(capsys, ['plan', GPT2, '--topology=v4-8'])
  assert "pip install -c constraints.txt -e '.[plan]'" in error


@pytest.mark.parametrize(
  'flags, message',
  [
    ([], '--config is missing'),
    (['--config=configs/smoke.py'], 'has no section sweep'),
    ([SWEEP, '--config.sweep.budgets=1e9'], 'give two or more numbers'),
    ([SWEEP, '--config.sweep.budgets=1e9, x'], 'give two or more numbers'),
    ([SWEEP, SIZES, '--config.sweep.budgets=1e20, 2e20'], 'have 0 sizes'),
    ([SWEEP, '--config.sweep.sizes=size(2)'], 'sweep.sizes'),
    ([SWEEP, '--config.sweep.sizes=sized(2, 8, 1)'], "unknown 'sized'"),
    ([SWEEP, '--config.sweep.sizes=size(2, 9, 2)'], 'model.d_model=9'),
    ([SWEEP, '--config.sweep.sizes=size(2, 24, 1), size(2, 24, 2)'], 'two of them are alike'),
    ([SWEEP, '--config.schedule.name=noam(d_model=8)'], 'has no peak for sweep.sizes'),
    ([SWEEP, '--config.data.holdout=none'], 'fitted to held-out losses'),
  ],
)
def test_scaling(folder, capsys, flags, message):
  workdir = folder / 'w'
  argv = ['scaling', *flags, f'--workdir={workdir}']
  assert message in refused(capsys, argv)
  assert not workdir.exists()


OF_A_FILE = {
  'empty': b'',
  'binary': bytes(range(256)),
  'null': b'null',
  'a number': b'3',
  'nested': b'[' * 100_000,
  'a list of lists': b'[[]]',
}
ENTRY = {
  'config': 'configs/gpt1.py:cpu',
  'topology': 'v5e:1x1',
  'slices': 1,
  'overrides': {'mesh.fsdp': 1},
  'found': {
    **{'peak_gib': 0.2, 'limit_gib': 15.75, 'flops_ratio': 1.0, 'days': 1e-4},
    **{'step_seconds': 0.001, 'mfu': 0.3, 'mfu_causal': 0.2},
    'attention': ['decoder full: flash'],
    'made_with': {'jax': '0.10.2'},
  },
}


@pytest.mark.parametrize('how', OF_A_FILE)
def test_damaged_files(tmp_path, monkeypatch, capsys, how):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'docs').mkdir()
  (tmp_path / 'docs/plans.json').write_bytes(OF_A_FILE[how])
  (tmp_path / 'fit.json').write_bytes(OF_A_FILE[how])
  error = refused(capsys, ['plan', '--table'])
  assert f'{tmp_path}/docs/plans.json: is damaged' in error
  error = refused(capsys, ['plan', BUDGET, '--fit=fit.json'])
  assert '--fit=fit.json: is damaged' in error


def test_folders_in_place_of_files(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'docs/plans.json').mkdir(parents=True)
  assert 'a folder' in refused(capsys, ['plan', '--table'])
  assert 'a folder' in refused(capsys, ['plan', BUDGET, '--fit=docs'])


def test_damaged_plans(tmp_path):
  (tmp_path / 'docs').mkdir()
  file = tmp_path / 'docs/plans.json'

  def table(entry):
    file.write_text(json.dumps([ENTRY, entry]))
    with pytest.raises(UsageError) as e:
      report.read(tmp_path)
    return str(e.value)

  for name in ENTRY:
    for value in (None, [None], True, 10**400):
      assert f'1.{name}' in table({**ENTRY, name: value})
  for name in ENTRY['found']:
    for value in (None, 'x', {'jax': 3}, 10**400):
      found = {**ENTRY['found'], name: value}
      assert f'1.found.{name}' in table({**ENTRY, 'found': found})
    found = {x: value for x, value in ENTRY['found'].items() if x != name}
    assert f'1.found lacks {name}' in table({**ENTRY, 'found': found})
  assert 'entry 1: ' in table({**ENTRY, 'topology': 'v9:1x1'})


@pytest.mark.parametrize(
  ('name', 'value'), [('A', 1e38), ('B', 1e-37), ('alpha', 1e-30), ('beta', 1e-30), ('E', 1e30)]
)
def test_a_law_that_gives_no_model(folder, capsys, name, value):
  numbers = {'E': 1.7, 'A': 406.0, 'B': 410.0, 'alpha': 0.34, 'beta': 0.28}
  law = {x: {'value': number} for x, number in numbers.items()}
  path = folder / 'scaling.json'
  path.write_text(json.dumps({'approach_3': {**law, name: {'value': value}}}))
  error = refused(capsys, ['plan', BUDGET, '--inference_tokens=1e12', f'--fit={path}'])
  assert f'--fit={path}: its law has no optimum for' in error
