# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints plans as JSON objects or as tables."""

from typing import Any

from rich.console import Console
from rich.table import Table

from gpt_jax.planning import estimate
from gpt_jax.planning.measure import Stage
from gpt_jax.planning.plans import Plan, overrides
from gpt_jax.planning.suggestions import Misfit
from gpt_jax.planning.topologies import GIB, Slices
from gpt_jax.sharding import AXES

PERCENT = f'±{estimate.ERROR:.0%}'


def to_json(name: str, plan: Plan) -> dict[str, Any]:
  """All figures: bytes per chip, FLOPs over all chips, seconds."""
  return {
    **_head(name, plan.slices, plan.config),
    'fits': True,
    'overrides': plan.changes,
    'stages': [_stage(stage) for stage in plan.stages],
    'run': plan.whole._asdict(),
    'estimate_error': estimate.ERROR,
    'assumptions': estimate.assumptions(),
  }


def misfit_to_json(name: str, misfit: Misfit) -> dict[str, Any]:
  """What it needs, and the suggested plan."""
  suggestion = misfit.suggestion
  return {
    **_head(name, misfit.slices, misfit.config),
    'fits': False,
    'overrides': misfit.changes,
    'rows': misfit.rows,
    'row_tokens': misfit.row_tokens,
    'needed': misfit.needed,
    'limit': misfit.limit,
    'tried': misfit.tried,
    'kept': list(misfit.kept),
    'larger': misfit.larger,
    # The key is older than the word.
    'remedy': to_json(name, suggestion) if suggestion else None,
  }


def _head(name: str, slices: Slices, config: Any) -> dict[str, Any]:
  return {
    'config': name,
    'topology': slices.name,
    'slices': slices.number,
    'chips': slices.chips,
    'hosts': slices.hosts,
    'mesh': {axis: config.mesh[axis] for axis in AXES},
    'remat': config.model.remat,
    'micro_rows': config.batch.micro_rows or 0,
  }


def _stage(stage: Stage) -> dict[str, Any]:
  found = {
    **stage._asdict(),
    'hbm': stage.hbm._asdict(),
    'flops': {**stage.flops._asdict(), 'ratio': stage.flops.ratio},
    'tokens_per_second': stage.tokens_per_second,
  }
  # Traffic on a mesh of one device has no axes.
  found['traffic'] = {k or '-': v for k, v in found['traffic'].items()}
  return found


def show(name: str, plan: Plan, console: Console) -> None:
  """Prints a plan."""
  slices, stages = plan.slices, plan.stages
  console.print(
    f'{name} on {slices}: {slices.chips:,} chips, {slices.hosts:,} hosts, '
    f'mesh {_mesh(plan)}, remat {plan.config.model.remat}'
  )
  if plan.changes:
    console.print('taken besides the config, to give to train too:')
    # On one line, to paste: rich would wrap it.
    console.print(f'  {overrides(plan.changes)}', soft_wrap=True)
  columns = [f'{stage.rows} rows of {stage.row_tokens}' for stage in stages]
  memory = Table('HBM of a chip, GiB', *columns, title='Fits')
  for label, of in (
    ('peak', lambda s: s.hbm.peak),
    ('allowed', lambda s: s.hbm.limit),
    ('parameters', lambda s: s.hbm.parameters),
    ('optimizer', lambda s: s.hbm.optimizer),
    ('activations kept for all layers', lambda s: s.hbm.activations),
    ('temporaries, gradients', lambda s: s.hbm.temporaries),
    ("in the host's memory", lambda s: s.hbm.host),
  ):
    memory.add_row(label, *(_gib(of(stage)) for stage in stages))
  console.print(memory)
  work = Table('a step', *columns, title='Compiled')
  for label, of in (
    ('micro-batches', lambda s: f'{s.micro_batches}'),
    ('model FLOPs', lambda s: f'{s.flops.model:.4g}'),
    ('compiled FLOPs', lambda s: f'{s.flops.compiled:.4g}'),
    ('compiled / model', lambda s: f'{s.flops.ratio:.3f}'),
    ('of them in kernels', _in_kernels),
    ('not counted', lambda s: ', '.join(s.flops.not_counted) or 'nothing'),
    ('gradients reduce-scattered', lambda s: _names(s.scattered)),
    ('gradients all-reduced', lambda s: _names(s.reduced)),
    ('float32 gathered, GiB', lambda s: _gib(s.wide_gathers)),
  ):
    work.add_row(label, *(of(stage) for stage in stages))
  console.print(work)
  console.print(_traffic(stages[-1]))
  times = Table('a step', *columns, title=f'Estimated, {PERCENT}')
  for label, of in (
    ('seconds', lambda s: f'{s.time:.3g}'),
    ('of them: matrix units', lambda s: f'{s.spent["products"]:.3g}'),
    ('vector units', lambda s: f'{s.spent["vector"]:.3g}'),
    ('HBM', lambda s: f'{s.spent["memory"]:.3g}'),
    ('waiting for chips of a slice', lambda s: f'{s.spent["ici"]:.3g}'),
    ('waiting for other slices', lambda s: f'{s.spent["dcn"]:.3g}'),
    # What is kept there goes there and comes back; that it does so beside the
    # rest is assumed.
    ("GiB/s to and from the host's memory", _to_host),
    ('MFU', lambda s: f'{s.mfu:.1%}'),
    ('tokens/s', lambda s: f'{s.tokens_per_second:,.0f}'),
  ):
    times.add_row(label, *(of(stage) for stage in stages))
  console.print(times)
  console.print(_whole(plan))
  console.print('Assumed:')
  for line in estimate.assumptions():
    console.print(f'  {line}')


def _to_host(stage: Stage) -> str:
  return f'{2 * stage.hbm.host / stage.time / GIB:.3g}'


def show_misfit(name: str, misfit: Misfit, console: Console) -> None:
  """Prints what does not fit, and the smallest change that helps."""
  text = (
    f'{name} on {misfit.slices}: does not fit: the step of {misfit.rows} rows '
    f'of {misfit.row_tokens} tokens needs {misfit.needed / GIB:.1f} GiB '
    f'of {misfit.limit / GIB:.2f}; '
  )
  if misfit.suggestion is None:
    if misfit.tried:
      text += f'none of {misfit.tried} changes helps here; '
    if misfit.kept:
      text += (
        f'{", ".join(misfit.kept)}: kept as given; leave out what may change, '
        'or '
      )
    larger = f'{misfit.larger} (estimated)' if misfit.larger else 'more chips'
    console.print(f'{text}take {larger}', soft_wrap=True)
    return
  suggestion = misfit.suggestion
  changed = {k: v for k, v in suggestion.changes.items() if _new(misfit, k, v)}
  console.print(
    text + f'smallest change that fits: {overrides(changed)} '
    f'({suggestion.peak / GIB:.1f} GiB)',
    soft_wrap=True,
  )
  show(name, suggestion, console)


def show_search(
  name: str, slices: Slices, plans: list[Plan], misfits: int, console: Console
) -> None:
  """Prints the ranking of plans that fit, and the best one as overrides."""
  if not plans:
    console.print(
      f'{name} on {slices}: nothing of {misfits} tried fits; take more chips'
    )
    return
  table = Table(
    *('mesh', 'remat', 'rows at a time', 'peak GiB', 'compiled / model'),
    *('step s', 'MFU', 'days'),
    title=f'{name} on {slices}; times are estimated, {PERCENT}',
  )
  for plan in plans:
    stage = plan.last
    table.add_row(
      _mesh(plan),
      plan.config.model.remat,
      str(-(-stage.rows // stage.micro_batches)),
      f'{plan.peak / GIB:.2f}',
      f'{stage.flops.ratio:.2f}',
      f'{stage.time:.3g}',
      f'{stage.mfu:.1%}',
      f'{plan.whole.days:.3g}',
    )
  console.print(table)
  console.print(
    f'{misfits} others do not compile or do not fit. The best, to paste:'
  )
  console.print(f'  {overrides(plans[0].changes)}', soft_wrap=True)


def _new(misfit: Misfit, field: str, value: Any) -> bool:
  return misfit.changes.get(field) != value


def _mesh(plan: Plan) -> str:
  sizes = plan.config.mesh
  found = [f'{axis}={sizes[axis]}' for axis in AXES if sizes[axis] != 1]
  return ' '.join(found) or 'of one device'


def _gib(size: float | None) -> str:
  return '-' if size is None else f'{size / GIB:.2f}'


def _in_kernels(stage: Stage) -> str:
  return f'{sum(stage.flops.kernels.values()):.3g}'


def _names(names: tuple[str, ...]) -> str:
  """Shortens paths to their ends, which are distinct."""
  short = ['/'.join(name.split('/')[-3:]) for name in names]
  return '\n'.join(short) or 'none'


def _traffic(stage: Stage) -> Table:
  kinds = sorted({kind for found in stage.traffic.values() for kind in found})
  table = Table(
    'GiB that a chip sends',
    *kinds,
    title=f'A step of {stage.rows} rows of {stage.row_tokens}',
  )
  for axes, found in sorted(stage.traffic.items()):
    table.add_row(
      'over ' + (axes or 'nothing'), *(_gib(found.get(k)) for k in kinds)
    )
  return table


def _whole(plan: Plan) -> str:
  run = plan.whole
  return (
    f'All {run.steps:,} steps, {run.tokens:,} tokens: {run.days:.3g} days, '
    f'{run.chip_hours:,.0f} chip-hours, MFU {run.mfu:.1%} (estimated, '
    f'{PERCENT})'
  )
