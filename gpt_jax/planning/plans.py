# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans a config on TPU slices: what it needs, and what it costs."""

import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt_jax import config as config_lib
from gpt_jax.config import Config
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning import layouts
from gpt_jax.planning.compile import TooLarge
from gpt_jax.planning.measure import (
  Stage,
  Whole,
  measure,
  on_device,
  whole,
)
from gpt_jax.planning.sizes import Sizes
from gpt_jax.planning.topologies import Slices
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
  """Values for the open fields.

  Raises:
    UsageError: no mesh serves the config.
  """
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
