# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published laws against the papers' own numbers; `plan --budget`."""

import json
import math
import shutil

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from gpt_jax.__main__ import main
from gpt_jax.core.config import loading
from gpt_jax.core.costs.totals import short
from gpt_jax.papers.chinchilla import laws
from gpt_jax.papers.chinchilla.laws import FITS, LAWS, Fit, kaplan, serve

# As Chinchilla's tables print them: parameters, FLOPs, tokens.
TABLE_3 = """
400M 1.92e19 8.0B
1B 1.21e20 20.2B
10B 1.23e22 205.1B
67B 5.76e23 1.5T
175B 3.85e24 3.7T
280B 9.90e24 5.9T
520B 3.43e25 11.0T
1T 1.27e26 21.2T
10T 1.30e28 216.2T
"""
TABLE_A3_APPROACH_2 = """
400M 1.84e19 7.7B
10B 1.32e22 219.5B
280B 1.18e25 7.1T
10T 1.75e28 292.0T
"""
TABLE_A3_APPROACH_3 = """
1B 1.62e20 27.1B
67B 1.71e24 4.1T
10T 8.55e28 1425.5T
"""


def rows(number, text):
  return [(number, *line.split()) for line in text.split('\n') if line]


@pytest.mark.parametrize(
  'approach, parameters, flops, tokens',
  rows(1, TABLE_3) + rows(2, TABLE_A3_APPROACH_2) + rows(3, TABLE_A3_APPROACH_3),
)
def test_the_tables_to_their_digits(approach, parameters, flops, tokens):
  found = LAWS[f'Chinchilla, approach {approach}'](float(flops))
  assert short(found.parameters).replace('.0', '') == parameters
  assert short(found.tokens) == tokens
  # All rows but that of Gopher's budget keep to C = 6 N D.
  spent = 6 * found.parameters * found.tokens
  assert spent == pytest.approx(float(flops), rel=0.06)


def test_between_and_beyond_the_rows():
  # Appendix D.4: at 1e21 FLOPs approach 1 gives 2.86 billion parameters.
  assert short(LAWS['Chinchilla, approach 1'](1e21).parameters, 2) == '2.86B'
  # Section 3.3: for Gopher's budget approach 3 gives 40 billion.
  found = LAWS['Chinchilla, approach 3'](5.76e23).parameters
  assert found == pytest.approx(40e9, rel=0.05)
  # Table 2: the exponents of N and D.
  for approach, (a, b) in {1: (0.50, 0.50), 2: (0.49, 0.51), 3: (0.46, 0.54)}.items():
    law = LAWS[f'Chinchilla, approach {approach}']
    for flops in (1e15, 1e30):
      less, more = law(flops), law(100 * flops)
      slopes = [math.log(y / x, 100) for x, y in zip(less, more, strict=True)]
      assert slopes == pytest.approx([a, b], abs=0.006)


@pytest.mark.parametrize('fit', FITS.values(), ids=FITS)
def test_the_closed_form_is_the_minimum(fit):
  flops = 5.76e23
  found = minimize_scalar(
    lambda log_n: fit.loss(math.exp(log_n), flops / 6 / math.exp(log_n)),
    bounds=(math.log(1e8), math.log(1e13)),
    method='bounded',
    options={'xatol': 1e-10},
  )
  optimum = fit.optimum(flops)
  assert optimum.parameters == pytest.approx(math.exp(found.x), rel=1e-4)
  assert 6 * optimum.parameters * optimum.tokens == pytest.approx(flops)
  # How the tokens follow from the loss.
  loss = fit.loss(*optimum)
  assert fit.tokens(optimum.parameters, loss) == pytest.approx(optimum.tokens)
  assert fit.tokens(optimum.parameters, fit.E) == math.inf


def test_published_numbers_of_the_fits():
  # Besiroglu et al. find a = 0.5126 from the same runs.
  assert FITS['Besiroglu et al. 2024'].a == pytest.approx(0.5126, abs=5e-5)
  # Hoffmann et al., section 4: Chinchilla and Gopher, in nats a token.
  loss = FITS['Hoffmann et al. 2022'].loss
  assert loss(70e9, 1.4e12) < loss(280e9, 300e9)
  assert Fit(1.0, 8.0, 27.0, 3.0, 1.5).loss(2.0, 9.0) == 1.0 + 1.0 + 1.0


def test_kaplan():
  # A PF-day buys 1.3e9 parameters; the exponents are 0.73 and 0.27.
  assert kaplan(8.64e19).parameters == pytest.approx(1.3e9)
  less, more = kaplan(1e20), kaplan(1e22)
  slopes = [math.log(y / x, 100) for x, y in zip(less, more, strict=True)]
  assert slopes == pytest.approx([0.73, 0.27])


FIT = FITS['Besiroglu et al. 2024']


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A folder, and no configs: counting them all takes seconds."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(laws, 'decoders', dict)
  return tmp_path


def plan(capsys, *flags):
  assert main(['plan', '--json', *flags]) == 0
  return json.loads(capsys.readouterr().out)


def test_a_budget(elsewhere, capsys):
  found = plan(capsys, '--budget=5.76e23')
  rows = {row['law']: row for row in found['optima']}
  first = rows['Chinchilla, approach 1']
  assert first['parameters'] == pytest.approx(67e9)
  assert first['tokens'] == pytest.approx(1.5e12)
  assert len(rows) == 6 and 'served' not in found
  # No configs here, so none is nearest.
  assert 'config' not in first
  refitted = rows['L(N, D), Besiroglu et al. 2024']
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
  totals = [6 * n * FIT.tokens(n, optimal['loss']) + 2 * n * tokens for n in sizes]
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
  ours = {'small': 100, 'large': 1000}
  near = laws._nearest(ours, 400)
  assert near == {'config': 'large', 'config_parameters': 1000}
  assert laws._nearest(ours, 300)['config'] == 'small'
  assert laws._nearest({}, 300) == {}


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
  (name, small), (_, large) = laws.decoders().items()
  assert name == 'configs/our_paper.py:a'
  # Two layers more: 12 d^2 and their biases and norms.
  assert large - small == 2 * (12 * 24**2 + 13 * 24)
