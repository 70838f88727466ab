# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The runs of a sweep: trained one by one, and what they came to."""

import datetime
import math
import os
import re
import time

from gpt_jax.planning.power import Curve, Point
from gpt_jax.planning.sweep import Cell
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics, variants
from gpt_jax.training.metrics import HELD_OUT


def train(
  cells: list[Cell], argv: list[str], root: str
) -> list[tuple[Point, Curve]]:
  """Trains what is left to train, one run after the other.

  Args:
    cells: of the grid.
    argv: the flags that were given; those of the config are passed on.
    root: the folder of all runs.

  Raises:
    UsageError: a run is refused.
    RuntimeError: a run failed.
  """
  folders = [folder(root, cell) for cell in cells]
  results = list(map(result, cells, folders))
  left = _Left(cells, results)
  out = []
  for i, (cell, workdir, found) in enumerate(
    zip(cells, folders, results, strict=True), start=1
  ):
    if found is None:
      variant = variants.Variant(cell.name, arguments(argv, cell))
      variants.train(variant, str(cell.config.seed), workdir, root)
      found = result(cell, workdir)
      if found is None:
        raise RuntimeError(f'{workdir}: has no {HELD_OUT} of its last step')
      left.trained += cell.flops
    out.append(found)
    left.done += cell.flops
    seen = epochs(workdir)
    if seen > 1:
      log.warning(
        '%s: saw its text %.1f times, where the laws are of text seen once; '
        'give more text, or smaller budgets',
        *(cell.name, seen),
      )
    log.info(
      'run %d/%d, %s: held-out loss %.4f | %s',
      *(i, len(cells), cell.name, found[0].loss, left),
    )
  return out


class _Left:
  """How far a sweep is, in FLOPs, and how long the rest will take."""

  def __init__(
    self, cells: list[Cell], results: list[tuple[Point, Curve] | None]
  ):
    self._started = time.monotonic()
    self._total = sum(cell.flops for cell in cells)
    self._to_train = sum(
      cell.flops
      for cell, found in zip(cells, results, strict=True)
      if found is None
    )
    self.done = self.trained = 0.0

  def __str__(self) -> str:
    seconds = time.monotonic() - self._started
    text = (
      f'{100 * self.done / self._total:.0f}% of the FLOPs | '
      f'{datetime.timedelta(seconds=round(seconds))}'
    )
    rest = self._to_train - self.trained
    if not self.trained or rest <= 0:
      return text
    left = datetime.timedelta(seconds=round(seconds / self.trained * rest))
    return f'{text}, about {left} left'


def result(cell: Cell, workdir: str) -> tuple[Point, Curve] | None:
  """What a run came to; None if it has not reached its end."""
  lines = metrics.read(workdir)
  last = cell.config.schedule.num_steps
  losses = [m[HELD_OUT] for m in lines if m['step'] == last and HELD_OUT in m]
  if not losses:
    return None
  logged = [m for m in lines if math.isfinite(m.get('loss', math.nan))]
  point = Point(
    cell.budget, cell.parameters, cell.tokens, cell.flops, losses[-1]
  )
  return point, Curve(
    cell.parameters,
    cell.flops / cell.tokens,
    [m['tokens'] for m in logged],
    [m['loss'] for m in logged],
  )


def epochs(workdir: str) -> float:
  """How often the run saw its text."""
  seen = [m['epochs'] for m in metrics.read(workdir) if 'epochs' in m]
  return max(seen, default=0.0)


def folder(root: str, cell: Cell) -> str:
  """The workdir of a run."""
  return os.path.join(root, cell.name)


def arguments(argv: list[str], cell: Cell) -> list[str]:
  """The flags of `train` for a run: those of the config, and its changes.

  Raises:
    UsageError: an override has no '='.
  """
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
      raise UsageError(f'{word}: write --config.section.field=VALUE')
  return out + [
    f'--config.{name}={value}' for name, value in cell.changes.items()
  ]
