# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Profiles steps of a run with JAX's profiler; leaves the run unchanged."""

import collections
import contextlib
import glob
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

from gpt_jax.core.runtime import hosts, watchdog
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import store_data
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.compiled import Stages, compile_train_step
from gpt_jax.core.training.run import Run

# Reading a trace: the time of each operation.
#
# JAX writes an XSpace: planes of lines of events. On TPUs the line `XLA Ops` of
# each chip's plane has the operations; on GPUs and CPUs they are the events
# with an `hlo_op`, on the lines of streams and of threads.


# Words in the names of HLO instructions that communicate between devices. JAX
# names two of those in `shard_map`.
_COLLECTIVES = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'psum',
  'ragged_all_to_all',
  'collective-permute',
  'collective-broadcast',
  'send',
  'recv',
)
# A device blocks in these until an asynchronous operation ends.
_WAIT = re.compile(r'(-done|-wait)(\.|$)|^(infeed|outfeed)')
# Their time is that of their bodies, which have events of their own.
_CONTROL = re.compile(r'(while|conditional|call)(\.|$)')
_TPU_LINE = 'XLA Ops'
# libtpu also adds a CUSTOM plane, which is no device.
_DEVICE = re.compile('/device:(?!CUSTOM:)')


class OperationRun(NamedTuple):
  """One execution of an operation, in nanoseconds."""

  device: str
  line: str
  name: str  # of the HLO instruction
  start: float
  end: float


class Op(NamedTuple):
  """All executions of an operation.

  Attributes:
    name: of the HLO instruction.
    kind: 'compute', 'collective' or 'wait'.
    calls: over all devices.
    seconds: total, without nested operations.
  """

  name: str
  kind: str
  calls: int
  seconds: float


class Trace(NamedTuple):
  """What one host's devices did.

  Attributes:
    ops: the slowest first.
    devices: number of devices in the trace.
    idle: seconds without any operation, between a device's first and its last;
      summed over devices.
  """

  ops: list[Op]
  devices: int
  idle: float


def read(data: Any) -> Trace:
  """Adds up the operations of a `jax.profiler.ProfileData`."""
  spans = list(_spans(data))
  calls: dict[str, int] = collections.defaultdict(int)
  seconds: dict[str, float] = collections.defaultdict(float)
  for line in _grouped(spans, lambda s: (s.device, s.line)):
    for name, own in _own(line):
      calls[name] += 1
      seconds[name] += own
  ops = [
    Op(name, kind(name), calls[name], 1e-9 * ns)
    for name, ns in sorted(seconds.items(), key=lambda x: -x[1])
    if not _CONTROL.match(name)
  ]
  devices = _grouped(spans, lambda s: s.device)
  return Trace(ops, len(devices), 1e-9 * sum(map(_idle, devices)))


def kind(name: str) -> str:
  """'wait', 'collective' or 'compute', from the name of an instruction."""
  if _WAIT.search(name):
    return 'wait'
  return 'collective' if any(x in name for x in _COLLECTIVES) else 'compute'


def trace_sources(program: str) -> dict[str, str]:
  """Maps the instructions of a compiled program to their source.

  Args:
    program: its HLO text.

  Returns:
    By instruction name, the functions and modules that it comes from, such as
    'jit(train_step)/transpose(jvp(Transformer))/ffn/dot_general'.
  """
  found = re.findall(r'^ *(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', program, re.MULTILINE)
  return dict(found)


# Names in a source that are no part of the model: JAX's transformations and
# control flow, and what numbers layers, so that all layers add up.
_NO_PART = re.compile(
  r'[(),>.]|^(while|body|cond|closed_call|checkpoint|rematted_computation)$'
  r'|^(branch_\d+_fun|periods|block_\d+)$'
)
_NO_MODULE = 'outside of modules'


def part(source: str) -> str:
  """The part of the model that a source of `trace_sources` belongs to.

  Its module and the one that contains it, as in 'attention/query'; loss and
  optimizer are in no module.
  """
  names = source.split('/')[1:-1]
  names = [name for name in names if name and not _NO_PART.search(name)]
  return '/'.join(names[:2]) or _NO_MODULE


def by_part(trace: Trace, sources: Mapping[str, str]) -> dict[str, float]:
  """Seconds of the operations of each part of the model, most first."""
  seconds: dict[str, float] = collections.defaultdict(float)
  for op in trace.ops:
    if op.kind != 'wait':
      seconds[part(sources.get(op.name, ''))] += op.seconds
  return dict(sorted(seconds.items(), key=lambda x: -x[1]))


def _spans(data: Any) -> Iterator[OperationRun]:
  planes = [p for p in data.planes if _DEVICE.match(p.name)]
  planes = planes or [p for p in data.planes if p.name == '/host:CPU']
  for plane in planes:
    lines = {line.name: line for line in plane.lines}
    is_tpu = _TPU_LINE in lines
    for line in [lines[_TPU_LINE]] if is_tpu else plane.lines:
      for event in line.events:
        stats = {} if is_tpu else {k: v for k, v in event.stats if k}
        if not is_tpu and 'hlo_op' not in stats:
          continue
        # CPU devices share a plane; TPUs name events by the whole instruction.
        device = f'{plane.name} {stats.get("device_ordinal", "")}'
        name = event.name.removeprefix('%').partition(' ')[0]
        yield OperationRun(device, line.name, name, event.start_ns, event.end_ns)


def _grouped(spans: Iterable[OperationRun], key) -> list[list[OperationRun]]:
  groups = collections.defaultdict(list)
  for span in spans:
    groups[key(span)].append(span)
  return list(groups.values())


def _own(line: list[OperationRun]) -> Iterator[tuple[str, float]]:
  """Name and time of each span of a line, without nested spans."""
  inside = [0.0] * len(line)
  line, open_ = sorted(line, key=lambda s: (s.start, -s.end)), []
  for i, span in enumerate(line):
    while open_ and line[open_[-1]].end <= span.start:
      open_.pop()
    if open_:
      inside[open_[-1]] += min(span.end, line[open_[-1]].end) - span.start
    open_.append(i)
  for span, within in zip(line, inside, strict=True):
    yield span.name, span.end - span.start - within


def _idle(spans: list[OperationRun]) -> float:
  """Nanoseconds outside all spans, between the first start and last end."""
  spans = sorted(spans, key=lambda s: s.start)
  idle, until = 0.0, spans[0].start
  for span in spans:
    idle += max(0.0, span.start - until)
    until = max(until, span.end)
  return idle


class StepsProfile(NamedTuple):
  """The profile of some steps.

  Attributes:
    steps: number of steps.
    seconds: wall time of all steps.
    data_seconds: the part of it spent waiting for batches.
    trace: the operations of this host's devices.
    sources: by operation, where in the model it comes from.
    file: of the trace, for xprof or TensorBoard.
  """

  steps: int
  seconds: float
  data_seconds: float
  trace: Trace
  sources: dict[str, str]
  file: str


def profile(workdir: str, steps: str) -> StepsProfile:
  """Traces steps of a run, with its newest weights, into WORKDIR/profile.

  The batches are those of `steps`, whatever step the weights are from; without
  a checkpoint the weights are the initial ones. Two untraced steps on the first
  batch come first, as warm-up.

  Args:
    steps: '10:13' for 10 to 12, counted from 1.
  """
  config = workdir_lib.read_config(workdir)
  first, stop = store_data.step_range(steps, config.schedule.num_steps)
  if config.get('finetune') is not None:
    raise UsageError(
      f'--workdir={workdir}: is a fine-tuned run, and only runs of train are '
      'profiled; give one of the same model'
    )
  run, state = Run.open(config, workdir, read_only=True)
  parts = run.parts
  shapes = {parts.ramp.shape(i) for i in range(first - 1, stop - 1)}
  with watchdog.during('compile'):
    compiled: Stages = {s: compile_train_step(parts, s) for s in shapes}

  def taken(state, batch, step: int):
    shape = parts.ramp.shape(step - 1)
    arrays = parts.put(batch, shape.rows)
    return compiled[shape].call(state, arrays, *parts.average_start())

  watchdog.enter('step')
  with contextlib.closing(run.batches(first - 1, lambda: state)) as batches:
    batch = next(batches)
    for _ in range(2):
      state, out = taken(state, batch, first)
    jax.block_until_ready(out)
    state = state._replace(step=jax.device_put(jnp.int32(first - 1), parts.shardings.step))
    data_seconds = 0.0
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python is not part of a step's cost
    with tempfile.TemporaryDirectory() as own:
      with jax.profiler.trace(own, profiler_options=options):
        started = time.perf_counter()
        for step in range(first, stop):
          with jax.profiler.StepTraceAnnotation('train', step_num=step):
            if step > first:
              waiting = time.perf_counter()
              batch = next(batches)
              data_seconds += time.perf_counter() - waiting
            state, out = taken(state, batch, step)
        jax.block_until_ready(out)
        seconds = time.perf_counter() - started
      file = _keep(own, os.path.join(workdir, 'profile'))
  sources = {}
  for step in compiled.values():
    sources |= trace_sources(step.call.as_text())
  found = read(ProfileData.from_file(file))
  return StepsProfile(stop - first, seconds, data_seconds, found, sources, file)


def _keep(own: str, into: str) -> str:
  """Moves this process's trace to the others'; returns the file's new path.

  Profilers name the folder after the second and the file after the host: the
  processes of one host would overwrite each other's, or write two folders.
  """
  (trace,) = glob.glob('plugins/profile/*/*.xplane.pb', root_dir=own)
  folder, name = os.path.split(trace)
  when = hosts.broadcast_from_host0(os.path.basename(folder))
  folder = os.path.join(into, 'plugins/profile', when)
  os.makedirs(folder, exist_ok=True)
  if jax.process_count() > 1:
    name = f'process_{jax.process_index()}_{name}'
  return shutil.move(os.path.join(own, trace), os.path.join(folder, name))
