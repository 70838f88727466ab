# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads what a profiler's trace says of a program's operations.

JAX writes an XSpace: planes of lines of events. On TPUs the line `XLA Ops` of
each chip's plane has the operations; on GPUs and CPUs they are the events that
name an `hlo_op`, on the lines of streams and of threads.
"""

import collections
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# Words in the names of HLO instructions that talk to other devices.
_COLLECTIVES = (
  *('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all'),
  *('collective-permute', 'collective-broadcast', 'send', 'recv'),
)
# A device stands at these until something asynchronous has ended.
_WAIT = re.compile(r'(-done|-wait)(\.|$)|^(infeed|outfeed)')
# Their time is that of what they run, which has events of its own.
_CONTROL = re.compile(r'(while|conditional|call)(\.|$)')
_TPU_LINE = 'XLA Ops'
# libtpu adds a CUSTOM one of its own, without devices, too.
_DEVICE = re.compile('/device:(?!CUSTOM:)')


class Span(NamedTuple):
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
    seconds: in all, without those of operations inside of it.
  """

  name: str
  kind: str
  calls: int
  seconds: float


class Trace(NamedTuple):
  """What one host's devices did.

  Attributes:
    ops: the dearest first.
    devices: how many are seen.
    idle: seconds in which no operation ran, between the first and the last of
      a device; summed over devices.
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


def sources(program: str) -> dict[str, str]:
  """Where the instructions of a compiled program come from.

  Args:
    program: its HLO text.

  Returns:
    By name of instruction: the functions and modules that made it, such as
    'jit(train_step)/transpose(jvp(Transformer))/ffn/dot_general'.
  """
  found = re.findall(
    r'^ *(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', program, re.MULTILINE
  )
  return dict(found)


def _spans(data: Any) -> Iterator[Span]:
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
        # Devices of a CPU share the plane; TPUs give the whole instruction.
        device = f'{plane.name} {stats.get("device_ordinal", "")}'
        name = event.name.removeprefix('%').partition(' ')[0]
        yield Span(device, line.name, name, event.start_ns, event.end_ns)


def _grouped(spans: Iterable[Span], key) -> list[list[Span]]:
  groups = collections.defaultdict(list)
  for span in spans:
    groups[key(span)].append(span)
  return list(groups.values())


def _own(line: list[Span]) -> Iterator[tuple[str, float]]:
  """Name and time of each span of a line, without the spans inside of it."""
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


def _idle(spans: list[Span]) -> float:
  """Nanoseconds between the first start and the last end, in no span."""
  spans = sorted(spans, key=lambda s: s.start)
  idle, until = 0.0, spans[0].start
  for span in spans:
    idle += max(0.0, span.start - until)
    until = max(until, span.end)
  return idle
