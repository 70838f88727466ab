# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaling laws: the best model for a budget of training FLOPs.

Chinchilla is Hoffmann et al., 2022: Training Compute-Optimal Large Language
Models; N counts all parameters, C = 6 N D. Approaches 1 (minimum over training
curves) and 2 (IsoFLOP profiles) were published as exponents and as tables of
optima. The tables say more, so we use them, with a power law between each two
rows. Approach 3 was published as a table and as a parametric loss, `Fit`.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NotRequired, TypedDict

import jax
import numpy as np
from rich.console import Console
from scipy.optimize import minimize_scalar

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.costs.topologies import CLOUD_NAMES
from gpt_jax.core.costs.totals import short
from gpt_jax.core.files import files
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import UsageError


class Optimum(NamedTuple):
  """The optimal model for a budget: parameters N and training tokens D."""

  parameters: float
  tokens: float


# From training FLOPs.
Law = Callable[[float], Optimum]


class Fit(NamedTuple):
  """The parametric loss L(N, D) = E + A / N^alpha + B / D^beta (equation 2)."""

  E: float
  A: float
  B: float
  alpha: float
  beta: float

  @property
  def a(self) -> float:
    """The exponent of N_opt: beta / (alpha + beta)."""
    return self.beta / (self.alpha + self.beta)

  @property
  def b(self) -> float:
    """The exponent of D_opt: alpha / (alpha + beta)."""
    return self.alpha / (self.alpha + self.beta)

  def loss(self, parameters, tokens):
    """Predicted loss in nats a token; takes numbers or arrays."""
    return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

  def optimum(self, flops: float) -> Optimum:
    """Minimises the loss at 6 N D = `flops` (equation 4).

    N = G (C / 6)^a and D = (C / 6)^b / G, where G is
    (alpha A / (beta B))^(1 / (alpha + beta)).
    """
    g = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
    return Optimum(g * (flops / 6) ** self.a, (flops / 6) ** self.b / g)

  def tokens(self, parameters: float, loss: float) -> float:
    """Tokens needed to reach a loss; infinite if it is out of reach."""
    left = loss - self.E - self.A / parameters**self.alpha
    # Out of reach, or too many tokens for a float.
    if left <= 0 or -math.log(left / self.B) / self.beta > 600:
      return math.inf
    return (self.B / left) ** (1 / self.beta)


# Tables 3 and A3: parameters, and for approaches 1, 2 and 3 FLOPs and tokens.
# Two rows do not keep to C = 6 N D. Table 3 has 67B with 5.76e23 FLOPs, which
# is Gopher's budget; 6 N D with 1.4T tokens. Table A3 prints 175B of approach 3
# with 1.26e24 FLOPs, a slip: 6 * 175e9 * 12.0e12 is 1.26e25.
_Row = tuple[float, float]  # FLOPs and tokens
TABLES: tuple[tuple[float, _Row, _Row, _Row], ...] = (
  (400e6, (1.92e19, 8.0e9), (1.84e19, 7.7e9), (2.21e19, 9.2e9)),
  (1e9, (1.21e20, 20.2e9), (1.20e20, 20.0e9), (1.62e20, 27.1e9)),
  (10e9, (1.23e22, 205.1e9), (1.32e22, 219.5e9), (2.46e22, 410.1e9)),
  (67e9, (5.76e23, 1.5e12), (6.88e23, 1.7e12), (1.71e24, 4.1e12)),
  (175e9, (3.85e24, 3.7e12), (4.54e24, 4.3e12), (1.26e25, 12.0e12)),
  (280e9, (9.90e24, 5.9e12), (1.18e25, 7.1e12), (3.52e25, 20.1e12)),
  (520e9, (3.43e25, 11.0e12), (4.19e25, 13.4e12), (1.36e26, 43.5e12)),
  (1e12, (1.27e26, 21.2e12), (1.59e26, 26.5e12), (5.65e26, 94.1e12)),
  (10e12, (1.30e28, 216.2e12), (1.75e28, 292.0e12), (8.55e28, 1425.5e12)),
)


def tabulated(approach: int) -> Law:
  """Interpolates the rows of an approach.

  Linear in logarithms between rows; beyond them with the slope from the first
  row to the last.
  """
  logs = np.log([(n, *rows[approach - 1]) for n, *rows in TABLES])
  xs = logs[:, 1]

  def law(flops: float) -> Optimum:
    x = math.log(flops)
    found = []
    for ys in (logs[:, 0], logs[:, 2]):
      inside = float(np.interp(x, xs, ys))
      slope = float((ys[-1] - ys[0]) / (xs[-1] - xs[0]))
      beyond = x - min(max(x, xs[0]), xs[-1])
      found.append(math.exp(inside + slope * beyond))
    return Optimum(*found)

  return law


def kaplan(flops: float) -> Optimum:
  """Kaplan et al., 2020: Scaling Laws for Neural Language Models, figure 14.

  N_opt = 1.3e9 C_min^0.73, C_min in PF-days (8.64e19 FLOPs), N without
  embeddings. The tokens follow from the budget, C / 6N, whose exponent is the
  paper's 0.27.
  """
  parameters = 1.3e9 * (flops / 8.64e19) ** 0.73
  return Optimum(parameters, flops / (6 * parameters))


LAWS: dict[str, Law] = {
  **{f'Chinchilla, approach {i}': tabulated(i) for i in (1, 2, 3)},
  'Kaplan': kaplan,
}
FITS = {
  # Equation 10 in appendix D.2. With the exponents so rounded it gives smaller
  # models than approach 3 in table A3.
  'Hoffmann et al. 2022': Fit(1.69, 406.4, 410.7, 0.34, 0.28),
  # Besiroglu et al., 2024: Chinchilla Scaling: A replication attempt, table 1:
  # the runs of approach 3 fitted again, which agrees with approaches 1 and 2.
  'Besiroglu et al. 2024': Fit(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
}


# Minimises training plus inference FLOPs, 6 N D + 2 N D_inf, at fixed loss.
#
# The result is smaller than the Chinchilla-optimal model of the same predicted
# loss, and trained for longer. Touvron et al., 2023: LLaMA, section 1; Sardana
# and Frankle, 2023: Beyond Chinchilla-Optimal: Accounting for Inference in
# Language Model Scaling Laws.


class Served(NamedTuple):
  """A model that is trained and then served."""

  parameters: float
  tokens: float
  training_flops: float
  inference_flops: float
  loss: float  # predicted

  @property
  def total_flops(self) -> float:
    """Training plus inference."""
    return self.training_flops + self.inference_flops


def serve(fit: Fit, flops: float, inference_tokens: float) -> tuple[Served, Served]:
  """The compute-optimal model, and the one with the fewest total FLOPs.

  Both have the predicted loss of the compute-optimal model for `flops`.
  """
  start = fit.optimum(flops)
  loss = fit.loss(*start)

  def model(parameters: float, tokens: float) -> Served:
    return Served(
      parameters,
      tokens,
      6 * parameters * tokens,
      2 * parameters * inference_tokens,
      fit.loss(parameters, tokens),
    )

  def total(log_n: float) -> float:
    parameters = math.exp(log_n)
    found = model(parameters, fit.tokens(parameters, loss))
    return math.log(found.total_flops) if found.tokens < math.inf else 1e3

  # Bounds: below the first even endless training does not reach the loss, above
  # the second more parameters do not help. In between the total falls, then
  # rises.
  least = (fit.A / (loss - fit.E)) ** (1 / fit.alpha)
  end = minimize_scalar(
    total,
    bounds=(math.log(least), math.log(start.parameters)),
    method='bounded',
    options={'xatol': 1e-8},
  )
  parameters = math.exp(end.x)
  return model(*start), model(parameters, fit.tokens(parameters, loss))


# `plan --budget`: the optimum under each law, next to our configs.

# Below this no model is worth a law: 6 N D with ten thousand of each.
LEAST_FLOPS = 1e9


def training_flops(chips: str, days: float, mfu: float) -> tuple[float, dict[str, Any]]:
  """Training FLOPs, and what they were computed from.

  `chips` is a cloud name such as v4-512 (512 cores, which are 256 chips), `mfu`
  the assumed share of their bf16 peak.
  """
  found = re.fullmatch(r'([a-z0-9]+)-(\d+)', chips)
  if not found or found[1] not in CLOUD_NAMES:
    raise UsageError(
      f'--chips={chips}: unknown; give KIND-NUMBER as in v4-512, with one of '
      + ', '.join(CLOUD_NAMES)
    )
  (peak, per_chip), number = CLOUD_NAMES[found[1]], int(found[2])
  if not number or number % per_chip:
    raise UsageError(
      f'--chips={chips}: {found[1]} is counted in cores, {per_chip} '
      f'to a chip; give a multiple of {per_chip}'
    )
  count = number // per_chip
  return count * peak * mfu * days * 86_400, {
    'chips': count,
    'peak_flops_per_second_and_chip': peak,
    'mfu': mfu,
    'days': days,
  }


def plan(
  flops: float, assumed: dict[str, Any], *, inference_tokens: float | None, fit_path: str | None
) -> dict[str, Any]:
  """The optimum for a budget under each law, and the nearest shipped config.

  Args:
    assumed: how `flops` were computed, by `training_flops`.
    inference_tokens: tokens served after training, if any.
    fit_path: scaling.json of a sweep, whose fit is added.
  """
  if flops < LEAST_FLOPS:
    how = '--chips, --days, --mfu' if assumed else f'--budget={flops:g}'
    raise UsageError(
      f'{how}: {flops:.3g} training FLOPs train no model; give at least {LEAST_FLOPS:g}'
    )
  fits = dict(FITS)
  if fit_path:
    fits[fit_path] = read_fit(fit_path)
    _check_law(fits[fit_path], flops, inference_tokens, fit_path)
  ours = decoders()
  optima = [(name, law(flops), {}) for name, law in LAWS.items()]
  for name, fit in fits.items():
    found = fit.optimum(flops)
    loss = {'predicted_loss': fit.loss(*found)}
    optima.append((f'L(N, D), {name}', found, loss))
  out: dict[str, Any] = {
    'budget_flops': flops,
    'assumed': assumed,
    'optima': [
      {
        'law': name,
        **found._asdict(),
        **loss,
        'tokens_per_parameter': found.tokens / found.parameters,
        **_nearest(ours, found.parameters),
      }
      for name, found, loss in optima
    ],
  }
  if inference_tokens is not None:
    out['inference_tokens'] = inference_tokens
    out['served'] = [
      {
        'law': name,
        'model': kind,
        **model._asdict(),
        'total_flops': model.total_flops,
        **_nearest(ours, model.parameters),
      }
      for name, fit in fits.items()
      for kind, model in zip(
        ('compute-optimal', 'least in all'), serve(fit, flops, inference_tokens), strict=True
      )
    ]
  return {**out, 'notes': NOTES}


def read_fit(path: str) -> Fit:
  """Reads the parametric loss from a scaling.json."""
  remedy = 'give W/scaling.json of gpt-jax scaling'
  try:
    scaling = files.read_json(path, remedy=remedy, kind=_Scaling)
  except FileNotFoundError as e:
    raise UsageError(f'--fit={path}: is missing; {remedy}') from e
  except UsageError as e:
    raise UsageError(f'--fit={e}') from e
  law = scaling['approach_3']
  if law is None:
    said = [x for x in scaling.get('warnings', []) if x.startswith('approach 3')]
    raise UsageError(
      f'--fit={path}: holds no fit of L(N, D): '
      + (said[0] if said else 'give gpt-jax scaling more sizes and budgets')
    )
  fit = Fit(*(law[name]['value'] for name in Fit._fields))
  for name, value in fit._asdict().items():
    if not 0 < value < math.inf:
      raise UsageError(
        f'--fit={path}: {name} is {value:g}, where a law has a positive '
        'number; train more sizes and budgets, and fit again'
      )
  return fit


def _check_law(fit: Fit, flops: float, inference_tokens: float | None, path: str) -> None:
  """Refuses a law whose optimum is no model, or is more than a float holds."""
  try:
    found = fit.optimum(flops)
    numbers = [*found, fit.loss(*found)]
    if inference_tokens is not None:
      for model in serve(fit, flops, inference_tokens):
        numbers += [*model]
  except (ArithmeticError, ValueError):
    numbers = [math.nan]
  if not all(1e-3 <= number < math.inf for number in numbers):
    raise UsageError(
      f'--fit={path}: its law has no optimum for {flops:.4g} training FLOPs; '
      'train more sizes and budgets, and fit again'
    )


class _Number(TypedDict):
  value: float


class _Law(TypedDict):
  """The numbers of a `Fit`."""

  E: _Number
  A: _Number
  B: _Number
  alpha: _Number
  beta: _Number


class _Scaling(TypedDict):
  """A scaling.json, as far as it is read here."""

  approach_3: _Law | None
  warnings: NotRequired[list[str]]


def decoders() -> dict[str, int]:
  """Parameters of the papers' dense decoders, by config (`FILE.py:SIZE`)."""
  found = {}
  for stem, module in loading.papers().items():
    for size in getattr(module, 'SIZES', ['']):
      config = module.get_config(size)
      model = config.model
      if model.num_encoder_layers or 'switch' in model.ffn:
        continue
      if not ModelChoices.of(model).causal:
        continue
      objective = config_lib.objective(config_lib.resolve_model(config))
      params = objective.shapes
      name = f'configs/{stem}.py' + (f':{size}' if size else '')
      found[name] = sum(x.size for x in jax.tree.leaves(params))
  return found


def _nearest(ours: dict[str, int], parameters: float) -> dict[str, Any]:
  """The config of the nearest size, by ratio."""
  if not ours:
    return {}
  found = min(ours, key=lambda name: abs(math.log(ours[name] / parameters)))
  return {'config': found, 'config_parameters': ours[found]}


def show(found: dict[str, Any], console: Console) -> None:
  """Prints the tables."""
  how = ''
  if assumed := found['assumed']:
    how = (
      f': {assumed["chips"]:,} chips x '
      f'{assumed["peak_flops_per_second_and_chip"] / 1e12:g} TFLOP/s x '
      f'{assumed["mfu"]:.0%} MFU x {assumed["days"]:g} days'
    )
  console.print(f'{found["budget_flops"]:.4g} training FLOPs{how}')
  columns = 'parameters', 'tokens', 'tokens/parameter', 'loss'
  table = _table('The model to train', ('law',), columns)
  for row in found['optima']:
    loss = row.get('predicted_loss')
    figures = (f'{row["tokens_per_parameter"]:.3g}', f'{loss:.3f}' if loss else '')
    _add(table, row, (row['law'],), figures)
  console.print(table)
  if 'served' in found:
    table = _table(
      f'With {short(found["inference_tokens"])} tokens of inference',
      ('L(N, D) of', 'model'),
      ('parameters', 'tokens', 'training', 'inference', 'total'),
    )
    for row in found['served']:
      spent = (row[f'{x}_flops'] for x in ('training', 'inference', 'total'))
      figures = [f'{flops:.3g}' for flops in spent]
      _add(table, row, (row['law'], row['model']), figures)
    console.print(table)
  for note in found['notes']:
    console.print(f'- {note}')


def _table(title: str, names: Iterable[str], figures: Iterable[str]) -> TextTable:
  right = [*figures]
  return TextTable(*names, *right, 'nearest config', title=title, right=right)


def _add(table: TextTable, row: dict[str, Any], names: Iterable[str], rest: Iterable[str]) -> None:
  """Adds a row: names, parameters, tokens, the rest, the nearest config."""
  config = ''
  if 'config' in row:
    config = f'{row["config"]} ({short(row["config_parameters"])})'
  counts = short(row['parameters']), short(row['tokens'])
  table.add_row(*names, *counts, *rest, config)


NOTES = [
  'parameters with embeddings (Kaplan: without); FLOPs are 6 N D',
  'approaches 1 to 3: between the rows of tables 3 and A3 of the paper (in the '
  "row of Gopher's budget, 5.76e23, it has 67B and 1.5T, which are 6.03e23)",
  'Hoffmann et al.: the constants as printed; rounded, they give a smaller '
  'model than approach 3 itself. Besiroglu et al. fitted the same runs again',
  "laws hold for their papers' data and tokenizers; losses are nats a token",
]
