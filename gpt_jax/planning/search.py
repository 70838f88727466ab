# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans a config on TPU slices: what it needs, and what it costs."""

import math
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import layouts, topologies
from gpt_jax.planning.compile import TooLarge
from gpt_jax.planning.layouts import Sizes
from gpt_jax.planning.measure import (
  Stage,
  Whole,
  measure,
  on_device,
  whole,
)
from gpt_jax.planning.topologies import Slices
from gpt_jax.spec import UsageError
from gpt_jax.training import parts as parts_lib

Note = Callable[[str], None]


class Request(NamedTuple):
  """A config, the slices, and which fields may be changed.

  Attributes:
    config: resolved, with its vocabulary.
    slices: what to compile for.
    mesh: whether the mesh is open, that is, nobody chose it.
    micro: whether `batch.micro_rows` is open.
    remat: whether `model.remat` may change if the config does not fit.
    flags: of libtpu, see `compile.compile_stage`.
  """

  config: Config
  slices: Slices
  mesh: bool = False
  micro: bool = False
  remat: bool = True
  flags: dict[str, str] | None = None


class Plan(NamedTuple):
  """The measurements of a config that fits.

  Attributes:
    config: as compiled.
    slices: it was compiled for.
    changes: to the requested config, by field.
    stages: as compiled, those of the most tokens last.
    whole: of the run.
  """

  config: Config
  slices: Slices
  changes: dict[str, Any]
  stages: list[Stage]
  whole: Whole

  @property
  def peak(self) -> float:
    """Bytes of HBM per chip in the largest stage."""
    return max(stage.hbm.peak for stage in self.stages)

  @property
  def last(self) -> Stage:
    """The stage of the most tokens in a batch."""
    return self.stages[-1]


def make(request: Request, note: Note, *, last_only: bool = False) -> Plan:
  """Compiles and measures a config, choosing its mesh if that is open.

  Args:
    request: what to plan.
    note: called with progress messages.
    last_only: compile the stage of the most tokens alone.

  Raises:
    TooLarge: a stage does not fit the chips.
    UsageError: the config does not fit the devices, or the compiler for TPU
      is not installed.
  """
  changes = open_changes(request)
  return compile_plan(request, changes, note, last_only=last_only)


def open_changes(request: Request, sizes: Sizes | None = None) -> dict:
  """Values for the open fields."""
  if not request.mesh:
    return {}
  found = layouts.candidates(
    request.config, request.slices, sizes or Sizes(), micro=request.micro
  )
  return shown(request.config, found[0].changes)


def shown(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
  """Those of the changes that differ from the config."""
  flat = config_lib.flatten(config)
  same = {'batch.micro_rows': flat['batch.micro_rows'] or 0}
  return {
    field: value
    for field, value in changes.items()
    if same.get(field, flat.get(field)) != value
  }


def compile_plan(
  request: Request, changes: dict[str, Any], note: Note, *, last_only: bool
) -> Plan:
  """Compiles and measures a config with these changes; see `make`."""
  slices = request.slices
  config = layouts.apply(request.config, changes)
  parts = compile_lib.build(config, slices)
  shapes = parts.shapes()
  state = on_device(parts_lib.abstract_state(parts))
  if state > slices.hbm:
    raise TooLarge(shapes[-1], state, slices.hbm)
  shapes = shapes[-1:] if last_only else shapes
  stages = []
  # The largest first: if any does not fit, it is this one.
  for number, shape in enumerate(reversed(shapes), start=1):
    note(
      f'compiling stage {number} of {len(shapes)}: {shape.rows} rows of '
      f'{shape.length}'
    )
    program = compile_lib.compile_stage(parts, slices, shape, request.flags)
    stages.insert(0, measure(program, slices))
  return Plan(config, slices, changes, stages, whole(parts, stages, slices))


def overrides(changes: dict[str, Any]) -> str:
  """Formats changes as flags to paste: `--config.mesh.fsdp=256 ...`."""
  return ' '.join(
    shlex.quote(f'--config.{field}={value}') for field, value in changes.items()
  )


# Suggests the smallest change that makes a config fit.


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


# Searches meshes, rematerialisation and micro-batches; ranks what fits.


def search(
  request: Request,
  note: Note,
  *,
  most: int = 12,
  clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Plan], int]:
  """Compiles the most promising variants and ranks those that fit.

  Args:
    request: what to plan; its open fields are varied.
    note: called with progress messages, including the time left.
    most: maximum number of programs to compile.
    clock: returns seconds.

  Returns:
    The plans, of the last stage only, sorted by estimated time per token; and
    the number of programs that did not fit.
  """
  compile_lib.use_cpu()
  variants = _variants(request)[:most]
  plans, misfits, started = [], 0, clock()
  for number, changes in enumerate(variants):
    left = ''
    if number:
      seconds = (clock() - started) / number * (len(variants) - number)
      left = f', about {max(seconds / 60, 1):.0f} min left'
    note(
      f'trying {number + 1} of {len(variants)}{left}: '
      f'{overrides(changes) or "as configured"}'
    )
    try:
      plans.append(
        compile_plan(request, changes, lambda text: None, last_only=True)
      )
    # Any other compiler error should not lose the remaining results.
    except (TooLarge, jax.errors.JaxRuntimeError) as e:
      misfits += 1
      note(str(e).partition('\n')[0])
  plans.sort(key=lambda plan: plan.last.time / plan.last.tokens)
  return plans, misfits


def _variants(request: Request) -> list[dict[str, Any]]:
  """Variants to try: of those that may fit, the fastest first."""
  sizes, limit = Sizes(), request.slices.hbm
  found = []
  remats = REMATS if request.remat else (request.config.model.remat,)
  for remat in remats:
    config = layouts.apply(request.config, {'model.remat': remat})
    if request.mesh:
      options = layouts.candidates(
        config, request.slices, sizes, micro=request.micro
      )
    else:
      options = [layouts.given(config, request.slices, sizes)]
    for option in options:
      # The estimate of activations may be twice too high.
      if option.bytes > 2 * limit or option.state > limit:
        continue
      changes = {**option.changes, 'model.remat': remat}
      found.append((option.bytes > limit, option.seconds, changes))
      if request.micro and remat == remats[-1]:
        changed = layouts.apply(config, option.changes)
        rows = changed.batch.micro_rows or 0
        choices = layouts.micro_choices(changed, option.sizes)
        below = [n for n in choices if n and (not rows or n < rows)]
        for n in below[:1]:
          # Slightly slower: parameters are gathered more often.
          fewer = {**changes, 'batch.micro_rows': n}
          found.append((False, option.seconds * 1.02, fewer))
  if not found:
    enough = larger(request)
    raise UsageError(
      f'--topology={request.slices.name}: no layout is estimated to fit; take '
      + (enough or 'more chips of another generation')
    )
  found.sort(key=lambda entry: entry[:2])
  unique = {}
  for _, _, changes in found:
    changes = shown(request.config, changes)
    unique.setdefault(str(sorted(changes.items())), changes)
  return list(unique.values())
