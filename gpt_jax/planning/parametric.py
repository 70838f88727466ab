# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chinchilla's approach 3: L(N, D) = E + A / N^alpha + B / D^beta, fitted.

Hoffmann et al., 2022, appendix D.2: minimises over (a, b, e, alpha, beta)

  sum_i Huber(LSE(a - alpha log N_i, b - beta log D_i, e) - log L_i)

with delta = 1e-3, by L-BFGS from a grid of starts; A, B, E are the exponentials
of a, b, e. The losses are summed, in units of delta: the paper averaged them,
and its optimizer stopped early (Besiroglu et al., 2024: Chinchilla Scaling: A
replication attempt, section 3).
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import huber
from threadpoolctl import threadpool_limits

from gpt_jax.planning.laws import Fit
from gpt_jax.planning.power import Point

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


def fit(points: Sequence[Point]) -> Fit:
  """Fits the loss by L-BFGS from several starts, and keeps the best end.

  Of the paper's 4,500 starts we use the best one in each of the 25 cells of
  (alpha, beta).

  Raises:
    ValueError: there are fewer than `MIN_POINTS` points.
  """
  if len(points) < MIN_POINTS:
    raise ValueError(f'approach 3 needs {MIN_POINTS} runs, not {len(points)}')
  data = _data(points)
  values = objective(STARTS, *data)[0]
  cells: dict[tuple[float, ...], int] = {}
  for i in np.argsort(values, kind='stable'):
    cells.setdefault(tuple(STARTS[i, 3:]), int(i))
  return _to_fit(_best([STARTS[i] for i in cells.values()], data))


def bootstrap(
  points: Sequence[Point], fitted: Fit, samples: int, seed: int
) -> list[Fit]:
  """Refits to `samples` sets of losses with resampled residuals.

  We resample residuals, not runs, so that each sample keeps the whole grid. A
  fit with 5 unknowns makes them too small by sqrt((n - 5) / n); we correct it.
  """
  rng = np.random.default_rng(seed)
  log_n, log_d, log_l = _data(points)
  predicted = np.log(fitted.loss(np.exp(log_n), np.exp(log_d)))
  residuals = (log_l - predicted) * np.sqrt(len(points) / (len(points) - 5))
  start = np.array(
    [*np.log([fitted.A, fitted.B, fitted.E]), fitted.alpha, fitted.beta]
  )
  found = []
  for _ in range(samples):
    losses = predicted + rng.choice(residuals, len(points))
    found.append(_to_fit(_best([start], (log_n, log_d, losses))))
  return found


def objective(
  theta: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_l: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The sum of Huber losses in units of DELTA^2, and its gradient.

  Args:
    theta: a, b, e, alpha, beta along the last axis, of any shape.
    log_n: logarithms of the parameters, [n].
    log_d: of the tokens.
    log_l: of the losses.
  """
  a, b, e, alpha, beta = (theta[..., i, None] for i in range(5))
  of_n, of_d = a - alpha * log_n, b - beta * log_d
  total = np.logaddexp(np.logaddexp(of_n, of_d), e)  # LSE
  residual = (total - log_l) / DELTA
  # d Huber(r, 1) / dr, times each term's share of the sum.
  slope = np.clip(residual, -1, 1) / DELTA
  of_a, of_b, of_e = (slope * np.exp(x - total) for x in (of_n, of_d, e))
  gradient = [of_a, of_b, of_e, -of_a * log_n, -of_b * log_d]
  return huber(1.0, residual).sum(-1), np.stack(
    [g.sum(-1) for g in gradient], -1
  )


def _data(points: Sequence[Point]) -> tuple[np.ndarray, ...]:
  rows = [(p.parameters, p.tokens, p.loss) for p in points]
  return tuple(np.log(np.array(rows, float)).T)


def _best(
  starts: Sequence[np.ndarray], data: tuple[np.ndarray, ...]
) -> np.ndarray:
  """Runs L-BFGS from each start and returns the best end."""
  log_n, log_d, log_l = data
  # Centred: otherwise a and alpha are nearly collinear, and L-BFGS crawls along
  # a valley.
  mean_n, mean_d = log_n.mean(), log_d.mean()
  centred = log_n - mean_n, log_d - mean_d, log_l

  def moved(theta: np.ndarray, sign: int) -> np.ndarray:
    a, b, e, alpha, beta = theta
    return np.array(
      [a - sign * alpha * mean_n, b - sign * beta * mean_d, e, alpha, beta]
    )

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
  return Fit(math.exp(e), math.exp(a), math.exp(b), alpha, beta)
