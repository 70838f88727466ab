# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An IsoFLOP grid: compute budgets times model sizes, as training runs.

A token counts as 6N FLOPs, N being all parameters, in all three approaches, so
that budgets are spent in the unit that the parametric loss is minimised under.
Small models actually execute more (attention, the softmax).
"""

import math
from typing import NamedTuple

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.costs import totals
from gpt_jax.optim.schedules import SCHEDULES
from gpt_jax.spec import UsageError


class Size(NamedTuple):
  """A model size, and its peak learning rate (0: the config's own)."""

  num_layers: int
  d_model: int
  num_heads: int
  peak: float


class Model(NamedTuple):
  """A size of the grid, before a budget is chosen."""

  name: str
  parameters: int
  cost: int  # FLOPs per token, 6N
  config: Config  # resolved, with an arbitrary length
  changes: dict[str, object]  # against the sweep's config


class Cell(NamedTuple):
  """One run of the grid."""

  name: str
  budget: float  # FLOPs asked for; `flops` is rounded to whole steps
  parameters: int
  tokens: int
  flops: float
  config: Config  # resolved
  changes: dict[str, object]  # against the sweep's config


def grid(config: Config) -> list[Cell]:
  """The runs of a config with a section `sweep`, smallest budget first.

  Raises:
    UsageError: there is no such section, or the grid is invalid.
  """
  if 'sweep' not in config:
    raise UsageError(
      '--config: has no section sweep (budgets, sizes, ...); start from '
      'configs/scaling.py'
    )
  if config_lib.in_percent(config):
    raise UsageError(
      f'batch.size={config.batch.size!r} and batch.length='
      f'{config.batch.length!r}: a part of the steps is not known while the '
      'budget decides how many there are; give steps or tokens'
    )
  sweep = config.sweep
  budgets = _budgets(sweep.budgets)
  sizes = spec.build_all('sweep.sizes', sweep.sizes, {'size': _size})
  models = [_model(config, size) for size in sizes]
  if config.data.holdout == 'none':
    raise UsageError(
      'data.holdout=none: the laws are fitted to held-out losses; give '
      'documents(fraction=0.02)'
    )
  cells = [
    cell
    for budget in budgets
    for model in models
    if (cell := _cell(config, budget, model))
  ]
  names = [cell.name for cell in cells]
  if len(set(names)) < len(names):
    raise UsageError(f'sweep.sizes={sweep.sizes!r}: two of them are alike')
  for budget in budgets:
    found = sum(cell.budget == budget for cell in cells)
    if found < 3:
      raise UsageError(
        f'sweep.budgets={sweep.budgets!r}: {budget:g} FLOPs have {found} sizes '
        'with tokens between sweep.min_tokens_per_parameter and '
        'max_tokens_per_parameter, and a parabola needs 3; add sizes to '
        'sweep.sizes'
      )
  return cells


def _budgets(text: str) -> list[float]:
  try:
    budgets = sorted({float(part) for part in text.split(',')})
  except ValueError:
    budgets = []
  if len(budgets) < 2 or not all(0 < b < math.inf for b in budgets):
    raise UsageError(
      f'sweep.budgets={text!r}: give two or more numbers of FLOPs, as in '
      "'1e12, 3e12'"
    )
  return budgets


def _size(
  num_layers: int, d_model: int, num_heads: int, peak: float = 0.0
) -> Size:
  return Size(num_layers, d_model, num_heads, peak)


def _model(config: Config, size: Size) -> Model:
  """Counts the parameters of a size, and its FLOPs per token."""
  changes: dict[str, object] = {
    'model.num_layers': size.num_layers,
    'model.d_model': size.d_model,
    'model.num_heads': size.num_heads,
  }
  if size.peak:
    changes['schedule.name'] = _with_peak(config.schedule.name, size.peak)
  model = config_lib.unlocked(config)
  model.update_from_flattened_dict(changes)
  # Counting does not depend on the number of steps.
  model.schedule.num_steps = 10**6
  model = config_lib.resolve(model)
  parameters = totals.figures_of(model)[1]['parameters']
  name = f'{size.num_layers}x{size.d_model}'
  return Model(name, parameters, 6 * parameters, model, changes)


def _cell(config: Config, budget: float, model: Model) -> Cell | None:
  """A run; None if it has too few or too many tokens per parameter."""
  ramp, sweep = config_lib.ramp(model.config), config.sweep
  steps = ramp.step_at_tokens(math.ceil(budget / model.cost))
  tokens = ramp.tokens(steps)
  least, most = sweep.min_tokens_per_parameter, sweep.max_tokens_per_parameter
  if not least <= tokens / model.parameters <= most:
    return None
  changes = {**model.changes, 'schedule.num_steps': steps}
  run = config_lib.unlocked(config)
  run.update_from_flattened_dict(changes)
  run = config_lib.resolve(run)
  name = f'{budget:.4g}-{model.name}'.replace('e+', 'e')
  return Cell(
    name, budget, model.parameters, tokens, model.cost * tokens, run, changes
  )


def _with_peak(text: str, peak: float) -> str:
  """Replaces the peak in a schedule's call-string.

  Raises:
    UsageError: the schedule has no peak.
  """
  (call,) = spec.bind_all('schedule.name', text, SCHEDULES)[:1]
  if 'peak' not in call.kwargs:
    raise UsageError(
      f'schedule.name={text!r}: has no peak for sweep.sizes to set; give '
      'sizes without peak, or another schedule'
    )
  return spec.written(call._replace(kwargs={**call.kwargs, 'peak': peak}))
