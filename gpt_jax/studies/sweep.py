# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An IsoFLOP grid: compute budgets times model sizes, as training runs.

A token counts as 6N FLOPs, N being all parameters, in all three approaches, so
that budgets are spent in the unit that the parametric loss is minimised under.
Small models actually execute more (attention, the softmax).
"""

import datetime
import math
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.costs import totals
from gpt_jax.core.optim.schedules import SCHEDULES
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import metrics
from gpt_jax.core.training.metrics import HELD_OUT
from gpt_jax.papers.chinchilla.fit import Curve, Point
from gpt_jax.studies import comparison


class Size(NamedTuple):
  """A model size of `sweep.sizes`, and its peak learning rate."""

  num_layers: int
  d_model: int
  num_heads: int
  peak: float = 0.0  # 0: the config's own


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
  """The runs of a config with a section `sweep`, smallest budget first."""
  if 'sweep' not in config:
    raise UsageError(
      '--config: has no section sweep (budgets, sizes, ...); start from configs/scaling.py'
    )
  if config_lib.in_percent(config):
    raise UsageError(
      f'batch.size={config.batch.size!r} and batch.length='
      f'{config.batch.length!r}: a part of the steps is not known while the '
      'budget decides how many there are; give steps or tokens'
    )
  sweep = config.sweep
  budgets = _budgets(sweep.budgets)
  sizes = spec.build_all('sweep.sizes', sweep.sizes, {'size': Size})
  if config.data.holdout == 'none':
    raise UsageError(
      'data.holdout=none: the laws are fitted to held-out losses; give documents(fraction=0.02)'
    )
  cells = [cell for size in sizes for cell in _cells(config, size, budgets)]
  cells.sort(key=lambda cell: cell.budget)
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
      f"sweep.budgets={text!r}: give two or more numbers of FLOPs, as in '1e12, 3e12'"
    )
  return budgets


def _cells(config: Config, size: Size, budgets: list[float]) -> Iterator[Cell]:
  """The runs of a size whose tokens per parameter are in the sweep's range."""
  changes: dict[str, object] = {
    'model.num_layers': size.num_layers,
    'model.d_model': size.d_model,
    'model.num_heads': size.num_heads,
  }
  if size.peak:
    changes['schedule.name'] = _with_peak(config.schedule.name, size.peak)

  def changed(num_steps: int) -> Config:
    run = config_lib.unlocked(config)
    run.update_from_flattened_dict(changes)
    run.schedule.num_steps = num_steps
    return config_lib.resolve(run)

  # Counting does not depend on the number of steps.
  whole = changed(10**6)
  parameters = totals.figures_of(whole)[1]['parameters']
  ramp, sweep, cost = config_lib.ramp(whole), config.sweep, 6 * parameters
  least, most = sweep.min_tokens_per_parameter, sweep.max_tokens_per_parameter
  for budget in budgets:
    steps = ramp.step_at_tokens(math.ceil(budget / cost))
    tokens = ramp.tokens(steps)
    if least <= tokens / parameters <= most:
      name = f'{budget:.4g}-{size.num_layers}x{size.d_model}'
      yield Cell(
        name.replace('e+', 'e'),
        budget,
        parameters,
        tokens,
        cost * tokens,
        changed(steps),
        {**changes, 'schedule.num_steps': steps},
      )


def _with_peak(text: str, peak: float) -> str:
  """Replaces the peak in a schedule's call-string."""
  (call,) = spec.bind_all('schedule.name', text, SCHEDULES)[:1]
  if 'peak' not in call.kwargs:
    raise UsageError(
      f'schedule.name={text!r}: has no peak for sweep.sizes to set; give '
      'sizes without peak, or another schedule'
    )
  return spec.written(call._replace(kwargs={**call.kwargs, 'peak': peak}))


# The runs of a sweep: training them one by one, and reading their results.


def train(cells: list[Cell], argv: list[str], root: str) -> list[tuple[Point, Curve]]:
  """Trains the runs that are not complete, one after the other.

  Args:
    argv: the command's flags; those of the config are passed on.
    root: the folder of all runs.

  Raises:
    RuntimeError: a run failed.
  """
  folders = [folder(root, cell) for cell in cells]
  results = list(map(result, cells, folders))
  total = sum(cell.flops for cell in cells)
  missing = sum(cell.flops for cell, found in zip(cells, results, strict=True) if found is None)
  started, done, trained = time.monotonic(), 0.0, 0.0
  out = []
  for i, (cell, workdir, found) in enumerate(zip(cells, folders, results, strict=True), start=1):
    if found is None:
      variant = comparison.Variant(cell.name, arguments(argv, cell))
      comparison.train(variant, cell.config.seed, workdir, root)
      found = result(cell, workdir)
      if found is None:
        raise UsageError(
          f'{os.path.join(workdir, "metrics.jsonl")}: has no {HELD_OUT} of the last step; give '
          f'held-out text (data.holdout), or {comparison.again(workdir)}'
        )
      trained += cell.flops
    out.append(found)
    done += cell.flops
    epochs = [m['epochs'] for m in metrics.read(workdir) if 'epochs' in m]
    if max(epochs, default=0.0) > 1:
      log.warning(
        '%s: saw its text %.1f times, but the laws assume text seen once; '
        'give more text, or smaller budgets',
        cell.name,
        max(epochs),
      )
    seconds = time.monotonic() - started
    left = ''
    if trained and missing > trained:
      rest = round(seconds / trained * (missing - trained))
      left = f', about {datetime.timedelta(seconds=rest)} left'
    log.info(
      'run %d/%d, %s: held-out loss %.4f | %.0f%% of the FLOPs | %s%s',
      i,
      len(cells),
      cell.name,
      found[0].loss,
      100 * done / total,
      datetime.timedelta(seconds=round(seconds)),
      left,
    )
  return out


def result(cell: Cell, workdir: str) -> tuple[Point, Curve] | None:
  """A run's held-out loss and its curve; None if it has not reached its end.

  Raises:
    UsageError: it has diverged, or logged no loss: there is nothing to fit. Or
      its log is damaged.
  """
  lines = metrics.read(workdir)
  last = cell.config.schedule.num_steps
  losses = [m[HELD_OUT] for m in lines if m['step'] == last and HELD_OUT in m]
  if not losses:
    return None
  comparison.check_log(workdir, lines)
  if not 0 < losses[-1] < math.inf:
    raise UsageError(
      f'{workdir}: the run diverged, its held-out loss is {losses[-1]:g}; lower its peak in '
      'sweep.sizes, delete its folder and give the same command'
    )
  logged = [m for m in lines if math.isfinite(m.get('loss', math.nan))]
  if not logged:
    raise UsageError(
      f'{workdir}: the run logged no finite loss in its {last} steps; lower log.every_steps, '
      'delete its folder and give the same command'
    )
  point = Point(cell.name, cell.budget, cell.parameters, cell.tokens, cell.flops, losses[-1])
  return point, Curve(
    cell.parameters,
    cell.flops / cell.tokens,
    [m['tokens'] for m in logged],
    [m['loss'] for m in logged],
  )


def folder(root: str, cell: Cell) -> str:
  """The workdir of a run."""
  return os.path.join(root, cell.name)


def arguments(argv: list[str], cell: Cell) -> list[str]:
  """The flags of `train` for a run: those of the config, and its changes."""
  out = []
  for word, following in zip(argv, [*argv[1:], ''], strict=True):
    flag = word.lstrip('-')
    if flag == word or not re.match(r'(no)?config($|[.=])', flag):
      continue
    if flag == 'config':
      out += ['--config', following]
    elif '=' in flag:
      out.append(word)
    else:
      raise UsageError(f'{word}: write --config.SECTION.FIELD=VALUE')
  return out + [f'--config.{name}={value}' for name, value in cell.changes.items()]
