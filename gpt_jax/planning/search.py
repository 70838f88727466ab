# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans a config on TPU slices: what it needs, and what it costs."""

import math
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.costs.topologies import Slices
from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import device_check, fitting
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.compiled import TooLarge
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import layouts
from gpt_jax.planning.compile import StageTimes, Whole
from gpt_jax.planning.layouts import CostModel, Layout

Note = Callable[[str], None]


class SearchRequest(NamedTuple):
  """A config, the slices, and which fields may be changed."""

  config: Config  # resolved, with its vocabulary
  slices: Slices  # to compile for
  mesh: bool = False  # whether it may be chosen
  micro: bool = False  # whether `batch.micro_rows` may be chosen
  remat: bool = True  # whether `model.remat` may change if nothing fits
  flags: dict[str, str] | None = None  # of libtpu, see `compile.compile_stage`

  def changed(self, changes: dict[str, Any]) -> Config:
    """The config with some fields changed."""
    return layouts.apply(self.config, changes)

  def candidates(self, remat: str) -> list[Layout]:
    """Layouts with this rematerialisation, the best one first."""
    config = self.changed({'model.remat': remat})
    return layouts.candidates(config, self.slices, micro=self.micro)


class FittingPlan(NamedTuple):
  """The measurements of a config that fits."""

  config: Config  # as compiled
  slices: Slices
  changes: dict[str, Any]  # to the requested config, by field
  stages: list[StageTimes]  # as compiled, in order; the last has the most tokens
  whole: Whole
  # A plan that was compiled as well, and takes longer.
  beaten: 'FittingPlan | None' = None

  @property
  def peak(self) -> float:
    """Bytes of HBM per chip in the largest stage."""
    return max(stage.hbm.peak for stage in self.stages)

  @property
  def last(self) -> StageTimes:
    """The stage of the most tokens in a batch."""
    return self.stages[-1]

  @property
  def pace(self) -> float:
    """Estimated seconds per token, in the last stage."""
    return self.last.time / self.last.tokens


def make(request: SearchRequest, note: Note, *, last_only: bool = False) -> FittingPlan:
  """Compiles and measures a config, choosing its mesh if that is open.

  With `last_only` only the stage of the most tokens is compiled.

  Raises:
    TooLarge: a stage does not fit the chips.
  """
  changes = open_changes(request)
  config, slices = request.changed(changes), request.slices
  if not request.micro or device_check.groups_span_rows(config):
    return compile_plan(request, changes, note, last_only=last_only)

  def attempt(micro_rows: int) -> FittingPlan:
    taken = shown(request.config, {'batch.micro_rows': micro_rows})
    taken = {**changes, **taken}
    return compile_plan(request, taken, note, last_only=last_only)

  return fitting.halving(
    CostModel(config, slices),
    layouts.mesh_of(config, slices),
    config.batch.micro_rows or 0,
    attempt,
  )


def open_changes(request: SearchRequest) -> dict[str, Any]:
  """Values for the open fields, by the cost model."""
  config = request.config
  if request.mesh:
    best = request.candidates(config.model.remat)[0]
    return shown(config, best.changes)
  if not request.micro or config.batch.micro_rows is not None:
    return {}
  micro_rows = layouts.given(config, request.slices, micro=True).changes
  return shown(config, micro_rows)


def shown(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
  """Drops changes to the value that the config has already."""
  flat = config_lib.flatten(config)
  same = {'batch.micro_rows': flat['batch.micro_rows'] or 0}
  return {
    field: value for field, value in changes.items() if same.get(field, flat.get(field)) != value
  }


def compile_plan(
  request: SearchRequest, changes: dict[str, Any], note: Note, *, last_only: bool
) -> FittingPlan:
  """Compiles and measures a config with these changes; see `make`."""
  slices = request.slices
  config = request.changed(changes)
  parts = compile_lib.build(config, slices)
  shapes = parts.shapes()
  state = parts_lib.on_device(parts_lib.abstract_state(parts))
  if state > slices.hbm:
    raise TooLarge(shapes[-1], state, slices.hbm)
  shapes = shapes[-1:] if last_only else shapes
  stages = []
  # The largest first: if any does not fit, it is this one.
  for number, shape in enumerate(reversed(shapes), start=1):
    note(
      f'compiling stage {number} of {len(shapes)}: {shape.rows} rows of '
      f'{shape.length} ({compile_lib.so_far()})'
    )
    program = compile_lib.compile_stage(parts, slices, shape, request.flags)
    stages.insert(0, compile_lib.measure(program, slices))
  whole = compile_lib.whole(parts, stages, slices)
  return FittingPlan(config, slices, changes, stages, whole)


def overrides(changes: dict[str, Any]) -> str:
  """Formats changes as flags to paste: `--config.mesh.fsdp=256 ...`."""
  return ' '.join(shlex.quote(f'--config.{field}={value}') for field, value in changes.items())


# What experts cost beside a dense model.


def without_experts(config: Config) -> dict[str, Any]:
  """Changes to a dense model with the FLOPs a token of the chosen experts.

  A token's experts become one layer of their width together; the devices that
  held them split the weights. Empty if there are no experts, or if only some
  layers have several for a token: all layers have one width.
  """
  calls = spec.bind_all('model.ffn', config.model.ffn, CHOICES['ffn'])
  experts = [call for call in calls if 'num_experts' in call.kwargs]
  if not experts:
    return {}
  (top_k, *others) = {call.kwargs['top_k'] for call in experts}
  if others or (top_k > 1 and len(experts) < len(calls)):
    return {}
  names = [call.kwargs.get('expert', call.name) for call in calls]
  mesh = config.mesh
  return {
    'model.ffn': ', '.join(names),
    'model.d_ff': top_k * config.model.d_ff,
    'mesh.fsdp': mesh.fsdp * mesh.expert,
    'mesh.expert': 1,
  }


def dense(plan: FittingPlan, note: Note) -> 'FittingPlan | None':
  """Compiles the last stage of a plan's `without_experts`; None: there is none."""
  changes = without_experts(plan.config)
  if not changes:
    return None
  note('compiling the dense model of as many FLOPs a token')
  try:
    return compile_plan(SearchRequest(plan.config, plan.slices), changes, note, last_only=True)
  except TooLarge:
    return None


# The smallest change that makes a config fit, and a faster one.


# From the fastest to the one that keeps the least memory.
REMATS = ('none', 'dots', 'full')
# What the cost model must promise to be worth a compilation.
LEAST_GAIN = 0.03


class Misfit(NamedTuple):
  """A config that does not fit, and the smallest change that helps."""

  config: Config  # as compiled
  slices: Slices
  changes: dict[str, Any]  # to the requested config: its mesh, if that was open
  rows: int  # of the stage that does not fit
  row_tokens: int
  needed: float  # bytes per chip
  limit: float  # bytes that the compiler allows
  suggestion: FittingPlan | None  # that fits; None if nothing that was tried does
  tried: int  # number of changes compiled
  kept: tuple[str, ...]  # fields that were given, so not changed
  # Without a suggestion: the next larger slice that is estimated to suffice.
  larger: str | None


def smallest_change(
  request: SearchRequest, error: TooLarge, note: Note, *, most: int = 6
) -> Misfit:
  """Looks for the smallest change that makes a config fit.

  First rematerialisation that keeps less, then fewer rows at a time, then other
  meshes, then the optimizer's state in the memory of the hosts. At most `most`
  changes are compiled, and none that the cost model rules out.
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
      suggestion = compile_plan(request, {**taken, **changes}, note, last_only=True)
      break
    # A UsageError: the change is not valid for this config.
    except (TooLarge, UsageError):
      continue
  kept = {'mesh': request.mesh, 'batch.micro_rows': request.micro, 'model.remat': request.remat}
  return Misfit(
    request.changed(taken),
    slices,
    taken,
    error.shape.rows,
    error.shape.length,
    per_chip * error.needed,
    per_chip * (error.limit or slices.hbm),
    suggestion,
    tried,
    tuple(field for field, is_open in kept.items() if not is_open),
    None if suggestion else larger(request),
  )


def _easier(request: SearchRequest, taken: dict) -> Iterator[dict[str, Any]]:
  """Changes of a config, smaller ones first, that are estimated to fit."""
  config, slices = request.changed(taken), request.slices
  mesh = layouts.mesh_of(config, slices)

  def may_fit(changes: dict[str, Any]) -> bool:
    return CostModel(layouts.apply(config, changes), slices).may_fit(mesh)

  remats = [config.model.remat]
  if request.remat and config.model.remat in REMATS:
    remats += REMATS[REMATS.index(config.model.remat) + 1 :]
  last = {'model.remat': remats[-1]}
  rows = CostModel(config, slices).fewer_rows(mesh) if request.micro else []
  changes = [{'model.remat': remat} for remat in remats[1:]]
  changes += [{**last, 'batch.micro_rows': number} for number in rows]
  yield from (shown(config, x) for x in changes if may_fit(x))
  if request.mesh:
    for layout in request.candidates(remats[-1])[:3]:
      if layout.sizes != mesh and layout.bytes <= slices.hbm:
        yield shown(config, {**layout.changes, **last})
  # Last, since the speed of transfers to and from the host is unknown.
  if config.optim.state == 'device':
    fewest = rows[-1] if rows else config.batch.micro_rows or 0
    least = {**last, 'batch.micro_rows': fewest, 'optim.state': 'host'}
    try:
      fits = may_fit(least)
    except UsageError:  # not every objective can keep its state there
      return
    if fits:
      yield shown(config, least)


def better(
  request: SearchRequest, found: FittingPlan | Misfit, note: Note, *, last_only: bool = False
) -> FittingPlan | Misfit:
  """Also compiles what the cost model expects to be faster, if anything.

  `make` compiles with the config's own rematerialisation, `smallest_change`
  with the smallest change that fits. Another one, with its own mesh and
  micro-batches, may be faster.

  Returns:
    `found`, or with the faster plan in place of its own.
  """
  plan = found if isinstance(found, FittingPlan) else found.suggestion
  if plan is None or not request.remat or not request.mesh:
    return found
  remat, best = _best_remat(request)
  gain = layouts.given(plan.config, request.slices).seconds / best.seconds - 1
  # With the config's own, its best layout was compiled.
  if remat == request.config.model.remat or not best.fits or gain < LEAST_GAIN:
    return found
  named = overrides(shown(request.config, {**best.changes, 'model.remat': remat}))
  note(f'the cost model expects {gain:.0%} more speed of {named}')
  try:
    other = _with_remat(request, remat, note, last_only=last_only)
  # It must not lose the plan that there is.
  except (TooLarge, UsageError, jax.errors.JaxRuntimeError) as e:
    why = str(e).partition('\n')[0]
    log.info('not taken: %s, expected to be faster: %s', named, why)
    return found
  if other.pace >= plan.pace:
    log.info(
      'not taken: %s, expected to be %.0f%% faster: compiled, it is estimated '
      'to take %.0f%% longer',
      named,
      100 * gain,
      100 * (other.pace / plan.pace - 1),
    )
    return found
  other = other._replace(beaten=plan)
  return other if isinstance(found, FittingPlan) else found._replace(suggestion=other)


def _with_remat(request: SearchRequest, remat: str, note: Note, *, last_only: bool) -> FittingPlan:
  """The plan with a rematerialisation, and its best mesh and micro-batches."""
  config = request.changed({'model.remat': remat})
  plan = make(request._replace(config=config), note, last_only=last_only)
  return plan._replace(changes={'model.remat': remat, **plan.changes})


def _best_remat(request: SearchRequest) -> tuple[str, Layout]:
  """The rematerialisation with the fastest layout that is estimated to fit.

  If none fits, the one that needs the least memory.
  """
  best = [(remat, request.candidates(remat)[0]) for remat in REMATS]
  return min(best, key=lambda found: layouts.rank(found[1]))


def first_plan(config: Config, slices: Slices, given: Collection[str], note: Note) -> FittingPlan:
  """Plans the last stage of a config, choosing every field not in `given`.

  The plan's changes state the rematerialisation in any case, so that it stays
  if the config's default changes.
  """
  request = SearchRequest(
    config,
    slices,
    mesh=True,
    micro='batch.micro_rows' not in given,
    remat='model.remat' not in given,
  )
  if request.remat:
    config = request.changed({'model.remat': _best_remat(request)[0]})
    request = request._replace(config=config)
  try:
    plan = make(request, note, last_only=True)
  except TooLarge as e:
    note(str(e))
    plan = smallest_change(request, e, note).suggestion
    if plan is None:
      raise
  return plan._replace(changes={'model.remat': config.model.remat, **plan.changes})


def larger(request: SearchRequest) -> str | None:
  """The smallest larger slice whose best layout is estimated to fit, if any."""
  here = math.prod(request.slices.shape)
  remat = REMATS[-1] if request.remat else request.config.model.remat
  known = {here}
  for shape in request.slices.sold.shapes:
    chips = math.prod(shape)
    if chips < here or chips in known:
      continue
    known.add(chips)
    slices = request.slices._replace(shape=shape)
    try:
      best = request._replace(slices=slices).candidates(remat)[0]
    except UsageError:  # its sizes do not divide over this many chips
      continue
    if best.fits:
      return slices.name
  return None


# Searches meshes, rematerialisation and micro-batches; ranks what fits.


class Found(NamedTuple):
  """What a search found."""

  plans: list[FittingPlan]  # of the last stage only, sorted by time per token
  misfits: int  # programs that did not fit
  why: str  # if there are no plans


def search(
  request: SearchRequest, note: Note, *, most: int = 12, clock: Callable[[], float] = time.monotonic
) -> Found:
  """Compiles the most promising variants and ranks those that fit.

  Varies the open fields of the request; compiles at most `most` programs, whose
  progress goes to `note`.
  """
  compile_lib.use_cpu()
  variants = _variants(request)[:most]
  plans, misfits, started = [], 0, clock()
  for number, changes in enumerate(variants):
    left = f' ({compile_lib.so_far()})'
    if number:
      seconds = (clock() - started) / number * (len(variants) - number)
      left = f', about {max(seconds / 60, 1):.0f} min left'
    note(f'trying {number + 1} of {len(variants)}{left}: {overrides(changes) or "as configured"}')
    try:
      plans.append(compile_plan(request, changes, lambda text: None, last_only=True))
    # Any other compiler error should not lose the remaining results.
    except (TooLarge, jax.errors.JaxRuntimeError) as e:
      misfits += 1
      note(str(e).partition('\n')[0])
  if not plans:
    tried = f'none of the {misfits} tried fits' if misfits else 'no layout is estimated to fit'
    return Found([], misfits, f'{tried}; take {larger(request) or "more chips"}')
  return Found(sorted(plans, key=lambda plan: plan.pace), misfits, '')


def _variants(request: SearchRequest) -> list[dict[str, Any]]:
  """Variants to try: of those that may fit, the fastest first; [] if none may."""
  slices, limit = request.slices, request.slices.hbm
  found = []
  remats = REMATS if request.remat else (request.config.model.remat,)
  for remat in remats:
    if request.mesh:
      options = request.candidates(remat)
    else:
      options = [layouts.given(request.changed({'model.remat': remat}), slices)]
    for option in options:
      # The estimate may be too high, for small programs most.
      if option.bytes > 2 * limit or option.state > limit:
        continue
      changes = {**option.changes, 'model.remat': remat}
      found.append((option.bytes > limit, option.seconds, changes))
      if request.micro and remat == remats[-1]:
        costs = CostModel(request.changed(changes), slices)
        for number in costs.fewer_rows(option.sizes)[:1]:
          # Slightly slower: parameters are gathered more often.
          fewer = {**changes, 'batch.micro_rows': number}
          found.append((False, option.seconds * 1.02, fewer))
  found.sort(key=lambda entry: entry[:2])
  unique = {}
  for _, _, changes in found:
    changes = shown(request.config, changes)
    unique.setdefault(str(sorted(changes.items())), changes)
  return list(unique.values())
