# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Suggests the smallest change that makes a config fit."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.planning import layouts, topologies
from gpt_jax.planning.compile import TooLarge
from gpt_jax.planning.plans import (
  Note,
  Plan,
  Request,
  compile_plan,
  open_changes,
  overrides,
  shown,
)
from gpt_jax.planning.sizes import Sizes
from gpt_jax.planning.topologies import Slices
from gpt_jax.spec import UsageError

# From the fastest to the one that keeps the least memory.
REMATS = ('none', 'dots', 'full')
# What a search must promise to be worth a line.
LEAST_GAIN = 0.03


class Misfit(NamedTuple):
  """A config that does not fit, and the smallest change that helps.

  Attributes:
    config: as compiled.
    slices: it was compiled for.
    changes: to the requested config: its mesh, if that was open.
    rows: of the stage that does not fit.
    row_tokens: in each.
    needed: bytes per chip.
    limit: bytes that the compiler allows.
    suggestion: a plan that fits; None if none of those tried does.
    tried: how many changes were compiled.
    kept: fields that were given, so that no change to them was tried.
    larger: if there is no suggestion, the next larger slice that is estimated
      to be enough.
  """

  config: Config
  slices: Slices
  changes: dict[str, Any]
  rows: int
  row_tokens: int
  needed: float
  limit: float
  suggestion: Plan | None
  tried: int
  kept: tuple[str, ...]
  larger: str | None


def smallest_change(
  request: Request, error: TooLarge, note: Note, *, most: int = 6
) -> Misfit:
  """Looks for the smallest change that makes a config fit.

  First rematerialisation that keeps less, then fewer rows at a time, then other
  meshes, then the optimizer's state in the memory of the hosts. What the cost
  model rules out is not compiled.

  Args:
    request: that does not fit.
    error: raised when it was compiled.
    note: called with progress messages.
    most: maximum number of changes to compile.
  """
  slices, per_chip = request.slices, request.slices.chip.devices
  taken = open_changes(request)
  tried, suggestion = 0, None
  for changes in _easier(request, taken):
    if tried == most:
      break
    tried += 1
    note(f'needs too much; trying {overrides(changes)}')
    try:
      # Only the largest stage: smaller ones need no more.
      suggestion = compile_plan(
        request, {**taken, **changes}, note, last_only=True
      )
      break
    # Or the config cannot have the change.
    except (TooLarge, UsageError):
      continue
  return Misfit(
    layouts.apply(request.config, taken),
    slices,
    taken,
    *(error.shape.rows, error.shape.length),
    per_chip * error.needed,
    per_chip * error.limit,
    suggestion,
    tried,
    _kept(request),
    None if suggestion else larger(request),
  )


def faster(request: Request, found: Plan | Misfit) -> str | None:
  """Tells what a search may gain, by the cost model; None if little.

  `plan` compiles the config's own rematerialisation, or what fits with the
  smallest change; another that keeps more or less, with a mesh and
  micro-batches of its own, may be faster.
  """
  plan = found if isinstance(found, Plan) else found.suggestion
  if plan is None or not request.remat or not request.mesh:
    return None
  sizes, options = Sizes(), []
  taken = layouts.given(plan.config, request.slices, sizes)
  for remat in REMATS:
    config = layouts.apply(request.config, {'model.remat': remat})
    best = layouts.candidates(
      config, request.slices, sizes, micro=request.micro
    )[0]
    if best.bytes <= layouts.FREE * request.slices.hbm:
      options.append((best.seconds, {**best.changes, 'model.remat': remat}))
  if not options:
    return None
  seconds, changes = min(options, key=lambda option: option[0])
  gain = taken.seconds / seconds - 1
  if gain < LEAST_GAIN:
    return None
  return (
    f'--search may find a plan that is {gain:.0%} faster, by the cost model: '
    + overrides(shown(request.config, changes))
  )


def _kept(request: Request) -> tuple[str, ...]:
  """Fields that may not be changed."""
  fields = {
    'mesh': request.mesh,
    'batch.micro_rows': request.micro,
    'model.remat': request.remat,
  }
  return tuple(field for field, is_open in fields.items() if not is_open)


def larger(request: Request) -> str | None:
  """The smallest larger slice whose best layout is estimated to fit, if any."""
  chip, sizes = request.slices.chip, Sizes()
  here = math.prod(request.slices.shape)
  remat = REMATS[-1] if request.remat else request.config.model.remat
  config = layouts.apply(request.config, {'model.remat': remat})
  known = {here}
  for shape in topologies.sold(chip):
    chips = math.prod(shape)
    if chips < here or chips in known:
      continue
    known.add(chips)
    slices = request.slices._replace(shape=shape)
    try:
      best = layouts.candidates(config, slices, sizes, micro=request.micro)[0]
    except UsageError:  # its sizes do not divide over this many
      continue
    if best.bytes <= layouts.FREE * slices.hbm:
      return slices.name
  return None


def _easier(request: Request, taken: dict) -> Iterator[dict[str, Any]]:
  """Changes of a config, smaller ones first, that are estimated to fit."""
  config = layouts.apply(request.config, taken)
  mesh = layouts.mesh_of(config, request.slices)
  remats = [config.model.remat]
  if request.remat and config.model.remat in REMATS:
    remats += REMATS[REMATS.index(config.model.remat) + 1 :]
  given = config.batch.micro_rows or 0
  rows = [given]
  if request.micro:
    choices = layouts.micro_choices(config, mesh)
    rows += [n for n in choices if n and (not given or n < given)]
  limit = request.slices.hbm
  state = Sizes().split(config, sharding.parse_rules(config.mesh.rules))
  fixed = state.state(mesh).total
  for changes in [{'model.remat': remat} for remat in remats[1:]] + [
    {'model.remat': remats[-1], 'batch.micro_rows': number}
    for number in rows[1:]
  ]:
    changed = layouts.apply(config, changes)
    # The estimate may be twice too high.
    if fixed + layouts.activations(changed, mesh) / 2 <= limit:
      yield shown(config, changes)
  if request.mesh:
    changed = layouts.apply(request.config, {'model.remat': remats[-1]})
    for layout in layouts.candidates(
      changed, request.slices, Sizes(), micro=request.micro
    )[:3]:
      if layout.sizes != mesh and layout.bytes <= limit:
        yield shown(config, {**layout.changes, 'model.remat': remats[-1]})
  # Last, since nothing tells how fast a host gives and takes.
  if config.optim.state == 'device':
    least = {'model.remat': remats[-1], 'batch.micro_rows': rows[-1]}
    least['optim.state'] = 'host'
    changed = layouts.apply(config, least)
    state = Sizes().split(changed, sharding.parse_rules(config.mesh.rules))
    fixed = state.state(mesh).total
    if fixed + layouts.activations(changed, mesh) / 2 <= limit:
      yield shown(config, least)
