# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads memory, FLOPs, traffic and time off a compiled step."""

import math
from typing import Any, NamedTuple

import jax

from gpt_jax.costs import flops
from gpt_jax.nn.pattern import is_causal, period, sharing
from gpt_jax.optim.schedules import Shape
from gpt_jax.planning import collectives, hlo, op_costs, schedule
from gpt_jax.planning.compile import Program
from gpt_jax.planning.schedule import Rates
from gpt_jax.planning.topologies import Slices
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.parts import Parts


class Hbm(NamedTuple):
  """Bytes on one chip at the peak.

  Attributes:
    peak: reported by the compiler; the sum of the fields after `limit`.
    limit: what the compiler allows.
    parameters: of the state.
    optimizer: its state, plus the parameter average if there is one.
    activations: kept for the backward pass, over all layers (None if the
      layers are not scanned: then they are among the temporaries).
    temporaries: the rest: gradients, gathered weights, arrays of one layer.
    host: what is kept in the host's memory instead, not part of the peak.
  """

  peak: float
  limit: float
  parameters: float
  optimizer: float
  activations: float | None
  temporaries: float
  host: float


class Flops(NamedTuple):
  """FLOPs of one step, over all devices.

  Attributes:
    model: PaLM's formula (appendix B), see `flops.FORMULA`.
    compiled: matrix products and kernels of the program, with trip counts.
    kernels: of Pallas kernels, by name.
    not_counted: unknown kernels, and loops with data-dependent trip counts.
  """

  model: float
  compiled: float
  kernels: dict[str, float]
  not_counted: tuple[str, ...]

  @property
  def ratio(self) -> float:
    """Compiled over model FLOPs: hardware over model FLOPs utilisation."""
    return self.compiled / self.model


class Stage(NamedTuple):
  """One compiled step.

  Attributes:
    start: its first step, from 0.
    rows: of its batch.
    row_tokens: in each.
    micro_batches: number of micro-batches in a batch.
    tokens: of its batch.
    compile_seconds: on this machine.
    hbm: of one chip.
    flops: of one step.
    traffic: bytes sent by one chip per step, by mesh axes and kind.
    scattered: parameters whose gradients are reduce-scattered.
    reduced: parameters whose gradients are all-reduced.
    wide_gathers: bytes sent by one chip in all-gathers of float32.
    time: estimated seconds per step.
    spent: what they are made of, see `estimate.Estimate`.
    bound: what most of them are spent on.
    mfu: estimated model FLOPs utilisation.
  """

  start: int
  rows: int
  row_tokens: int
  micro_batches: int
  tokens: int
  compile_seconds: float
  hbm: Hbm
  flops: Flops
  traffic: dict[str, dict[str, float]]
  scattered: tuple[str, ...]
  reduced: tuple[str, ...]
  wide_gathers: float
  time: float
  spent: dict[str, float]
  bound: str
  mfu: float

  @property
  def tokens_per_second(self) -> float:
    """Estimated, over all chips."""
    return self.tokens / self.time


class Whole(NamedTuple):
  """Estimates for the whole run."""

  tokens: int
  steps: int
  days: float
  chip_hours: float
  mfu: float


def measure(program: Program, slices: Slices) -> Stage:
  """Measures one compiled step."""
  parts, shape = program.parts, program.shape
  config, mesh = parts.config, parts.mesh
  text = hlo.parse(program.compiled.call.as_text())
  executed = op_costs.count(text)
  sent = collectives.read(text, mesh)
  state = parts_lib.abstract_state(parts)
  paths = list(flops.parameter_table(state.params))
  found = collectives.gradients(sent, paths)
  # A parameter may be reduced in parts: count it by the costliest, all-reduce.
  reduced = {x.parameter for x in found if x.kind == 'all-reduce'}
  scattered = {x.parameter for x in found} - reduced
  causal = is_causal(config.model.attention, config.model.ffn)
  events = schedule.read(text, sent, mesh, slices, causal=causal)
  time = schedule.step_time(events, rates(slices))
  per_token = flops.per_token(config, state.params, shape.length)
  model = per_token * shape.tokens
  stage = next(s for s in parts.ramp.stages if s.shape == shape)
  per_chip = slices.chip.devices
  return Stage(
    start=stage.start,
    rows=shape.rows,
    row_tokens=shape.length,
    micro_batches=parts.micro_batches(shape).num_micro,
    tokens=shape.tokens,
    compile_seconds=program.compiled.seconds,
    hbm=_hbm(program, text, state, per_chip),
    flops=Flops(
      model,
      executed.total * mesh.size,
      {k: v * mesh.size for k, v in executed.kernels.items()},
      (*executed.unknown, *executed.unknown_loops),
    ),
    traffic={
      axes: {kind: per_chip * size for kind, size in kinds.items()}
      for axes, kinds in collectives.totals(sent).items()
    },
    scattered=tuple(sorted(scattered)),
    reduced=tuple(sorted(reduced)),
    wide_gathers=per_chip
    * sum(x.bytes for x in collectives.float32_gathers(sent)),
    time=time.step,
    spent={k: v for k, v in time._asdict().items() if k != 'step'},
    bound=time.bound,
    mfu=model / time.step / (mesh.size * slices.peak),
  )


def whole(parts: Parts, stages: list[Stage], slices: Slices) -> Whole:
  """Days and chip-hours of the run, from the step time of each stage."""
  last = parts.config.schedule.num_steps
  by_shape = {Shape(stage.rows, stage.row_tokens): stage for stage in stages}
  starts = parts.ramp.between(0, last)
  ends = [s.start for s in starts[1:]] + [last]
  seconds = work = 0.0
  for stage, end in zip(starts, ends, strict=True):
    # Assume that a stage that was not compiled is as fast per token as the
    # largest one.
    known = by_shape.get(stage.shape) or max(stages, key=lambda s: s.tokens)
    steps, share = end - stage.start, stage.shape.tokens / known.tokens
    seconds += steps * known.time * share
    work += steps * known.flops.model * share
  return Whole(
    tokens=parts.ramp.tokens(last),
    steps=last,
    days=seconds / 86_400,
    chip_hours=seconds / 3600 * slices.chips,
    mfu=work / seconds / (slices.chips * slices.chip.peak),
  )


def rates(slices: Slices) -> Rates:
  """Rates of one device of the slices."""
  chip = slices.chip
  each = (x / chip.devices for x in (chip.vector, chip.hbm_bandwidth, chip.dcn))
  vector, memory, dcn = each
  return Rates(slices.peak, vector, memory, chip.link, dcn)


def _hbm(program: Program, text: hlo.Program, state: Any, per_chip: int) -> Hbm:
  params = per_chip * on_device(state.params)
  optimizer = per_chip * on_device((state.opt_state, state.ema))
  memory = program.memory
  peak = per_chip * memory.peak
  kept = _activations(program, text, state)
  kept = None if kept is None else per_chip * kept
  return Hbm(
    peak,
    per_chip * memory.limit,
    params,
    optimizer,
    kept,
    peak - params - optimizer - (kept or 0),
    per_chip * (memory.host_arguments + memory.host_temporaries),
  )


def on_device(tree: Any) -> float:
  """Bytes in each device's memory of abstract arrays with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
    if x.sharding.memory_kind != 'pinned_host'
  )


def _activations(
  program: Program, text: hlo.Program, state: Any
) -> float | None:
  """Bytes that the scan over layers saves for the backward pass.

  These are the loop-carried arrays whose first dimension is the number of
  periods, and whose shape is not that of a parameter or its gradient, sharded
  or gathered.
  """
  parts = program.parts
  model = parts.config.model
  layers = period(model.attention, model.ffn, model.share)
  number = model.num_layers // len(layers)
  groups = sharing(model.share).groups
  leads = ((number,), (groups, number // groups))
  if model.loop != 'scan' or number < 2:
    return None
  weights = set()
  for x in jax.tree.leaves(state.params):
    shard = x.sharding.shard_shape(x.shape)
    # Any dimension may have been gathered.
    for dims in (x.shape, shard, *_mixed(x.shape, shard)):
      weights.add(tuple(sorted(dims)))
  most = 0.0
  for computation in text.computations.values():
    for x in computation.instructions.values():
      if x.opcode != 'while':
        continue
      carried = sum(
        shape.bytes
        for shape in x.shapes
        if any(shape.dims[: len(x)] == x for x in leads)
        and len(shape.dims) > 2
        and tuple(sorted(shape.dims)) not in weights
      )
      most = max(most, carried)
  # All that is offloaded is among them.
  return most - program.memory.host_temporaries


def _mixed(whole: tuple, shard: tuple) -> list[tuple]:
  """Variants of `shard` with one dimension gathered."""
  return [(*shard[:i], whole[i], *shard[i + 1 :]) for i in range(len(whole))]
