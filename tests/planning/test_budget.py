# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`plan --budget`, as a user runs it."""

import json
import math
import shutil

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.config import loading
from gpt_jax.planning import budget
from gpt_jax.planning.laws import FITS, serve

FIT = FITS['Besiroglu et al. 2024']


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A folder, and no configs: counting them all takes seconds."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(budget, 'decoders', list)
  return tmp_path


def plan(capsys, *flags):
  assert main(['plan', '--json', *flags]) == 0
  return json.loads(capsys.readouterr().out)


def test_a_budget(elsewhere, capsys):
  found = plan(capsys, '--budget=5.76e23')
  laws = {row['law']: row for row in found['optima']}
  first = laws['Chinchilla, approach 1']
  assert first['parameters'] == pytest.approx(67e9)
  assert first['tokens'] == pytest.approx(1.5e12)
  assert len(laws) == 6 and 'served' not in found
  # No configs here, so none is nearest.
  assert 'config' not in first
  refitted = laws['L(N, D), Besiroglu et al. 2024']
  loss = FIT.loss(refitted['parameters'], refitted['tokens'])
  assert refitted['predicted_loss'] == pytest.approx(loss)


def test_chips_and_days(elsewhere, capsys):
  # 256 chips of two cores, 275e12 FLOP/s each.
  found = plan(capsys, '--chips=v4-512', '--days=21', '--mfu=0.5')
  assert found['budget_flops'] == pytest.approx(256 * 275e12 * 0.5 * 21 * 86400)
  # LLaMA-65B: 1.4T tokens on 2048 A100 in about 21 days (section 2.4), at 380
  # tokens a second and GPU: 6 N of 65.2e9, of 312e12 FLOP/s.
  mfu = 380 * 6 * 65.2e9 / 312e12
  found = plan(capsys, '--chips=a100-2048', '--days=21', f'--mfu={mfu}')
  assert found['budget_flops'] == pytest.approx(6 * 65.2e9 * 1.4e12, rel=0.01)


def test_inference_makes_it_smaller(elsewhere, capsys):
  flops, tokens = 5.76e23, 1e13
  found = plan(capsys, f'--budget={flops}', f'--inference_tokens={tokens}')
  rows = [r for r in found['served'] if r['law'] == 'Besiroglu et al. 2024']
  optimal, least = rows
  assert optimal['training_flops'] == pytest.approx(flops)
  assert least['parameters'] < optimal['parameters']
  assert least['tokens'] > optimal['tokens']
  assert least['loss'] == pytest.approx(optimal['loss'], rel=1e-9)
  # Nothing on a fine grid of sizes takes less.
  sizes = np.geomspace(1e9, 1e12, 20_001)
  totals = [
    6 * n * FIT.tokens(n, optimal['loss']) + 2 * n * tokens for n in sizes
  ]
  assert least['total_flops'] == pytest.approx(min(totals), rel=1e-5)
  # 6 N D + 2 N D_inf.
  spent = 6 * least['parameters'] * least['tokens']
  assert least['total_flops'] == spent + 2 * least['parameters'] * tokens


def test_without_inference_the_optimum_stays():
  optimal, least = serve(FIT, 1e21, 1e-9)
  assert least.parameters == pytest.approx(optimal.parameters, rel=1e-3)
  assert least.total_flops <= optimal.total_flops * (1 + 1e-9)


def test_a_fit_of_ones_own(elsewhere, capsys):
  own = {'E': 1.0, 'A': 50.0, 'B': 70.0, 'alpha': 0.3, 'beta': 0.6}
  values = {name: {'value': x} for name, x in own.items()}
  (elsewhere / 'scaling.json').write_text(json.dumps({'approach_3': values}))
  found = plan(capsys, '--budget=6e12', '--fit=scaling.json')
  row = found['optima'][-1]
  assert row['law'] == 'L(N, D), scaling.json'
  g = (0.3 * 50 / (0.6 * 70)) ** (1 / 0.9)
  assert row['parameters'] == pytest.approx(g * 1e12 ** (2 / 3))
  (elsewhere / 'scaling.json').write_text('{"approach_3": null}')
  assert main(['plan', '--budget=1e20', '--fit=scaling.json']) == 2
  assert 'gpt-jax scaling' in capsys.readouterr().err


def test_the_nearest_config_is_nearest_as_a_ratio():
  ours = [budget.Shipped('small', 100), budget.Shipped('large', 1000)]
  near = budget._nearest(ours, 400)
  assert near == {'config': 'large', 'config_parameters': 1000}
  assert budget._nearest(ours, 300)['config'] == 'small'
  assert budget._nearest([], 300) == {}


def test_configs_are_found(monkeypatch, tmp_path):
  """Of a folder with one paper and one config that is none."""
  folder = tmp_path / 'configs'
  folder.mkdir()
  shutil.copy(loading.find('configs/base.py'), folder)
  paper = 'from configs import base\nDIFFERS = ""\nSIZES = {"a": 3, "b": 5}\n'
  paper += (
    'def get_config(arg):\n  c = base.get_config().unlock()\n'
    '  c.model.update(num_layers=SIZES[arg], d_model=24, num_heads=2,\n'
    '    vocab_size=29, context_length=7)\n  return c.lock()\n'
  )
  monkeypatch.setattr(loading, 'root', lambda: str(tmp_path))
  (folder / 'our_paper.py').write_text(paper)
  (folder / 'our_other.py').write_text('def get_config(arg=""):\n  raise\n')
  small, large = budget.decoders()
  assert small.name == 'configs/our_paper.py:a'
  # Two layers more: 12 d^2 and their biases and norms.
  assert large.parameters - small.parameters == 2 * (12 * 24**2 + 13 * 24)


@pytest.mark.parametrize(
  'flags, message',
  [
    ([], 'give --budget FLOPs, or --chips'),
    (['--budget=1e20', '--chips=v4-8'], 'give --budget FLOPs, or --chips'),
    (['--budget=-1'], 'budget=-1'),
    (['--budget=nan'], 'budget=nan'),
    (['--budget=many'], 'budget'),
    (['--budget=1e20', '--days=3'], '--days: belongs to --chips'),
    (['--budget=1e20', '--inference_tokens=0'], 'inference_tokens=0'),
    (['--chips=v4-8'], '--days is missing'),
    (['--chips=v4-8', '--days=0'], 'days=0'),
    (['--chips=v4-8', '--days=1', '--mfu=40'], 'mfu=40'),
    (['--chips=v4-7', '--days=1'], 'counted in cores, 2 to a chip'),
    (['--chips=v9-8', '--days=1'], 'give KIND-NUMBER as in v4-512'),
    (['--chips=v4', '--days=1'], 'give KIND-NUMBER as in v4-512'),
    (['--budget=1e20', '--fit=none.json'], '--fit=none.json: holds no fit'),
  ],
)
def test_bad_usage(elsewhere, capsys, flags, message):
  assert main(['plan', *flags]) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and message in error


@pytest.mark.parametrize('value', [-0.1, 0, float('nan'), 'many'])
def test_a_fit_that_is_no_law(elsewhere, tmp_path, capsys, value):
  numbers = {key: {'value': 2.0} for key in ('E', 'A', 'B', 'alpha', 'beta')}
  path = tmp_path / 'scaling.json'
  path.write_text(
    json.dumps({'approach_3': {**numbers, 'alpha': {'value': value}}})
  )
  assert main(['plan', '--budget=1e20', f'--fit={path}']) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and f'--fit={path}: ' in error


def test_short():
  assert budget.short(999.99e6) == '1.0B'
  assert [budget.short(x) for x in (67e9, 216.2e12, 5.0)] == [
    '67.0B',
    '216.2T',
    '5.0',
  ]
  assert budget.short(2.864e9, 2) == '2.86B'
  assert math.isclose(float(budget.short(0.123, 3)), 0.123)
