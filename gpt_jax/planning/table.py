# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plans of the shipped configs: docs/plans.json, and the table of them.

An entry has a config, the slices that it is planned for, the overrides that
make it fit, and the figures `found` when it was last compiled. An entry without
`found` is new: compiling it for the first time chooses its mesh,
rematerialisation and micro-batches, and records them as overrides.
"""

import json
import pathlib
from typing import Any

import jax

from gpt_jax.config import Config, loading
from gpt_jax.planning import layouts, plans, suggestions, topologies
from gpt_jax.planning.compile import TooLarge
from gpt_jax.planning.plans import Note, Plan, Request
from gpt_jax.planning.sizes import Sizes
from gpt_jax.planning.topologies import GIB
from gpt_jax.spec import UsageError
from gpt_jax.training.metrics import write_atomically

FILE = 'docs/plans.json'
# The page with the table, and what encloses it there.
PAGE = 'docs/planning.md'
BEGIN = '<!-- table: gpt-jax plan --table -->\n'
END = '\n<!-- end of table -->'
# Relative drift between compilations that is not reported.
TOLERANCE = {'peak_gib': 0.05, 'flops_ratio': 0.02, 'step_seconds': 0.05}
_HEAD = (
  '| config | slices | chips | peak HBM, of GiB | compiled / model FLOPs | '
  'step, MFU, days (estimated) | overrides |',
  '|---|---|---|---|---|---|---|',
)


def read(root: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the entries under `root`.

  Raises:
    UsageError: there is no such file.
  """
  try:
    return json.loads((root / FILE).read_text(encoding='utf-8'))
  except FileNotFoundError as e:
    raise UsageError(
      f'--table: {root} has no {FILE}; run it where configs/ is'
    ) from e


def markdown(entries: list[dict[str, Any]]) -> str:
  """Formats a table with a row for each compiled entry."""
  rows = []
  for entry in entries:
    found = entry.get('found')
    if not found:
      continue
    slices = topologies.parse(entry['topology'], entry['slices'])
    # Escape the character that ends a cell.
    flags = plans.overrides(entry['overrides']).replace('|', '\\|')
    rows.append(
      f'| `{entry["config"]}` | {slices} | {slices.chips:,} '
      f'| {found["peak_gib"]:.2f} of {found["limit_gib"]:.2f} '
      f'| {found["flops_ratio"]:.2f} '
      f'| {found["step_seconds"]:.3g} s, {found["mfu"]:.0%}, '
      f'{found["days"]:.3g} | {f"`{flags}`" if flags else ""} |'
    )
  return '\n'.join([*_HEAD, *rows])


def recompile(root: pathlib.Path, only: str, note: Note) -> list[str]:
  """Compiles all entries, or those with `only` in the name of the config.

  Writes the file, and the table in `PAGE`, after each one.

  Returns:
    What changed by more than `TOLERANCE`, and what no longer compiles.

  Raises:
    UsageError: no entry matches.
  """
  entries, drift = read(root), []
  chosen = [entry for entry in entries if only in entry['config']]
  if not chosen:
    raise UsageError(
      f'--only={only}: no config of {FILE} has that in its name; --table '
      'lists them'
    )
  for number, entry in enumerate(chosen, start=1):
    name = f'{entry["config"]} on {entry["slices"]} x {entry["topology"]}'
    note(f'{number} of {len(chosen)}: {name}')
    try:
      drift += [f'{name}: {text}' for text in _compile(entry, root, note)]
    except (TooLarge, UsageError, jax.errors.JaxRuntimeError) as e:
      drift.append(f'{name}: {e}')
      note(drift[-1])
    # After each one, so that an interruption loses nothing.
    _write(root, entries)
    jax.clear_caches()
  return drift


def load_config(
  root: pathlib.Path, name: str, overrides: dict[str, Any]
) -> Config:
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


def _compile(entry: dict, root: pathlib.Path, note: Note) -> list[str]:
  """Compiles an entry and updates `found`; describes what changed."""
  slices = topologies.parse(entry['topology'], entry['slices'])
  config = load_config(root, entry['config'], entry.get('overrides', {}))
  before = entry.get('found')
  if before:
    plan = plans.make(Request(config, slices), note, last_only=True)
  else:
    plan = _first(config, slices, entry.get('overrides', {}), note)
    entry['overrides'] = {**entry.get('overrides', {}), **plan.changes}
  found = entry['found'] = _found(plan)
  return [
    f'{key} was {before[key]:.4g} and is {found[key]:.4g}'
    for key, tolerance in TOLERANCE.items()
    if before and abs(found[key] / before[key] - 1) > tolerance
  ]


def _first(
  config: Config,
  slices: topologies.Slices,
  given: dict[str, Any],
  note: Note,
) -> Plan:
  """Plans a config with every field open that is not in `given`."""
  remat = 'model.remat' not in given
  micro = 'batch.micro_rows' not in given
  taken = config
  if remat:
    taken = _fastest_remat(config, slices, micro=micro)
  request = Request(taken, slices, mesh=True, micro=micro, remat=remat)
  try:
    plan = plans.make(request, note, last_only=True)
  except TooLarge as e:
    note(str(e))
    found = suggestions.smallest_change(request, e, note).suggestion
    if found is None:
      raise
    plan = found
  changes = {'model.remat': taken.model.remat, **plan.changes}
  return plan._replace(changes=plans.shown(config, changes))


def _fastest_remat(
  config: Config, slices: topologies.Slices, *, micro: bool
) -> Config:
  """Picks the rematerialisation whose layout is estimated to be fastest."""
  sizes, options = Sizes(), []
  for remat in suggestions.REMATS:
    changed = layouts.apply(config, {'model.remat': remat})
    best = layouts.candidates(changed, slices, sizes, micro=micro)[0]
    fits = best.bytes <= layouts.FREE * slices.hbm
    options.append((not fits, best.seconds if fits else best.bytes, changed))
  return min(options, key=lambda option: option[:2])[2]


def _found(plan: Plan) -> dict[str, Any]:
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
    'days': float(f'{plan.whole.days:.4g}'),
  }
