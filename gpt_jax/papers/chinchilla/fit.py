# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fits scaling laws to the runs of a sweep: Chinchilla's three approaches."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import huber
from threadpoolctl import threadpool_limits

from gpt_jax.core.spec import FailedError
from gpt_jax.papers.chinchilla.laws import Fit


class Point(NamedTuple):
  """The result of a training run."""

  run: str  # its name
  budget: float  # FLOPs of its IsoFLOP curve
  parameters: int
  tokens: int
  flops: float
  loss: float  # nats a token, held out


class Curve(NamedTuple):
  """The logged training losses of a run."""

  parameters: int
  flops_per_token: float
  tokens: Sequence[int]
  losses: Sequence[float]


class PowerLaw(NamedTuple):
  """The function coefficient * x^exponent."""

  coefficient: float
  exponent: float

  def __call__(self, x):
    """Evaluates it for numbers or arrays."""
    return self.coefficient * x**self.exponent


class Frontier(NamedTuple):
  """From training FLOPs to the optimal parameters and tokens."""

  parameters: PowerLaw
  tokens: PowerLaw


def power_law(xs, ys) -> PowerLaw:
  """Fits by least squares in logarithms."""
  exponent, log_coefficient = np.polyfit(np.log(xs), np.log(ys), 1)
  return PowerLaw(float(np.exp(log_coefficient)), float(exponent))


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
  """The 5th and 95th percentiles of bootstrap samples; None without samples."""
  if not samples:
    return None
  low, high = np.percentile(samples, [5, 95])
  return float(low), float(high)


# Chinchilla's approach 1: the envelope of all training curves.
#
# Hoffmann et al., 2022, section 3.1: the curves are smoothed and interpolated;
# at each of 1,500 numbers of FLOPs, evenly spaced in logarithms, the run with
# the least loss gives parameters and tokens; power laws go through these.


NUM_FLOPS = 1500


class Envelope(NamedTuple):
  """The best run at each number of FLOPs."""

  flops: np.ndarray
  losses: np.ndarray
  parameters: np.ndarray
  tokens: np.ndarray


def smooth(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
  """Smooths a curve with a moving average over a tenth of its points."""
  flops = np.array(curve.tokens) * curve.flops_per_token
  losses = np.array(curve.losses)
  width = max(1, len(losses) // 10)
  kernel = np.full(width, 1 / width)
  # 'valid': only where the whole window fits.
  return (np.exp(np.convolve(np.log(flops), kernel, 'valid')), np.convolve(losses, kernel, 'valid'))


def envelope(curves: Sequence[Curve], least: float, most: float) -> Envelope:
  """The envelope between `least` and `most` FLOPs.

  Where a budget's runs end, those of the next budget still have high learning
  rates and a higher loss than was already reached. Points that do not improve
  on the best loss so far are dropped.
  """
  flops = np.geomspace(least, most, NUM_FLOPS)
  losses = np.array(
    [
      np.interp(np.log(flops), np.log(xs), ys, left=np.inf, right=np.inf)
      for xs, ys in map(smooth, curves)
    ]
  )
  best, lowest = losses.argmin(0), losses.min(0)
  before = np.minimum.accumulate([np.inf, *lowest[:-1]])
  kept = lowest < before
  parameters = np.array([c.parameters for c in curves], float)[best]
  per_token = np.array([c.flops_per_token for c in curves])[best]
  return Envelope(flops[kept], lowest[kept], parameters[kept], (flops / per_token)[kept])


def envelope_frontier(found: Envelope) -> Frontier:
  """Fits the power laws through the envelope.

  Raises:
    ValueError: one size is best everywhere.
  """
  if len(set(found.parameters)) < 2:
    raise ValueError('approach 1 needs two sizes on the envelope')
  return Frontier(power_law(found.flops, found.parameters), power_law(found.flops, found.tokens))


def envelope_bootstrap(
  curves: Sequence[Curve], least: float, most: float, samples: int, seed: int
) -> list[Frontier]:
  """Refits the power laws to `samples` resamples of the runs."""
  rng = np.random.default_rng(seed)
  out = []
  for _ in range(samples):
    drawn = [curves[i] for i in rng.integers(len(curves), size=len(curves))]
    found = envelope(drawn, least, most)
    if len(set(found.parameters)) > 1:
      out.append(envelope_frontier(found))
  return out


# Chinchilla's approach 2: the minimum of each IsoFLOP curve.
#
# Hoffmann et al., 2022, section 3.2: a parabola in the logarithm of the
# parameters is fitted to the losses of each budget, and power laws to the
# minima. Tokens are treated the same way.


MIN_SIZES = 3


class BudgetProfile(NamedTuple):
  """The runs of one budget, and the optimum of the parabola through them."""

  budget: float
  points: list[Point]
  parabola: np.ndarray  # loss against log N, highest power first
  parameters: float  # at the minimum
  tokens: float
  loss: float


def isoflop_profiles(points: Sequence[Point]) -> tuple[list[BudgetProfile], list[str]]:
  """The profiles with a minimum, and a message for each budget without."""
  found, missing = [], []
  for budget in sorted({p.budget for p in points}):
    runs = [p for p in points if p.budget == budget]
    runs.sort(key=lambda p: p.parameters)
    if len(runs) < MIN_SIZES:
      missing.append(f'{budget:g} FLOPs: a parabola needs {MIN_SIZES} sizes, not {len(runs)}')
      continue
    parabola, n = _minimum([p.parameters for p in runs], runs)
    d = _minimum([p.tokens for p in runs], runs)[1]
    if n is None or d is None:
      ends = runs[-1].loss - runs[0].loss
      missing.append(
        f'{budget:g} FLOPs: no minimum of the loss between '
        f'{runs[0].parameters:,} and {runs[-1].parameters:,} parameters; add '
        f'{"larger" if ends < 0 else "smaller"} sizes to sweep.sizes, or leave '
        'the budget out'
      )
      continue
    loss = float(np.polyval(parabola, np.log(n)))
    found.append(BudgetProfile(budget, runs, parabola, n, d, loss))
  return found, missing


def isoflop_frontier(found: Sequence[BudgetProfile]) -> Frontier:
  """Fits the power laws through the minima.

  Raises:
    ValueError: there are fewer than two.
  """
  if len(found) < 2:
    raise ValueError('approach 2 needs minima at two budgets')
  # Runs consist of whole steps: use the FLOPs spent, not the budget.
  spent = [float(np.mean([p.flops for p in f.points])) for f in found]
  return Frontier(
    power_law(spent, [f.parameters for f in found]), power_law(spent, [f.tokens for f in found])
  )


def isoflop_bootstrap(found: Sequence[BudgetProfile], samples: int, seed: int) -> list[Frontier]:
  """Refits the power laws to `samples` sets of resampled residuals.

  A budget whose parabola has no minimum in a sample is dropped from it, and the
  sample as a whole if only one budget is left. Returns no samples if no budget
  has more than `MIN_SIZES` sizes, since there are no residuals.
  """
  rng = np.random.default_rng(seed)
  fitted = [np.polyval(f.parabola, np.log([p.parameters for p in f.points])) for f in found]
  # 3 parameters fitted to n points: the residuals are too small by this factor.
  by_budget = [
    (np.array([p.loss for p in f.points]) - at) * np.sqrt(len(at) / (len(at) - 3))
    for f, at in zip(found, fitted, strict=True)
    if len(at) > 3
  ]
  if not by_budget:
    return []
  residuals, out = np.concatenate(by_budget), []
  for _ in range(samples):
    drawn = [
      p._replace(loss=float(loss))
      for f, at in zip(found, fitted, strict=True)
      for p, loss in zip(f.points, at + rng.choice(residuals, len(at)), strict=True)
    ]
    again = isoflop_profiles(drawn)[0]
    if len(again) > 1:
      out.append(isoflop_frontier(again))
  return out


def _minimum(xs: Sequence[float], runs: Sequence[Point]) -> tuple[np.ndarray, float | None]:
  """The parabola in log x, and its minimum if that lies within the data."""
  logs = np.log(xs)
  parabola = np.polyfit(logs, [p.loss for p in runs], 2)
  if parabola[0] <= 0:
    return parabola, None
  at = -parabola[1] / (2 * parabola[0])
  if not logs.min() <= at <= logs.max():
    return parabola, None
  return parabola, float(np.exp(at))


# Chinchilla's approach 3: L(N, D) = E + A / N^alpha + B / D^beta, fitted.
#
# Hoffmann et al., 2022, appendix D.2: minimises over (a, b, e, alpha, beta)
#
#   sum_i Huber(LSE(a - alpha log N_i, b - beta log D_i, e) - log L_i)
#
# with delta = 1e-3, by L-BFGS from a grid of starts; A, B, E are the
# exponentials of a, b, e. The losses are summed, in units of delta: the paper
# averaged them, and its optimizer stopped early (Besiroglu et al., 2024:
# Chinchilla Scaling: A replication attempt, section 3).


DELTA = 1e-3
# The paper's grid: alpha, beta, e, a, b.
STARTS = np.array(
  list(
    itertools.product(
      np.arange(0, 2.1, 0.5),
      np.arange(0, 2.1, 0.5),
      np.arange(-1, 1.1, 0.5),
      np.arange(0, 26, 5.0),
      np.arange(0, 26, 5.0),
    )
  )
)[:, [3, 4, 2, 0, 1]]
MIN_POINTS = 6  # one more than the number of unknowns


def fit_parametric(points: Sequence[Point]) -> Fit:
  """Fits the loss by L-BFGS from several starts, and keeps the best end.

  Of the paper's 4,500 starts we use the best one in each of the 25 cells of
  (alpha, beta).

  Raises:
    ValueError: there are fewer than `MIN_POINTS` points, or what fits them best
      is no law, as where a run has diverged.
  """
  if len(points) < MIN_POINTS:
    raise ValueError(f'approach 3 needs {MIN_POINTS} runs, not {len(points)}')
  found = _to_fit(_fitted(points))
  if is_law(found):
    return found
  without = [[*points[:i], *points[i + 1 :]] for i in range(len(points))]
  # The run that the others agree best without.
  left = [float(objective(_fitted(rest), *_data(rest))[0]) for rest in without]
  far = points[int(np.argmin(left))]
  numbers = ', '.join(f'{name}={value:.3g}' for name, value in found._asdict().items())
  raise ValueError(
    f'approach 3: {numbers} fit best: no law, as not all are finite and positive; run {far.run} '
    f'(loss {far.loss:.4g}) is the furthest from the others: if it diverged, lower its peak in '
    'sweep.sizes, delete its folder and give the same command; if not, add sizes and budgets'
  )


def is_law(fit: Fit) -> bool:
  """Whether the loss falls with parameters and tokens, to a positive floor."""
  return all(0 < number < math.inf for number in fit)


def _fitted(points: Sequence[Point]) -> np.ndarray:
  """The best end, from the best start in each cell."""
  data = _data(points)
  values = objective(STARTS, *data)[0]
  cells: dict[tuple[float, ...], int] = {}
  for i in np.argsort(values, kind='stable'):
    cells.setdefault(tuple(STARTS[i, 3:]), int(i))
  return _best([STARTS[i] for i in cells.values()], data)


def parametric_bootstrap(
  points: Sequence[Point], fitted: Fit, samples: int, seed: int
) -> list[Fit]:
  """Refits to `samples` sets of losses with resampled residuals.

  A sample whose best fit is no law is dropped. We resample residuals, not
  runs, so that each sample keeps the whole grid. A fit with 5 unknowns makes
  them too small by sqrt((n - 5) / n); we correct it.
  """
  rng = np.random.default_rng(seed)
  log_n, log_d, log_l = _data(points)
  predicted = np.log(fitted.loss(np.exp(log_n), np.exp(log_d)))
  residuals = (log_l - predicted) * np.sqrt(len(points) / (len(points) - 5))
  start = np.array([*np.log([fitted.A, fitted.B, fitted.E]), fitted.alpha, fitted.beta])
  found = []
  for _ in range(samples):
    losses = predicted + rng.choice(residuals, len(points))
    found.append(_to_fit(_best([start], (log_n, log_d, losses))))
  return [*filter(is_law, found)]


def objective(
  theta: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_l: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The sum of Huber losses in units of DELTA^2, and its gradient.

  Args:
    theta: a, b, e, alpha, beta along the last axis, of any shape.
    log_n: logarithms of the parameters, [n].
  """
  a, b, e, alpha, beta = (theta[..., i, None] for i in range(5))
  of_n, of_d = a - alpha * log_n, b - beta * log_d
  total = np.logaddexp(np.logaddexp(of_n, of_d), e)  # LSE
  residual = (total - log_l) / DELTA
  # d Huber(r, 1) / dr, times each term's share of the sum.
  slope = np.clip(residual, -1, 1) / DELTA
  of_a, of_b, of_e = (slope * np.exp(x - total) for x in (of_n, of_d, e))
  gradient = [of_a, of_b, of_e, -of_a * log_n, -of_b * log_d]
  return huber(1.0, residual).sum(-1), np.stack([g.sum(-1) for g in gradient], -1)


def _data(points: Sequence[Point]) -> tuple[np.ndarray, ...]:
  rows = [(p.parameters, p.tokens, p.loss) for p in points]
  return tuple(np.log(np.array(rows, float)).T)


def _best(starts: Sequence[np.ndarray], data: tuple[np.ndarray, ...]) -> np.ndarray:
  """Runs L-BFGS from each start and returns the best end."""
  log_n, log_d, log_l = data
  # Centred: otherwise a and alpha are nearly collinear, and L-BFGS crawls along
  # a valley.
  mean_n, mean_d = log_n.mean(), log_d.mean()
  centred = log_n - mean_n, log_d - mean_d, log_l

  def moved(theta: np.ndarray, sign: int) -> np.ndarray:
    a, b, e, alpha, beta = theta
    return np.array([a - sign * alpha * mean_n, b - sign * beta * mean_d, e, alpha, beta])

  # One thread: with 5 unknowns, BLAS threads wait for each other for far longer
  # than the fit takes.
  with threadpool_limits(1):
    ends = [
      minimize(
        objective,
        moved(start, 1),
        centred,
        'L-BFGS-B',
        jac=True,
        options={'maxiter': 5000, 'ftol': 1e-14, 'gtol': 1e-9},
      )
      for start in starts
    ]
  return moved(min(ends, key=lambda end: float(end.fun)).x, -1)


def _to_fit(theta: np.ndarray) -> Fit:
  a, b, e, alpha, beta = theta.tolist()
  # Beyond a float, infinite: no law.
  with np.errstate(over='ignore'):
    A, B, E = np.exp([a, b, e]).tolist()
  return Fit(E, A, B, alpha, beta)


# All three approaches, with intervals.


# A value with its interval, if known.
Value = tuple[float, tuple[float, float] | None]
# Table 2 of the paper: a, b by approach.
PUBLISHED = {1: '0.50, 0.50', 2: '0.49, 0.51', 3: '0.46, 0.54'}


class Fits(NamedTuple):
  """What could be fitted; the reasons for what could not are in `warnings`."""

  envelope: Envelope
  profiles: list[BudgetProfile]
  frontiers: dict[int, Frontier]  # of approaches 1 and 2
  fit: Fit | None  # of approach 3
  # By approach: the exponents `a` (parameters) and `b` (tokens); of approach 3
  # also the five parameters.
  values: dict[int, dict[str, Value]]
  warnings: list[str]

  def to_json(self) -> dict[str, Any]:
    """As plain values, for scaling.json."""
    out: dict[str, Any] = {'interval': '90%, bootstrap'}
    for number in PUBLISHED:
      out[f'approach_{number}'] = None
      if values := self.values.get(number):
        out[f'approach_{number}'] = {
          name: {'value': value, 'interval': bounds and list(bounds)}
          for name, (value, bounds) in values.items()
        }
    for number, (parameters, tokens) in self.frontiers.items():
      found = out[f'approach_{number}']
      found['parameters'] = parameters._asdict()
      found['tokens'] = tokens._asdict()
    if out['approach_2']:
      out['approach_2']['minima'] = [
        {name: getattr(profile, name) for name in ('budget', 'parameters', 'tokens', 'loss')}
        for profile in self.profiles
      ]
    return {**out, 'warnings': self.warnings}

  def table(self) -> str:
    """Two Markdown tables: exponents next to the paper's, and the loss fit."""

    def cells(number: int, names: Iterable[str]) -> str:
      values = self.values.get(number)
      return ' | '.join(_cell(*values[x]) if values else '-' for x in names)

    lines = [
      '| approach | a (N ~ C^a) | b (D ~ C^b) | Chinchilla a, b |',
      '| --- | --- | --- | --- |',
      *(f'| {n} | {cells(n, "ab")} | {x} |' for n, x in PUBLISHED.items()),
    ]
    if self.fit:
      lines += [
        '',
        '| E | A | B | alpha | beta |',
        '| --- | --- | --- | --- | --- |',
        f'| {cells(3, Fit._fields)} |',
      ]
    return '\n'.join(lines)


def _cell(value: float, bounds: tuple[float, float] | None) -> str:
  shown = f'{value:.3g}'
  return f'{shown} ({bounds[0]:.3g} to {bounds[1]:.3g})' if bounds else shown


def fit_all(points: Sequence[Point], curves: Sequence[Curve], samples: int, seed: int) -> Fits:
  """Fits all three approaches.

  Raises:
    FailedError: none of them could be fitted.
  """
  profiles, warnings = isoflop_profiles(points)
  least = min(p.flops for p in points)
  most = max(p.flops for p in points)
  outline = envelope(curves, least, most)
  drawn = samples, seed
  approaches: dict[int, tuple[Callable, Callable]] = {
    1: (
      lambda: envelope_frontier(outline),
      lambda law: envelope_bootstrap(curves, least, most, *drawn),
    ),
    2: (lambda: isoflop_frontier(profiles), lambda law: isoflop_bootstrap(profiles, *drawn)),
    3: (lambda: fit_parametric(points), lambda fit: parametric_bootstrap(points, fit, *drawn)),
  }
  laws: dict[int, Any] = {}
  values = {}
  for number, (fit, bootstrap) in approaches.items():
    try:
      law = fit()
      again = [_numbers(x) for x in bootstrap(law)]
    except ValueError as e:
      warnings.append(str(e))
      continue
    if number == 2 and not again:
      warnings.append(
        'approach 2: no interval: parabolas through three sizes leave no '
        'residuals; add sizes to sweep.sizes'
      )
    laws[number] = law
    values[number] = {
      name: (value, interval([x[name] for x in again])) for name, value in _numbers(law).items()
    }
  if not laws:
    raise FailedError('nothing could be fitted: ' + '; '.join(warnings))
  fitted = laws.pop(3, None)
  return Fits(outline, profiles, laws, fitted, values, warnings)


def _numbers(law: Frontier | Fit) -> dict[str, float]:
  """The numbers of a law that get intervals."""
  if isinstance(law, Fit):
    return {**law._asdict(), 'a': law.a, 'b': law.b}
  return {'a': law.parameters.exponent, 'b': law.tokens.exponent}
