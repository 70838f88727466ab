# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fits find the coefficients that made the data."""

import math

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import huber

from gpt_jax.papers.chinchilla import fit
from gpt_jax.papers.chinchilla.fit import (
  PUBLISHED,
  STARTS,
  Curve,
  Point,
  envelope,
  envelope_frontier,
  fit_all,
  fit_parametric,
  interval,
  isoflop_bootstrap,
  isoflop_frontier,
  isoflop_profiles,
  objective,
  parametric_bootstrap,
  power_law,
)
from gpt_jax.papers.chinchilla.laws import Fit

# Chinchilla's, and one in which data count for more.
TRUE = [Fit(1.69, 406.4, 410.7, 0.34, 0.28), Fit(0.9, 30.0, 900.0, 0.25, 0.4)]


def sweep(fit, *, noise=0.0, seed=0, off=1.0):
  """An IsoFLOP grid around the optima, times `off`; C = 6 N D."""
  rng = np.random.default_rng(seed)
  points = []
  for flops in (1e18, 1e19, 1e20, 1e21):
    for ratio in np.geomspace(1 / 8, 8, 7):
      n = fit.optimum(flops).parameters * ratio * off
      d = flops / 6 / n
      loss = fit.loss(n, d) * np.exp(noise * rng.normal())
      points.append(Point(f'{flops:g}-{len(points)}', flops, n, d, flops, loss))
  return points


@pytest.mark.parametrize('true', TRUE)
def test_the_parametric_loss_is_recovered(true):
  found = fit_parametric(sweep(true))
  assert tuple(found) == pytest.approx(tuple(true), rel=0.02)
  # And what a plan takes from it.
  ours, theirs = found.optimum(1e24), true.optimum(1e24)
  assert tuple(ours) == pytest.approx(tuple(theirs), rel=0.02)


def test_with_noise_the_intervals_cover():
  true = TRUE[0]
  points = sweep(true, noise=1e-3, seed=2)
  found = fit_parametric(points)
  drawn = parametric_bootstrap(points, found, 20, seed=1)
  for name in (*Fit._fields, 'a'):
    low, high = interval([getattr(fit, name) for fit in drawn])
    assert low < getattr(true, name) < high
    assert low < getattr(found, name) < high
  # They are neither empty nor without meaning.
  low, high = interval([fit.a for fit in drawn])
  assert 0.002 < high - low < 0.2


def test_outliers_weigh_little():
  points = sweep(TRUE[0])
  points[11] = points[11]._replace(loss=points[11].loss * 1.3)
  found = tuple(fit_parametric(points))
  assert found == pytest.approx(tuple(TRUE[0]), rel=0.02)


def test_the_objective_is_equation_10_with_its_gradient():
  points = sweep(TRUE[0], noise=0.01)[:9]
  logs = np.log([(p.parameters, p.tokens, p.loss) for p in points]).T
  theta = np.array([5.9, 6.1, 0.4, 0.33, 0.29])
  a, b, e, alpha, beta = theta
  total = 0.0
  for n, d, loss in logs.T:
    terms = [np.exp(a - alpha * n), np.exp(b - beta * d), np.exp(e)]
    total += huber(1e-3, np.log(sum(terms)) - loss)
  value, _ = objective(theta, *logs)
  assert value * 1e-6 == pytest.approx(total)
  difference = check_grad(
    lambda x: objective(x, *logs)[0], lambda x: objective(x, *logs)[1], theta, epsilon=1e-9
  )
  assert difference < 1e-4 * np.linalg.norm(objective(theta, *logs)[1])


def test_the_grid_of_starts_is_the_papers():
  assert STARTS.shape == (5 * 5 * 5 * 6 * 6, 5)
  least, most = STARTS.min(0), STARTS.max(0)
  assert least.tolist() == [0, 0, -1, 0, 0]
  assert most.tolist() == [25, 25, 1, 2, 2]


@pytest.mark.parametrize('true', TRUE)
def test_isoflop_profiles_give_the_exponents(true):
  found, missing = isoflop_profiles(sweep(true))
  assert not missing
  # Of a symmetric profile the parabola finds the very minimum.
  law_n, law_d = isoflop_frontier(found)
  assert law_n.exponent == pytest.approx(true.a, rel=0.02)
  assert law_d.exponent == pytest.approx(true.b, rel=0.02)
  n, d = law_n(1e20), law_d(1e20)
  assert 6 * n * d == pytest.approx(1e20, rel=0.02)


def test_the_minimum_of_a_true_parabola_is_exact():
  points = [
    Point('', 1e9, n, 1e9 / n, 1e9, 3 + 0.1 * np.log(n / 500) ** 2) for n in (100, 300, 700, 1900)
  ]
  (found,), _ = isoflop_profiles(points)
  assert found.parameters == pytest.approx(500)
  assert found.tokens == pytest.approx(1e9 / 500)
  assert found.loss == pytest.approx(3)


def test_a_profile_without_a_minimum_is_named():
  found, missing = isoflop_profiles(sweep(TRUE[0], off=50))
  assert not found and len(missing) == 4
  assert '1e+18 FLOPs: no minimum' in missing[0]
  assert 'add smaller sizes' in missing[0]
  with pytest.raises(ValueError, match='minima at two budgets'):
    isoflop_frontier(found)


def test_isoflop_intervals_cover():
  true = TRUE[0]
  found, _ = isoflop_profiles(sweep(true, noise=3e-3))
  drawn = isoflop_bootstrap(found, 200, seed=0)
  low, high = interval([law.exponent for law, _ in drawn])
  assert low < true.a < high and 0.001 < high - low < 0.2


def test_three_sizes_a_budget_leave_no_residuals():
  points = sweep(TRUE[0], noise=3e-3)
  sizes = sorted({p.parameters for p in points})
  least = [
    Point('', c, n, 2, 1.0, 3 + (i - 1) ** 2) for c in (1e9, 2e9) for i, n in enumerate(sizes[:3])
  ]
  found, _ = isoflop_profiles(
    [p._replace(flops=p.budget, tokens=p.budget / p.parameters) for p in least]
  )
  assert len(found) == 2
  assert isoflop_bootstrap(found, 20, seed=0) == []
  assert interval([]) is None


def curves(true):
  """Runs of many sizes whose losses follow the law at each step."""
  out = []
  for n in np.geomspace(1e7, 1e10, 41):
    tokens = np.geomspace(1e7, 1e12, 400)
    out.append(Curve(n, 6 * n, tokens, true.loss(n, tokens)))
  return out


def test_the_envelope_gives_the_exponents():
  true = TRUE[0]
  runs = curves(true)
  # Where the optima are within the sizes.
  least, most = 6e17, 2e21
  found = envelope(runs, least, most)
  law_n, law_d = envelope_frontier(found)
  assert law_n.exponent == pytest.approx(true.a, rel=0.02)
  assert law_n.exponent + law_d.exponent == pytest.approx(1)
  assert (np.diff(found.losses) <= 0).all()


def test_the_envelope_leaves_out_flops_that_buy_nothing():
  """Between the end of a short run and where a longer one is as good."""
  tokens = np.geomspace(1e3, 1e5, 50)
  short = Curve(10, 60.0, tokens, 5 - np.log10(tokens))
  # Worse by 0.3 at each number of tokens, and twice as long.
  longer = Curve(10, 60.0, 2 * tokens, 5.3 - np.log10(2 * tokens))
  found = envelope([short, longer], 6e4, 6e8)
  assert (np.diff(found.losses) < 0).all()
  end = 60 * tokens[-1]
  inside = (found.flops > 1.05 * end) & (found.flops < 1.5 * end)
  assert not inside.any()


def test_all_approaches_together():
  true = TRUE[0]
  points = sweep(true)
  fits = fit_all(points, curves(true), samples=10, seed=0)
  assert not fits.warnings
  found = fits.to_json()
  assert found['approach_3']['alpha']['value'] == pytest.approx(0.34, rel=0.02)
  assert found['approach_2']['a']['value'] == pytest.approx(true.a, rel=0.02)
  lines = fits.table().splitlines()
  assert len(lines) == 2 + 3 + 1 + 3
  for number, published in PUBLISHED.items():
    assert lines[1 + number].startswith(f'| {number} | 0.4')
    assert lines[1 + number].endswith(f'{published} |')
  with pytest.raises(RuntimeError, match='nothing could be fitted'):
    fit_all(points[:2], curves(true)[:1], samples=10, seed=0)


# Budgets, parameters, and of two runs that diverged the loss.
DIVERGED = [
  # The exponent of the tokens is negative.
  ((1e12, 3e12), (6876, 20_000, 50_000, 100_000), 4, 8.0),
  # The factor of the parameters is beyond a float.
  ((1e12, 3e12), (6876, 20_000, 50_000), 5, 8.0),
]


def diverged(budgets, sizes, bad, loss):
  """A grid with a run that diverged, and the name of that run."""
  law, points = Fit(1.1, 9.0, 40.0, 0.3, 0.35), []
  for c in budgets:
    for n in sizes:
      d = c / 6 / n
      points.append(Point(f'{c:.4g}-{n}', c, n, d, c, law.loss(n, d)))
  assert all(0 < x < math.inf for x in fit_parametric(points))
  points[bad] = points[bad]._replace(loss=loss)
  return points, points[bad].run


@pytest.mark.parametrize('given', DIVERGED)
def test_what_is_no_law_is_refused_and_the_run_is_named(given):
  points, run = diverged(*given)
  with pytest.raises(ValueError) as e:
    fit_parametric(points)
  said = str(e.value)
  assert f'run {run} (loss 8)' in said and 'no law' in said and '\n' not in said


def test_what_is_no_law_is_not_written():
  points, run = diverged(*DIVERGED[0])
  runs = curves(Fit(1.1, 9.0, 40.0, 0.3, 0.35))
  spent = [
    c._replace(parameters=c.parameters / 1e3, flops_per_token=6e-3 * c.parameters) for c in runs
  ]
  fits = fit_all(points, spent, samples=10, seed=0)
  assert fits.fit is None and fits.to_json()['approach_3'] is None
  assert any('no law' in line and run in line for line in fits.warnings)


def test_samples_that_are_no_law_are_dropped(monkeypatch):
  points = sweep(TRUE[0], noise=1e-3)
  found, bad = fit_parametric(points), iter([0.0, -1.0, 2.0, np.inf])
  monkeypatch.setattr(fit, '_best', lambda starts, data: np.array([1, 1, 0.5, next(bad), 0.3]))
  assert [x.alpha for x in parametric_bootstrap(points, found, 4, seed=0)] == [2.0]


def test_power_law():
  law = power_law([1.0, 10.0, 100.0], [3.0, 30.0, 300.0])
  assert tuple(law) == pytest.approx((3.0, 1.0))
  assert law(7.0) == pytest.approx(21.0)
