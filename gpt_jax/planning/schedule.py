# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The schedule of a compiled program: what a device does, in which order.

events = schedule.read(program, collectives.read(program, mesh), mesh, slices)
schedule.step_time(events, rates)
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from gpt_jax.core.costs.topologies import Slices
from gpt_jax.planning import collectives, hlo, op_costs
from gpt_jax.planning.collectives import Collective
from gpt_jax.planning.hlo import Computation, Instruction, Program
from gpt_jax.planning.op_costs import Work


class Fetch(NamedTuple):
  """Starts a copy between main memory and a faster one."""

  key: str
  bytes: float


class Send(NamedTuple):
  """Starts a transfer to other devices."""

  key: str  # named by its `Wait`
  bytes: float  # sent by this device
  links: float  # used at once; 0: to another slice


class Wait(NamedTuple):
  """Waits for what `key` started, unless that was before the loop."""

  key: str


class Loop(NamedTuple):
  """Repeats its events `trips` times; on average, if that is less than 1."""

  trips: float
  events: tuple[Any, ...]


Event = Work | Fetch | Send | Wait | Loop


def read(
  program: Program, sent: Iterable[Collective], mesh: Mesh, slices: Slices, *, causal: bool
) -> tuple[Event, ...]:
  """Reads the schedule of a program.

  Args:
    program: scheduled, as for a TPU.
    sent: its collectives, see `collectives.read`.
    mesh: that it was compiled for.
    slices: that it was compiled for.
    causal: whether attention is causal, so that kernels skip blocks.
  """
  by_place: dict[tuple[str, str], list[Collective]] = {}
  for x in sent:
    by_place.setdefault(x.at, []).append(x)
  return _Reader(program, by_place, mesh, slices, causal).events(program.entry)


class _Reader(NamedTuple):
  program: Program
  sent: dict[tuple[str, str], list[Collective]]
  mesh: Mesh
  slices: Slices
  causal: bool

  def events(self, computation: Computation) -> tuple[Event, ...]:
    """The events of a computation in order, without empty work."""
    # The last fusion of a chain is the one that waits for it.
    last, found = {}, []
    for x in computation.instructions.values():
      if x.opcode == 'fusion':
        for link in _chains(self.program.called(x, 'calls')):
          last[link] = x.name
    for x in computation.instructions.values():
      found.extend(self._of(x, computation, last))
    return tuple(x for x in found if x != Work())

  def _of(self, x: Instruction, inside: Computation, last: dict[str, str]) -> Iterator[Event]:
    if x.opcode == 'while':
      trips = self.program.trips[inside.name, x.name]
      body = self.events(self.program.called(x, 'body'))
      if trips != 0 and body:
        yield Loop(1 if trips is None else trips, body)
      return
    if x.opcode == 'call':
      yield from self.events(self.program.called(x, 'to_apply'))
      return
    if x.opcode == 'conditional':
      way, share = hlo.taken(self.program, x)
      events = self.events(way)
      if share < 1:
        yield Loop(share, events)
      else:
        yield from events
      return
    if x.opcode in ('copy-start', 'slice-start'):
      yield Fetch(x.name, _copied(x))
      return
    if x.opcode == 'recv-done':  # waits for the send of its channel
      yield Wait(f'channel {x.number("channel_id")}')
      return
    if x.opcode.endswith('-done'):
      yield Wait(x.operands[0])
      return
    yield from self._work_and_transfers(x, inside, last)

  def _work_and_transfers(
    self, x: Instruction, inside: Computation, last: dict[str, str]
  ) -> Iterator[Event]:
    places = [(inside.name, x.name)]
    links = set()
    if x.opcode in ('fusion', 'async-start'):
      called = self.program.called(x, 'calls')
      places += [(called.name, name) for name in called.instructions]
      links = _chains(called)
    waits = []
    for place in places:
      for sent in self.sent.get(place, ()):
        y = self.program.computations[place[0]].instructions[place[1]]
        key = x.name
        if link := collectives.chain(y):
          key = f'chain {link}'
        elif y.opcode == 'send':
          key = f'channel {y.number("channel_id")}'
        elif sent.blocking:
          waits.append(Wait(key))
        links_used = 0
        if sent.kind != 'dcn':
          links_used = num_links(sent, self.mesh, self.slices)
        yield Send(key, sent.bytes / sent.trips, links_used)
    yield from waits
    if x.opcode.removesuffix('-start') not in collectives.KINDS:
      yield op_costs.of(self.program, x, inside, self.slices.chip, self.causal)
    for link in links:
      if last[link] == x.name:
        yield Wait(link)


def _chains(computation: Computation) -> set[str]:
  """The asynchronous chains that a fusion belongs to."""
  found = map(collectives.chain, computation.instructions.values())
  return {f'chain {link}' for link in found if link}


def _copied(x: Instruction) -> float:
  """Bytes of main memory that a copy, or a slice of it, reads or writes."""
  ends = list(zip(x.shapes, x.stored, strict=True))[:2]
  padding = max(stored / max(shape.bytes, 1) for shape, stored in ends)
  return padding * min(shape.bytes for shape, _ in ends)


def num_links(sent: Collective, mesh: Mesh, slices: Slices) -> float:
  """How many of a chip's links a device uses at once for a collective.

  For each dimension that its group spans: two if that is a ring, else one. A
  permutation uses the link to one neighbour. The devices of a chip share its
  links: where they are in different groups, each has its part; where they are in
  one, what comes over the links reaches both.
  """
  devices = mesh.devices.ravel()
  at = np.array([devices[i].coords for i in sent.members])
  count = 0
  for size, wrap, along in zip(slices.shape, slices.wrap, at.T, strict=False):
    spanned = len(np.unique(along))
    if spanned > 1:
      count += 2 if wrap and spanned == size else 1
  count = 1 if sent.kind == 'collective-permute' else max(count, 1)
  on_chip = len(at) / len(np.unique(at, axis=0))
  return count * on_chip / slices.chip.devices


# Estimates the time of a training step by replaying its schedule.
#
# These are estimates: we have timed no program on a TPU.


# Share of its peak that a matrix unit reaches within one product.
BUSY = 0.9
# Seconds that a transfer takes besides its bytes.
LATENCY = 2e-6


class DeviceRates(NamedTuple):
  """Rates of one device, per second."""

  peak: float  # bf16 FLOP
  vector: float  # operations of the vector units
  memory: float  # bytes to and from main memory
  link: float  # bytes over one link to a neighbour, one way
  dcn: float  # bytes to other slices


def rates(slices: Slices) -> DeviceRates:
  """Rates of one device of the slices."""
  chip = slices.chip
  each = (x / chip.devices for x in (chip.vector, chip.hbm_bandwidth, chip.dcn))
  vector, memory, dcn = each
  return DeviceRates(slices.peak, vector, memory, chip.link, dcn)


class StepEstimate(NamedTuple):
  """Seconds per step, and what they are spent on."""

  step: float  # the sum of the others
  products: float  # bound by the matrix units
  vector: float  # bound by the vector units
  memory: float  # bound by main memory, or waiting for copies from it
  ici: float  # waiting for transfers within a slice
  dcn: float  # waiting for transfers between slices

  @property
  def bound(self) -> str:
    """What most of the step is spent on."""
    terms = {
      'matrix units': self.products,
      'vector units': self.vector,
      'main memory': self.memory,
      'communication within a slice': self.ici,
      'communication between slices': self.dcn,
    }
    return max(terms, key=lambda name: terms[name])


def step_time(events: Iterable[Event], rates: DeviceRates) -> StepEstimate:
  """Estimates one step; see `assumptions`."""
  clock = _replay(events, rates)
  # The step ends when everything that it started has ended.
  for resource, end in clock.free.items():
    clock.until(end, resource)
  return StepEstimate(clock.now, **clock.spent)


@dataclasses.dataclass
class _Clock:
  """State of a replay. Main memory and links serve requests in turn."""

  now: float = 0.0
  spent: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(StepEstimate._fields[1:], 0.0)
  )
  # When each resource will be free, and for how long it has worked.
  free: dict[str, float] = dataclasses.field(default_factory=dict)
  worked: dict[str, float] = dataclasses.field(default_factory=dict)
  # Pending copies and transfers: when each ends, and on which resource.
  started: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)

  def ask(self, resource: str, seconds: float, start: float | None = None) -> float:
    """Queues work of a resource from `start` (or now) on; returns its end."""
    start = self.now if start is None else start
    end = max(start, self.free.get(resource, 0.0)) + seconds
    self.free[resource] = end
    self.worked[resource] = self.worked.get(resource, 0.0) + seconds
    return end

  def until(self, end: float, why: str) -> None:
    """Advances to `end`, unless that has passed."""
    self.spent[why] += max(end - self.now, 0.0)
    self.now = max(end, self.now)


def _replay(events: Iterable[Event], rates: DeviceRates) -> _Clock:
  clock = _Clock()
  for x in events:
    if isinstance(x, Work):
      _work(clock, x, rates)
    elif isinstance(x, Fetch):
      end = clock.ask('memory', x.bytes / rates.memory)
      clock.started[x.key] = (end, 'memory')
    elif isinstance(x, Send):
      where = 'ici' if x.links else 'dcn'
      rate = rates.link * x.links if x.links else rates.dcn
      end = clock.ask(where, x.bytes / rate + LATENCY)
      clock.started[x.key] = (end, where)
    elif isinstance(x, Wait):
      clock.until(*clock.started.pop(x.key, (0.0, 'memory')))
    else:
      _loop(clock, x, rates)
  return clock


def _work(clock: _Clock, x: Work, rates: DeviceRates) -> None:
  start = clock.now
  units = {'products': x.products / (BUSY * rates.peak), 'vector': x.vector / rates.vector}
  if not x.serial:  # the slower one hides the other
    slower = max(units, key=lambda unit: units[unit])
    units = {slower: units[slower]}
  for unit, seconds in units.items():
    clock.until(clock.now + seconds, unit)
  if x.bytes:
    end = clock.ask('memory', x.bytes / rates.memory, start)
    clock.until(end, 'memory')


def _loop(clock: _Clock, x: Loop, rates: DeviceRates) -> None:
  """Replays one iteration and multiplies it.

  An iteration takes at least as long as each resource works for it: what it
  does not wait for delays the next one.
  """
  once = _replay(x.events, rates)
  for resource, seconds in once.worked.items():
    once.until(seconds, resource)
  for name, seconds in once.spent.items():
    clock.spent[name] += x.trips * seconds
  clock.now += x.trips * once.now
  for resource, seconds in once.worked.items():
    worked = clock.worked.get(resource, 0.0) + x.trips * seconds
    clock.worked[resource] = worked


def assumptions() -> list[str]:
  """The assumptions behind an estimate, as sentences to print."""
  return [
    'the schedule of the compiled program, replayed: each operation takes the '
    'longest of its matrix products, padded to the matrix unit, at '
    f'{BUSY:.0%} of the peak, its vector operations, and its traffic with HBM',
    'in attention kernels, which skip blocks that no query sees, products and '
    'vector operations take turns; in kernels of experts, all of which are '
    'chosen equally often, the grid reads blocks again',
    'collectives run at the full speed of the links that their groups span, '
    'one after the other; what is asynchronous delays what waits for it',
    'nothing waits for data, evaluations, saves or slow hosts, nor for what '
    'model.remat=offload and optim.state=host copy to and from their memory',
  ]
