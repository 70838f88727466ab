# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step for TPU slices, with libtpu, and measures it.

No TPU is needed. The step, its state and its stages are those of `train`; only
the devices differ: they hold no arrays, and nothing is run.
"""

import importlib.util
import os
import re
import time
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies as jax_topologies

from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.costs import flops
from gpt_jax.core.costs.topologies import Slices
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.runtime import libtpu, tpu_flags
from gpt_jax.core.spec import UsageError, install
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import device_check
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.compiled import Compiled
from gpt_jax.core.training.parts import Parts
from gpt_jax.planning import collectives, hlo, ledger, op_costs, schedule

_SETTINGS = {
  **libtpu.SETTINGS,
  # Let several processes compile at once.
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


# How long each compilation of this process took.
seconds: list[float] = []


class CompiledStage(NamedTuple):
  """The compiled training step of one stage of the batch ramp."""

  parts: Parts
  shape: Shape  # of its batch
  compiled: Compiled  # `.call.as_text()` is the HLO of one device
  peak: float  # bytes on one device
  # Bytes in the host's memory: optimizer state, and arrays that are kept for
  # the backward pass.
  host_arguments: float
  host_temporaries: float


def use_cpu() -> None:
  """Keeps JAX off this machine's accelerators; call before using JAX."""
  if importlib.util.find_spec('libtpu') is None:
    raise UsageError(
      'planning needs libtpu, the compiler for TPU, which runs on a CPU too: ' + install('plan')
    )
  # libtpu reads these once, when it is loaded.
  os.environ.update(_SETTINGS)
  jax.config.update('jax_platforms', 'cpu')


def build(config: Config, slices: Slices) -> Parts:
  """Builds the run of a resolved config on the devices of the slices."""
  use_cpu()
  topology = jax_topologies.get_topology_desc(
    platform='tpu',
    topology_name=slices.name,
    chip_config_name=slices.chip.config_name,
    chips_per_host_bounds=slices.host,
    num_slices=slices.number,
    # Without it the compiler assumes a mesh network without wraparound.
    wrap=slices.wrap,
  )
  assert len(topology.devices) == slices.devices, slices
  mesh = device_check.check_devices(config, topology.devices)
  return parts_lib.build(config, mesh)


def parse_flags(text: str) -> dict[str, str]:
  """Reads flags of libtpu as LIBTPU_INIT_ARGS has them."""
  flags = {}
  for word in text.split():
    name, equals, value = word.removeprefix('--').partition('=')
    if not equals or not name:
      raise UsageError(
        f'--flags: {word}: give --NAME=VALUE, as in --xla_enable_async_all_gather=true'
      )
    flags[name] = value
  return flags


def compile_stage(
  parts: Parts, slices: Slices, shape: Shape, flags: dict[str, str] | None = None
) -> CompiledStage:
  """Compiles the step of a batch of `shape`, as `train` does.

  `flags` are libtpu's; by default those that `launch/` sets for the generation.

  Raises:
    TooLarge: it does not fit the chips.
  """
  start = time.monotonic()
  if flags is None:
    flags = tpu_flags.FLAGS[slices.chip.name]
  try:
    compiled = compiled_lib.compile_train_step(parts, shape, flags, limit=slices.hbm)
  except jax.errors.JaxRuntimeError as e:
    if unknown := re.search(r"No such compile option: '(\w+)'", str(e)):
      raise UsageError(f'--flags: libtpu has no flag {unknown[1]}; leave it out') from e
    raise
  finally:
    seconds.append(time.monotonic() - start)
  found = compiled.call.memory_analysis()
  return CompiledStage(
    parts,
    shape,
    compiled,
    compiled_lib.peak(compiled.call, 'tpu'),
    found.host_argument_size_in_bytes,
    found.host_temp_size_in_bytes,
  )


# Memory, FLOPs, traffic and time of a compiled step.


class Hbm(NamedTuple):
  """Bytes on one chip at the peak."""

  peak: float  # reported by the compiler; the sum of the fields after `limit`
  limit: float  # what the compiler allows
  parameters: float
  optimizer: float  # its state, plus the parameter average if there is one
  # Kept for the backward pass, over all layers; None if the layers are not
  # scanned: then they are among the temporaries.
  activations: float | None
  temporaries: float  # the rest: gradients, gathered weights, one layer's arrays
  host: float  # in the host's memory instead, not part of the peak


class StepFlops(NamedTuple):
  """FLOPs of one step, over all devices."""

  model: float  # PaLM's formula (appendix B), see `flops.FORMULA`
  # The same with the keys that the tokens see, see `flops.FORMULA_CAUSAL`.
  causal: float
  compiled: float  # matrix products and kernels, with trip counts
  kernels: dict[str, float]  # of Pallas kernels, by name
  not_counted: tuple[str, ...]  # unknown kernels, loops of unknown trip counts

  @property
  def ratio(self) -> float:
    """Compiled over model FLOPs: hardware over model FLOPs utilisation."""
    return self.compiled / self.model


class StageTimes(NamedTuple):
  """One compiled step."""

  start: int  # its first step, from 0
  rows: int  # in a batch
  row_tokens: int
  micro_batches: int  # in a batch
  tokens: int  # in a batch
  compile_seconds: float  # on this machine
  hbm: Hbm  # of one chip
  flops: StepFlops
  traffic: dict[str, dict[str, float]]  # bytes a chip sends, by axes and kind
  # Bytes a chip sends over `data` in an outer step, and in each step besides.
  outer: tuple[float, float]
  scattered: tuple[str, ...]  # parameters with reduce-scattered gradients
  reduced: tuple[str, ...]  # parameters with all-reduced gradients
  wide_gathers: float  # bytes a chip sends in all-gathers of float32
  time: float  # estimated seconds
  spent: dict[str, float]  # the terms of `time`, see `schedule.StepEstimate`
  bound: str  # what most of the time is spent on
  mfu: float  # estimated model FLOPs utilisation
  mfu_causal: float  # the same by `StepFlops.causal`
  kind: str  # which published runs it is like: see `ledger.kind_of`
  accuracy: ledger.Band  # of the estimate
  attention: tuple[str, ...]  # what computes it in each kind of layer
  events: tuple[schedule.Event, ...]  # that the estimate replays, the longest

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
  mfu_causal: float


def measure(program: CompiledStage, slices: Slices) -> StageTimes:
  """Measures one compiled step."""
  parts, shape = program.parts, program.shape
  config, mesh = parts.config, parts.mesh
  text = hlo.parse(program.compiled.call.as_text())
  executed = op_costs.count(text)
  sent = collectives.read(text, mesh)
  state = parts_lib.abstract_state(parts)
  micro = parts.micro_batches(shape)
  with sharding.use(mesh, parts.rules):
    rows = micro.filled(shape.rows) // micro.num_micro
    kernels = device_check.attention(config, rows, shape.length)
  over = [x for x in sent if sharding.REPLICAS in x.axes]
  rare = sum(x.bytes / x.trips for x in over if x.trips < 1)
  always = sum(x.bytes for x in over if x.trips >= 1)
  paths = list(flops.parameter_table(state.params))
  found = collectives.gradients(sent, paths)
  # A parameter may be reduced in parts: count it by the costliest, all-reduce.
  reduced = {name for name, x in found if x.kind == 'all-reduce'}
  scattered = {name for name, _ in found} - reduced
  causal = ModelChoices.of(config.model).causal
  events = schedule.read(text, sent, mesh, slices, causal=causal)
  time = schedule.step_time(events, schedule.rates(slices))
  per_token = flops.per_token(config, state.params, shape.length)
  model = per_token * shape.tokens
  kind = ledger.kind_of(config, slices, sum(x.size for x in jax.tree.leaves(state.params)))
  seen = flops.per_token_causal(config, state.params, shape.length)
  whole_peak = mesh.size * slices.peak
  stage = next(s for s in parts.ramp.stages if s.shape == shape)
  per_chip = slices.chip.devices
  peak = per_chip * program.peak
  params = per_chip * parts_lib.on_device(state.params)
  optimizer = per_chip * parts_lib.on_device((state.opt_state, state.ema))
  activations = _activations(program, text, state)
  if activations is not None:
    activations *= per_chip
  return StageTimes(
    start=stage.start,
    rows=shape.rows,
    row_tokens=shape.length,
    micro_batches=micro.num_micro,
    tokens=shape.tokens,
    compile_seconds=program.compiled.seconds,
    hbm=Hbm(
      peak,
      per_chip * slices.hbm,
      params,
      optimizer,
      activations,
      peak - params - optimizer - (activations or 0),
      per_chip * (program.host_arguments + program.host_temporaries),
    ),
    flops=StepFlops(
      model,
      seen * shape.tokens,
      executed.total * mesh.size,
      {k: v * mesh.size for k, v in executed.kernels.items()},
      executed.unknown,
    ),
    traffic={
      axes: {kind: per_chip * size for kind, size in kinds.items()}
      for axes, kinds in collectives.totals(sent).items()
    },
    outer=(per_chip * rare, per_chip * always),
    scattered=tuple(sorted(scattered)),
    reduced=tuple(sorted(reduced)),
    wide_gathers=per_chip * sum(x.bytes for x in collectives.float32_gathers(sent)),
    time=time.step,
    spent={k: v for k, v in time._asdict().items() if k != 'step'},
    bound=time.bound,
    mfu=model / time.step / whole_peak,
    mfu_causal=seen * shape.tokens / time.step / whole_peak,
    kind=kind,
    accuracy=ledger.band(kind, time),
    attention=tuple(kernels),
    events=ledger.shorten(events, slices),
  )


def whole(parts: Parts, stages: list[StageTimes], slices: Slices) -> Whole:
  """Days and chip-hours of the run, from the step time of each stage."""
  last = parts.config.schedule.num_steps
  by_shape = {Shape(stage.rows, stage.row_tokens): stage for stage in stages}
  starts = parts.ramp.between(0, last)
  ends = [s.start for s in starts[1:]] + [last]
  seconds = work = causal = 0.0
  for stage, end in zip(starts, ends, strict=True):
    # Assume that a stage that was not compiled is as fast per token as the
    # largest one.
    known = by_shape.get(stage.shape) or max(stages, key=lambda s: s.tokens)
    steps, share = end - stage.start, stage.shape.tokens / known.tokens
    seconds += steps * known.time * share
    work += steps * known.flops.model * share
    causal += steps * known.flops.causal * share
  peak = slices.chips * slices.chip.peak
  return Whole(
    tokens=parts.ramp.tokens(last),
    steps=last,
    days=seconds / 86_400,
    chip_hours=seconds / 3600 * slices.chips,
    mfu=work / seconds / peak,
    mfu_causal=causal / seconds / peak,
  )


def so_far() -> str:
  """How long compilations take, by those of this process."""
  if not seconds:
    return 'the first here; most take a minute or two on two quiet cores'
  if len(seconds) == 1:
    return f'the one before took {seconds[0]:.0f} s'
  return f'the {len(seconds)} before took {min(seconds):.0f} to {max(seconds):.0f} s'


def _activations(program: CompiledStage, text: hlo.Program, state: Any) -> float | None:
  """Bytes that the scan over layers saves for the backward pass.

  These are the loop-carried arrays whose first dimension is the number of
  periods, and whose shape is not that of a parameter or its gradient, sharded
  or gathered.
  """
  parts = program.parts
  model = parts.config.model
  choices = ModelChoices.of(model)
  number = model.num_layers // len(choices.decoder)
  groups = choices.share.groups
  leads = ((number,), (groups, number // groups))
  if model.loop == 'unroll' or number < 2:
    return None
  weights = set()
  for x in jax.tree.leaves(state.params):
    shard = x.sharding.shard_shape(x.shape)
    # Any one dimension may have been gathered.
    mixed = ((*shard[:i], whole, *shard[i + 1 :]) for i, whole in enumerate(x.shape))
    weights |= {tuple(sorted(dims)) for dims in (x.shape, shard, *mixed)}
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
  # Offloaded arrays are among them.
  return most - program.host_temporaries
