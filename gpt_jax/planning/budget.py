# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The best model for a budget of training FLOPs, from published laws."""

import json
import math
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from gpt_jax import config as config_lib
from gpt_jax.config import loading
from gpt_jax.costs import totals
from gpt_jax.planning.laws import FITS, LAWS, Fit, serve
from gpt_jax.spec import UsageError

# Of a model that is worth a law: 6 N D with ten thousand of each.
LEAST_FLOPS = 1e9


class Shipped(NamedTuple):
  """A config that ships with gpt_jax."""

  name: str  # configs/FILE.py:SIZE
  parameters: int


def plan(
  flops: float,
  assumed: dict[str, Any],
  *,
  inference_tokens: float | None,
  fit_path: str | None,
) -> dict[str, Any]:
  """The optimum for a budget under each law, and the nearest shipped config.

  Args:
    flops: of training.
    assumed: how the FLOPs were computed (chips, MFU, days), for the report.
    inference_tokens: tokens served after training; None: none.
    fit_path: scaling.json of a sweep, whose fit is added.
  """
  if flops < LEAST_FLOPS:
    how = '--chips, --days, --mfu' if assumed else f'--budget={flops:g}'
    raise UsageError(
      f'{how}: {flops:.3g} training FLOPs train no model; give at least '
      f'{LEAST_FLOPS:g}'
    )
  given = inference_tokens
  fits = dict(FITS)
  if fit_path:
    fits[fit_path] = read_fit(fit_path)
  optima = [{'law': name, **law(flops)._asdict()} for name, law in LAWS.items()]
  for name, fit in fits.items():
    found = fit.optimum(flops)
    optima.append(
      {
        'law': f'L(N, D), {name}',
        **found._asdict(),
        'predicted_loss': fit.loss(*found),
      }
    )
  ours = decoders()
  for row in optima:
    row['tokens_per_parameter'] = row['tokens'] / row['parameters']
    row.update(_nearest(ours, row['parameters']))
  served = []
  if given is not None:
    for name, fit in fits.items():
      for kind, model in zip(
        ('compute-optimal', 'least in all'),
        serve(fit, flops, given),
        strict=True,
      ):
        served.append(
          {
            'law': name,
            'model': kind,
            **model._asdict(),
            'total_flops': model.total_flops,
            **_nearest(ours, model.parameters),
          }
        )
  return {
    'budget_flops': flops,
    'assumed': assumed,
    'optima': optima,
    **({'inference_tokens': given, 'served': served} if served else {}),
    'notes': NOTES,
  }


def read_fit(path: str) -> Fit:
  """Reads the parametric loss from a scaling.json."""
  try:
    with open(path, encoding='utf-8') as f:
      found = json.load(f)['approach_3']
    fit = Fit(*(float(found[name]['value']) for name in Fit._fields))
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UsageError(
      f'--fit={path}: holds no fit of L(N, D) ({type(e).__name__}); give '
      'W/scaling.json of gpt-jax scaling'
    ) from e
  for name, value in fit._asdict().items():
    if not 0 < value < math.inf:
      raise UsageError(
        f'--fit={path}: {name} is {value:g}, where a law has a positive '
        'number; train more sizes and budgets, and fit again'
      )
  return fit


def decoders() -> list[Shipped]:
  """Lists the dense decoders of the papers."""
  found = []
  for stem, module in loading.papers().items():
    for size in getattr(module, 'SIZES', ['']):
      config = module.get_config(size)
      if config.model.num_encoder_layers or 'switch' in config.model.ffn:
        continue
      figures = totals.figures_of(config_lib.resolve_model(config))[1]
      name = f'configs/{stem}.py' + (f':{size}' if size else '')
      found.append(Shipped(name, figures['parameters']))
  return found


def show(found: dict[str, Any], console: Console) -> None:
  """Prints the tables."""
  assumed = found['assumed']
  how = ''
  if assumed:
    how = (
      f': {assumed["chips"]:,} chips x '
      f'{assumed["peak_flops_per_second_and_chip"] / 1e12:g} TFLOP/s x '
      f'{assumed["mfu"]:.0%} MFU x {assumed["days"]:g} days'
    )
  console.print(f'{found["budget_flops"]:.4g} training FLOPs{how}')
  table = Table(title='The model to train')
  table.add_column('law')
  for column in ('parameters', 'tokens', 'tokens/parameter', 'loss'):
    table.add_column(column, justify='right')
  table.add_column('nearest config')
  for row in found['optima']:
    loss = row.get('predicted_loss')
    table.add_row(
      row['law'],
      short(row['parameters']),
      short(row['tokens']),
      f'{row["tokens_per_parameter"]:.3g}',
      f'{loss:.3f}' if loss else '',
      _config(row),
    )
  console.print(table)
  if 'served' in found:
    title = f'With {short(found["inference_tokens"])} tokens of inference'
    table = Table(title=title)
    table.add_column('L(N, D) of')
    table.add_column('model')
    for column in ('parameters', 'tokens', 'training', 'inference', 'total'):
      table.add_column(column, justify='right')
    table.add_column('nearest config')
    for row in found['served']:
      spent = [
        f'{row[f"{name}_flops"]:.3g}'
        for name in ('training', 'inference', 'total')
      ]
      table.add_row(
        row['law'],
        row['model'],
        short(row['parameters']),
        short(row['tokens']),
        *spent,
        _config(row),
      )
    console.print(table)
  for note in found['notes']:
    console.print(f'- {note}')


def short(count: float, digits: int = 1) -> str:
  """Formats a count, as in 67.0B or 1.5T."""
  for unit, size in (('T', 1e12), ('B', 1e9), ('M', 1e6), ('k', 1e3)):
    # 999.99M would be 1000.0M.
    if round(count / size, digits) >= 1:
      return f'{count / size:.{digits}f}{unit}'
  return f'{count:.{digits}f}'


def _nearest(ours: list[Shipped], parameters: float) -> dict[str, Any]:
  """The shipped config of the nearest size, by ratio."""
  if not ours:
    return {}
  found = min(ours, key=lambda x: abs(math.log(x.parameters / parameters)))
  return {'config': found.name, 'config_parameters': found.parameters}


def _config(row: dict[str, Any]) -> str:
  if 'config' not in row:
    return ''
  return f'{row["config"]} ({short(row["config_parameters"])})'


NOTES = [
  'parameters with embeddings (Kaplan: without); FLOPs are 6 N D',
  'approaches 1 to 3: between the rows of tables 3 and A3 of the paper (in the '
  "row of Gopher's budget, 5.76e23, it has 67B and 1.5T, which are 6.03e23)",
  'Hoffmann et al.: the constants as printed; rounded, they give a smaller '
  'model than approach 3 itself. Besiroglu et al. fitted the same runs again',
  "laws hold for their papers' data and tokenizers; losses are nats a token",
]
