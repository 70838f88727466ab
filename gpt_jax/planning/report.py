# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints plans as JSON objects or as tables."""

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NotRequired, TypedDict

from etils import epy
from rich.console import Console

from gpt_jax.core import config as config_lib
from gpt_jax.core import ranges
from gpt_jax.core.config import Config, loading
from gpt_jax.core.costs import topologies
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.costs.topologies import Slices
from gpt_jax.core.files import schema
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.runtime.tables import TextTable
from gpt_jax.core.spec import UsageError, counted
from gpt_jax.planning import prices

with epy.lazy_imports():
  import jax

  from gpt_jax.core import sharding
  from gpt_jax.core.costs import flops
  from gpt_jax.core.training import compiled
  from gpt_jax.planning import compile as compile_lib
  from gpt_jax.planning import layouts, ledger, schedule, search


def to_json(name: str, found: 'search.FittingPlan | search.Misfit') -> dict[str, Any]:
  """All figures: bytes per chip, FLOPs over all chips, seconds.

  If it does not fit: what it needs, and the suggested plan.
  """
  slices, config = found.slices, found.config
  head = {
    'config': name,
    'topology': slices.name,
    'slices': slices.number,
    'chips': slices.chips,
    'hosts': slices.hosts,
    'mesh': {axis: config.mesh[axis] for axis in sharding.AXES},
    'remat': config.model.remat,
    'micro_rows': config.batch.micro_rows or 0,
    'fits': isinstance(found, search.FittingPlan),
    'overrides': found.changes,
  }
  if isinstance(found, search.Misfit):
    suggestion = found.suggestion
    return {
      **head,
      'rows': found.rows,
      'row_tokens': found.row_tokens,
      'needed': found.needed,
      'limit': found.limit,
      'tried': found.tried,
      'kept': list(found.kept),
      'larger': found.larger,
      # The key predates the name `suggestion`.
      'remedy': to_json(name, suggestion) if suggestion else None,
    }
  return {
    **head,
    **({'pipeline': lines} if (lines := pipelines(found)) else {}),
    'stages': [
      {
        **_shown(stage),
        'hbm': stage.hbm._asdict(),
        'flops': {**stage.flops._asdict(), 'ratio': stage.flops.ratio},
        # Traffic on a mesh of one device has no axes.
        'traffic': {axes or '-': x for axes, x in stage.traffic.items()},
        'tokens_per_second': stage.tokens_per_second,
      }
      for stage in found.stages
    ],
    'run': {**found.whole._asdict(), 'dollars': _dollars(found)},
    'price': {
      'dollars_per_chip_hour': prices.of_chip(slices.sold.prefixes),
      'source': prices.source(),
    },
    **(
      {'beaten': {'overrides': rest.changes, 'seconds': rest.last.time}}
      if (rest := found.beaten)
      else {}
    ),
    'estimate_error': found.last.accuracy.error,
    'assumptions': schedule.assumptions(),
  }


def _shown(stage: 'compile_lib.StageTimes') -> dict[str, Any]:
  """The fields of a stage but for its schedule."""
  fields = {**stage._asdict(), 'accuracy': stage.accuracy.text}
  del fields['events']
  return fields


def _dollars(plan: 'search.FittingPlan') -> float | None:
  """What the run costs on demand; None: no price is known."""
  price = prices.of_chip(plan.slices.sold.prefixes)
  return None if price is None else price * plan.whole.chip_hours


def _shown_dollars(plan: 'search.FittingPlan') -> str:
  dollars = _dollars(plan)
  if dollars is None:
    return '-'
  return f'{dollars:,.0f}' if dollars >= 10 else f'{dollars:.2g}'


def _prices(several: Iterable[Slices]) -> list[str]:
  """What a chip-hour of each kind costs, and where the figures are from."""
  costs, unpriced = [], []
  for sold in dict.fromkeys(slices.sold for slices in several):
    price = prices.of_chip(sold.prefixes)
    if price is None:
      unpriced.append(f'{sold.name}: no price is known here; see {prices.WHERE}')
    else:
      costs.append(f'{sold.name}: ${price:.2f}')
  if costs:
    costs = [f'{", ".join(costs)} a chip-hour {prices.source()}']
  return costs + unpriced


def pipelines(found: 'search.FittingPlan') -> list[str]:
  """How rows go through the stages of the mesh, for each shape of the batches.

  Empty without stages. The steps in which a stage is idle count in the time.
  """
  mesh = layouts.mesh_of(found.config, found.slices)
  costs, lines = layouts.CostModel(found.config, found.slices), []
  for shape in found.stages if mesh['stage'] > 1 else ():
    plan = costs.schedule(mesh, found.config.batch.micro_rows, shape.rows)
    lines.append(
      f'{plan.stages} stages, {plan.repeats} repeats of {plan.micro_batches} '
      f'micro-batches: idle in {plan.bubble:.1%} of {plan.steps} steps'
    )
  return lines


class Asked(NamedTuple):
  """What was asked for, in the user's words."""

  config: str  # as --config names it
  train: str  # the command that trains it, without what a plan changes


# What the time of a step is spent on: see `schedule.StepEstimate`.
_TERMS = {
  'products': 'matrix units',
  'vector': 'vector units',
  'memory': 'HBM',
  'ici': 'waiting for chips of a slice',
  'dcn': 'waiting for other slices',
}
# Rows of the table of a plan, each with its text for a stage.
_TABLE = {
  'peak HBM of a chip, GiB': lambda s: _gib(s.hbm.peak),
  '- parameters': lambda s: _gib(s.hbm.parameters),
  '- optimizer': lambda s: _gib(s.hbm.optimizer),
  '- activations kept for all layers': lambda s: _gib(s.hbm.activations),
  '- temporaries, gradients': lambda s: _gib(s.hbm.temporaries),
  "in the host's memory, GiB": lambda s: _gib(s.hbm.host),
  'seconds (estimated)': lambda s: f'{s.time:.3g}',
  **{f'- {label}': lambda s, term=term: f'{s.spent[term]:.3g}' for term, label in _TERMS.items()},
  'MFU': lambda s: flops.both_mfu(s.mfu, s.mfu_causal, 1),
  'micro-batches': lambda s: f'{s.micro_batches}',
  'attention': lambda s: '\n'.join(s.attention),
  'FLOPs not counted': lambda s: ', '.join(s.flops.not_counted),
}
# And of that of --why.
_WHY = {
  'model FLOPs': lambda s: f'{s.flops.model:.4g}',
  'compiled FLOPs': lambda s: f'{s.flops.compiled:.4g}',
  'compiled / model': lambda s: f'{s.flops.ratio:.3f}',
  'of them in kernels': lambda s: f'{sum(s.flops.kernels.values()):.3g}',
  'gradients reduce-scattered': lambda s: _names(s.scattered),
  'gradients all-reduced': lambda s: _names(s.reduced),
  'float32 gathered, GiB': lambda s: _gib(s.wide_gathers),
  # Everything kept there is sent and fetched once; the estimate assumes that
  # this overlaps with the rest.
  "GiB/s to and from the host's memory": lambda s: f'{2 * s.hbm.host / s.time / GIB:.3g}',
  'tokens/s': lambda s: f'{s.tokens_per_second:,.0f}',
}
# Texts of rows that say nothing.
_NOTHING = {'', '-', '0', '0.00', 'none'}


def show(
  asked: Asked, found: 'search.FittingPlan | search.Misfit', console: Console, *, why: bool
) -> None:
  """Prints the answer in five lines, then a table; with `why` all figures.

  If it does not fit, what it needs stands above, and the rest is of the
  smallest change that helps, if any does.
  """
  if isinstance(found, search.Misfit):
    _show_misfit(asked, found, console)
    if found.suggestion is None:
      return
    found = found.suggestion
  for line in answer(asked, found):
    # On one line, to paste: rich would wrap it.
    console.print(line, soft_wrap=True)
  console.print(_table(found, _TABLE))
  if why:
    _show_why(found, console)
  else:
    console.print('--why: FLOPs, traffic, gradients, and what is assumed')


def answer(asked: Asked, plan: 'search.FittingPlan') -> tuple[str, str, str, str, str]:
  """Whether it fits, how fast it is, its MFU, its cost, and how to launch it."""
  slices, stage, run = plan.slices, plan.last, plan.whole
  limit = max(x.hbm.limit for x in plan.stages)
  fits = (
    f'fits: {asked.config} on {slices} ({slices.accelerator}, {counted(slices.chips, "chip")}, '
    f'{counted(slices.hosts, "host")}): {plan.peak / GIB:.2f} of {limit / GIB:.2f} GiB a chip, '
    f'{(limit - plan.peak) / GIB:.2f} free'
  )
  step = (
    f'step: {stage.time:.3g} s for {stage.rows:,} rows of {stage.row_tokens:,} tokens, '
    f'{stage.tokens_per_second:,.0f} tokens/s (estimated); {run.steps:,} steps and '
    f'{run.tokens:,} tokens: {run.days:.3g} days'
  )
  mfu = f'MFU: {flops.both_mfu(run.mfu, run.mfu_causal, 1)}, {stage.accuracy.text}'
  (price,) = _prices([slices])
  hours, dollars = f'{run.chip_hours:,.0f} chip-hours', _dollars(plan)
  about = '' if dollars is None else f'about ${_shown_dollars(plan)} for '
  cost = f'cost: {about}{hours} ({price})'
  return fits, step, mfu, cost, _launch(asked, plan)


def _launch(asked: Asked, plan: 'search.FittingPlan') -> str:
  """The command, and where it runs."""
  slices, words = plan.slices, [asked.train]
  if plan.changes:
    words.append(search.overrides(plan.changes))
  words.append('--workdir W')
  if slices.hosts > 1:
    words.append('--distributed')
  settings, script = [f'ACCELERATOR={slices.accelerator}'], 'launch/tpu.sh'
  if not slices.usual:  # only there has a slice another shape
    settings.append(f'TOPOLOGY={slices.name.partition(":")[2]}')
    script = 'launch/gke.sh'
  if slices.number > 1:
    settings.append(f'SLICES={slices.number}')
  on = f'on each of {slices.hosts:,} hosts; ' if slices.hosts > 1 else ''
  return f'launch ({on}{script}: {" ".join(settings)}): {" ".join(words)}'


def _table(plan: 'search.FittingPlan', rows: dict[str, Callable], title: str = '') -> TextTable:
  """The rows that say something."""
  columns = [f'{stage.rows} rows of {stage.row_tokens}' for stage in plan.stages]
  corner = f'mesh {_mesh(plan)}, remat {plan.config.model.remat}' if rows is _TABLE else 'a step'
  out = TextTable(corner, *columns, title=title)
  for label, text in rows.items():
    texts = [text(stage) for stage in plan.stages]
    if not {*texts} <= _NOTHING:
      out.add_row(label, *texts)
  return out


def _show_why(plan: 'search.FittingPlan', console: Console) -> None:
  """Prints where the figures come from."""
  if (rest := plan.beaten) is not None:
    console.print(
      f'compiled too, and slower (the plan is estimated to be '
      f'{rest.pace / plan.pace - 1:.0%} faster): '
      + (search.overrides(rest.changes) or 'the config as it is'),
      soft_wrap=True,
    )
  for line in dict.fromkeys(pipelines(plan)):
    console.print(line)
  console.print(_table(plan, _WHY, 'Compiled'))
  console.print(_traffic(plan.last))
  if line := _of_outer_steps(plan):
    console.print(line)
  console.print('Assumed:')
  for line in schedule.assumptions():
    console.print(f'  {line}')


def beside_dense(plan: 'search.FittingPlan', dense: 'search.FittingPlan') -> TextTable:
  """What experts cost: a step of the plan beside one of the dense model."""
  model = dense.config.model
  named = f'model.ffn={model.ffn} model.d_ff={model.d_ff}'
  table = TextTable(
    'a step', 'experts', 'dense', 'more', title=f'Beside {named}, which has as many FLOPs a token'
  )
  with_experts, without = plan.last, dense.last
  rows = {
    'peak HBM of a chip, GiB': (with_experts.hbm.peak / GIB, without.hbm.peak / GIB),
    'seconds (estimated)': (with_experts.time, without.time),
    **{
      f'- {_TERMS[term]}': (seconds, without.spent[term])
      for term, seconds in with_experts.spent.items()
    },
  }
  for label, (more, less) in rows.items():
    if more or less:
      tax = f'{more / less - 1:+.0%}' if less else '-'
      table.add_row(label, f'{more:.3g}', f'{less:.3g}', tax)
  return table


def _show_misfit(asked: Asked, misfit: 'search.Misfit', console: Console) -> None:
  text = (
    f'does not fit: {asked.config} on {misfit.slices}: the step of {misfit.rows:,} rows '
    f'of {misfit.row_tokens:,} tokens needs {misfit.needed / GIB:.1f} of '
    f'{misfit.limit / GIB:.2f} GiB a chip, {(misfit.needed - misfit.limit) / GIB:.1f} too many; '
  )
  if suggestion := misfit.suggestion:
    suggestion = suggestion.beaten or suggestion
    before = misfit.changes
    changed = {
      field: value for field, value in suggestion.changes.items() if before.get(field) != value
    }
    text += (
      f'smallest change that fits: {search.overrides(changed)} ({suggestion.peak / GIB:.1f} GiB)'
    )
  else:
    if misfit.tried:
      text += f'none of {misfit.tried} changes helps here; '
    if misfit.kept:
      text += f'{", ".join(misfit.kept)}: kept as given; leave out what may change, or '
    larger = f'{misfit.larger} (estimated)' if misfit.larger else 'more chips'
    text += f'take {larger}'
  console.print(text, soft_wrap=True)


def outcome_to_json(
  name: str, slices: Slices, found: 'search.FittingPlan | search.Misfit | str'
) -> dict[str, Any]:
  """As `to_json`; of what has no plan, why."""
  if not isinstance(found, str):
    return to_json(name, found)
  return {
    'config': name,
    'topology': slices.name,
    'slices': slices.number,
    'chips': slices.chips,
    'hosts': slices.hosts,
    'fits': False,
    'why': found,
  }


def show_compared(
  name: str, outcomes: 'dict[Slices, search.FittingPlan | search.Misfit | str]', console: Console
) -> None:
  """Prints the plans of several topologies as one table, and what to paste."""
  plans = {
    slices: found if isinstance(found, search.FittingPlan) else found.suggestion
    for slices, found in outcomes.items()
    if not isinstance(found, str)
  }
  errors = {plan.last.accuracy.text for plan in plans.values() if plan}
  # One that holds for all rows stands above them.
  above = f', {errors.pop()}' if len(errors) == 1 else ''
  table = TextTable(
    'slices',
    'chips',
    'fits',
    'peak GiB',
    'step s',
    'MFU',
    'days',
    'dollars',
    title=f'{name}; times are estimated{above}',
  )
  lines = []
  for slices, found in outcomes.items():
    plan = plans.get(slices)
    fits = 'yes' if isinstance(found, search.FittingPlan) else 'no'
    if isinstance(found, str):
      lines.append(f'{slices}: {found}')
    elif isinstance(found, search.Misfit):
      needed = f'needs {found.needed / GIB:.1f} of {found.limit / GIB:.2f} GiB'
      if plan is None:
        lines.append(f'{slices}: {needed}')
      else:
        fits = f'if changed: as it is, {needed}'
    if plan is None:
      table.add_row(str(slices), f'{slices.chips:,}', fits, *('-',) * 5)
      continue
    stage = plan.last
    mfu = flops.both_mfu(stage.mfu, stage.mfu_causal, 1)
    table.add_row(
      str(slices),
      f'{slices.chips:,}',
      fits,
      f'{plan.peak / GIB:.2f} of {stage.hbm.limit / GIB:.2f}',
      f'{stage.time:.3g}',
      mfu if above else f'{mfu}, {stage.accuracy.text}',
      f'{plan.whole.days:.3g}',
      _shown_dollars(plan),
    )
    if plan.changes:
      lines.append(f'{slices}: {search.overrides(plan.changes)}')
  console.print(_best(outcomes))
  console.print(table)
  for line in (*lines, *_prices(outcomes)):
    # On one line, to paste: rich would wrap it.
    console.print(line, soft_wrap=True)


def _best(outcomes: 'dict[Slices, search.FittingPlan | search.Misfit | str]') -> str:
  """The fastest and the cheapest of the slices that it fits as it is."""
  fits = [plan for plan in outcomes.values() if isinstance(plan, search.FittingPlan)]
  if not fits:
    return 'fits none of them as it is'
  first = min(fits, key=lambda plan: plan.whole.days)
  said = [
    f'fits {len(fits)} of {len(outcomes)}; fastest: {first.slices}, {first.whole.days:.3g} days'
  ]
  if priced := [(x, plan) for plan in fits if (x := _dollars(plan)) is not None]:
    cheapest = min(priced, key=lambda pair: pair[0])[1]
    said.append(f'cheapest: {cheapest.slices}, ${_shown_dollars(cheapest)}')
  return '; '.join(said)


def show_search(
  asked: Asked, found: 'search.Found', slices: Slices, console: Console, *, why: bool
) -> None:
  """Prints the answer for the best plan, then the ranking of those that fit."""
  plans = found.plans
  if not plans:
    console.print(f'does not fit: {asked.config} on {slices}: {found.why}', soft_wrap=True)
    return
  for line in answer(asked, plans[0]):
    console.print(line, soft_wrap=True)
  table = TextTable(
    'mesh',
    'remat',
    'rows at a time',
    'peak GiB',
    'compiled / model',
    'step s',
    'MFU',
    'days',
    'dollars',
    title=f'Compiled; {found.misfits} others do not compile or do not fit',
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
      flops.both_mfu(stage.mfu, stage.mfu_causal, 1),
      f'{plan.whole.days:.3g}',
      _shown_dollars(plan),
    )
  console.print(table)
  if why:
    console.print(_table(plans[0], _TABLE))
    _show_why(plans[0], console)


def _mesh(plan: 'search.FittingPlan') -> str:
  sizes = plan.config.mesh
  found = [f'{axis}={sizes[axis]}' for axis in sharding.AXES if sizes[axis] != 1]
  return ' '.join(found) or 'of one device'


def _gib(size: float | None) -> str:
  return '-' if size is None else f'{size / GIB:.2f}'


def _names(names: tuple[str, ...]) -> str:
  """Shortens paths to their ends, which are distinct."""
  short = ['/'.join(name.split('/')[-3:]) for name in names]
  return '\n'.join(short) or 'none'


def _of_outer_steps(found: 'search.FittingPlan') -> str:
  """What replicas that train apart send, and how often; '' without any."""
  outer = config_lib.outer(found.config)
  if outer is None:
    return ''
  rare, always = (sent / 2**20 for sent in found.last.outer)
  return (
    f'optim.outer={found.config.optim.outer}: over {sharding.REPLICAS} a chip '
    f'sends {rare:.4g} MiB in one step of {outer.steps}, and {always:.4g} MiB '
    'in each besides; the table has the mean, '
    f'{rare / outer.steps + always:.4g} MiB'
  )


def _traffic(stage: 'compile_lib.StageTimes') -> TextTable:
  kinds = sorted({kind for found in stage.traffic.values() for kind in found})
  table = TextTable(
    'GiB that a chip sends', *kinds, title=f'A step of {stage.rows} rows of {stage.row_tokens}'
  )
  for axes, found in sorted(stage.traffic.items()):
    table.add_row('over ' + (axes or 'nothing'), *(_gib(found.get(k)) for k in kinds))
  return table


# The plans of the shipped configs: docs/plans.json, and the table of them.
#
# An entry has a config, the slices that it is planned for, the overrides that
# make it fit, and the figures `found` when it was last compiled. An entry
# without `found` is new: compiling it for the first time chooses its mesh,
# rematerialisation and micro-batches, and records them as overrides.


FILE = 'docs/plans.json'
# The page with the table, and what encloses it there.
PAGE = 'docs/planning.md'
BEGIN = '<!-- table: gpt-jax plan --table -->\n'
END = '\n<!-- end of table -->'
_REMEDY = 'restore it from the repository'
# Relative drift between compilations that is not reported.
TOLERANCE = {'peak_gib': 0.05, 'flops_ratio': 0.02, 'step_seconds': 0.05}
_HEAD = (
  '| config | slices | chips | peak HBM, of GiB | compiled / model FLOPs | '
  'step, MFU, days (estimated) | overrides |',
  '|---|---|---|---|---|---|---|',
)


_ATTENTION = '| config | attention |', '|---|---|'


class _Found(TypedDict):
  step_seconds: ranges.Positive
  mfu: ranges.NotNegative
  mfu_causal: ranges.NotNegative
  peak_gib: ranges.Positive
  limit_gib: ranges.Positive
  flops_ratio: ranges.Positive
  days: ranges.NotNegative
  attention: list[str]
  made_with: dict[str, str]  # versions


class _Entry(TypedDict):
  config: str
  topology: str
  slices: ranges.Count
  overrides: NotRequired[dict[str, Any]]
  found: NotRequired[_Found]


def read(root: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the entries under `root`."""
  path = root / FILE
  try:
    entries = json.loads(path.read_bytes())
  except (FileNotFoundError, NotADirectoryError) as e:
    raise UsageError(f'--table: {root} has no {FILE}; run it where configs/ is') from e
  except (ValueError, RecursionError, IsADirectoryError) as e:
    why = 'a folder' if isinstance(e, OSError) else f'not JSON ({e})'
    raise UsageError(f'{path}: is damaged, {why}; {_REMEDY}') from e
  if said := schema.problem(entries, list[_Entry]):
    raise UsageError(f'{path}: is damaged, {said}; {_REMEDY}')
  for number, entry in enumerate(entries):
    try:
      topologies.parse(entry['topology'], entry['slices'])
    except UsageError as e:
      raise UsageError(f'{path}: is damaged, entry {number}: {e}') from e
  return entries


def markdown(entries: list[dict[str, Any]]) -> str:
  """Formats the compiled entries as a table, and their attention as another."""
  rows, attention = [], []
  for entry in entries:
    found = entry.get('found')
    if not found:
      continue
    slices = topologies.parse(entry['topology'], entry['slices'])
    # Escape the character that ends a cell.
    flags = search.overrides(entry.get('overrides', {})).replace('|', '\\|')
    rows.append(
      f'| `{entry["config"]}` | {slices} | {slices.chips:,} '
      f'| {found["peak_gib"]:.2f} of {found["limit_gib"]:.2f} '
      f'| {found["flops_ratio"]:.2f} '
      f'| {found["step_seconds"]:.3g} s, '
      f'{flops.both_mfu(found["mfu"], found["mfu_causal"])}, '
      f'{found["days"]:.3g} | {f"`{flags}`" if flags else ""} |'
    )
    kernels: dict[str, list[str]] = {}  # and the layers that each serves
    for line in found['attention']:
      layer, _, kernel = line.partition(': ')
      kernels.setdefault(kernel, []).append(layer)
    if not {*kernels} <= {'splash'}:
      of = len(kernels) > 1
      said = (f'{", ".join(x)}: {name}' if of else name for name, x in kernels.items())
      attention.append(f'| `{entry["config"]}` | {"; ".join(said)} |')
  return '\n'.join([*_HEAD, *rows, '', *_ATTENTION, *attention])


def recompile(root: pathlib.Path, only: str, note: 'search.Note') -> list[str]:
  """Compiles all entries, or those with `only` in the name of the config.

  Writes the file, and the table in `PAGE`, after each one.

  Returns:
    What changed by more than `TOLERANCE`, and what no longer compiles.
  """
  entries, drift = read(root), []
  chosen = [entry for entry in entries if only in entry['config']]
  if not chosen:
    raise UsageError(f'--only={only}: no config of {FILE} has that in its name; --table lists them')
  for number, entry in enumerate(chosen, start=1):
    name = f'{entry["config"]} on {entry["slices"]} x {entry["topology"]}'
    note(f'{number} of {len(chosen)}: {name}')
    try:
      drift += [f'{name}: {text}' for text in _compile(entry, root, note)]
    except (compiled.TooLarge, UsageError, jax.errors.JaxRuntimeError) as e:
      drift.append(f'{name}: {e}')
      note(drift[-1])
    # After each one, so that an interruption loses nothing.
    _write(root, entries)
    jax.clear_caches()
  return drift


def load_config(root: pathlib.Path, name: str, overrides: dict[str, Any]) -> Config:
  """Loads the config of an entry and resolves it with its overrides.

  Like `train`, it applies overrides before resolving: if the length is given in
  tokens, the number of steps depends on the batch size.
  """
  return layouts.apply(loading.read(str(root / name)), overrides)


def _write(root: pathlib.Path, entries: list[dict[str, Any]]) -> None:
  """Writes the file, and the table in `PAGE` where that has its marks."""
  text = json.dumps(entries, indent=1) + '\n'
  write_atomically(str(root / FILE), text)
  page = root / PAGE
  if not page.exists():
    return
  before, mark, rest = page.read_text(encoding='utf-8').partition(BEGIN)
  _, end, after = rest.partition(END)
  if mark and end:
    whole = before + mark + markdown(entries) + end + after
    write_atomically(str(page), whole)


def _compile(entry: dict, root: pathlib.Path, note: 'search.Note') -> list[str]:
  """Compiles an entry and updates `found`; describes what changed."""
  slices = topologies.parse(entry['topology'], entry['slices'])
  config = load_config(root, entry['config'], entry.get('overrides', {}))
  before = entry.get('found')
  if before:
    plan = search.make(search.SearchRequest(config, slices), note, last_only=True)
  else:
    given = entry.get('overrides', {})
    plan = search.first_plan(config, slices, given, note)
    changes = search.shown(config, plan.changes)
    entry['overrides'] = {**given, **changes}
  found = entry['found'] = _found(plan)
  other = ''
  if before and before['made_with'] != found['made_with']:
    other = f' (made with {before["made_with"]}, now with {found["made_with"]})'
  return [
    f'{key} was {before[key]:.4g} and is {found[key]:.4g}{other}'
    for key, tolerance in TOLERANCE.items()
    if before and abs(found[key] / before[key] - 1) > tolerance
  ]


def _found(plan: 'search.FittingPlan') -> dict[str, Any]:
  """Figures of the last stage, rounded to keep noise out of diffs."""
  stage = plan.last
  return {
    'rows': stage.rows,
    'peak_gib': round(stage.hbm.peak / GIB, 3),
    'limit_gib': round(stage.hbm.limit / GIB, 2),
    'flops_ratio': round(stage.flops.ratio, 4),
    'scattered': len(stage.scattered),
    'reduced': len(stage.reduced),
    'step_seconds': float(f'{stage.time:.4g}'),
    'mfu': round(stage.mfu, 4),
    'mfu_causal': round(stage.mfu_causal, 4),
    'days': float(f'{plan.whole.days:.4g}'),
    'attention': list(stage.attention),
    'made_with': ledger.made_with(),
  }


# Rows of the ledger.


def record(
  name: str, source: str, config: str, given: dict[str, Any], plan: 'search.FittingPlan'
) -> None:
  """Adds a plan to the ledger, as a row whose step nobody has measured yet."""
  stage, slices = plan.last, plan.slices
  ledger.enter(
    {
      'name': name,
      'kind': stage.kind,
      'how': 'blind',
      'config': config,
      'topology': slices.name,
      'slices': slices.number,
      'overrides': {**given, **search.shown(plan.config, plan.changes)},
      'source': source,
      'measured': {},
      'predicted': ledger.predicted(stage.time, stage.mfu, stage.hbm.peak / GIB),
      'model_flops': stage.flops.model,
      'events': ledger.to_json(stage.events),
    }
  )


def record_again(root: pathlib.Path, name: str, note: 'search.Note') -> 'ledger.Outcome':
  """Compiles a row again, which replaces its schedule; what was predicted stays.

  Raises:
    UsageError: there is no such row, or its program does not fit.
  """
  row = ledger.found(name)
  slices = topologies.parse(row['topology'], row['slices'])
  config = load_config(root, row['config'], row['overrides'])
  try:
    plan = search.make(search.SearchRequest(config, slices), note, last_only=True)
  except compiled.TooLarge as e:
    raise UsageError(f'--record={name}: no longer fits: {e}') from e
  stage = plan.last
  ledger.enter(
    {
      **row,
      'kind': stage.kind,
      'model_flops': stage.flops.model,
      'events': ledger.to_json(stage.events),
    }
  )
  return ledger.outcome(ledger.found(name))
