# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimates the time of a training step by replaying its schedule.

Not measured: we have timed no program on a TPU.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from gpt_jax.planning.op_costs import Work
from gpt_jax.planning.schedule import Event, Fetch, Loop, Send, Wait

ERROR = 0.17  # of the estimate, either way: see docs/planning.md
# Share of its peak that a matrix unit reaches within one product.
BUSY = 0.9
# Seconds that a transfer takes besides its bytes.
LATENCY = 2e-6


class Rates(NamedTuple):
  """Rates of one device.

  Attributes:
    peak: bf16 FLOP/s.
    vector: operations of the vector units per second.
    memory: bytes/s to and from main memory.
    link: bytes/s over one link to a neighbour, one way.
    dcn: bytes/s to other slices.
  """

  peak: float
  vector: float
  memory: float
  link: float
  dcn: float


class Estimate(NamedTuple):
  """Seconds per step: `step`, and what it is made of.

  Attributes:
    step: the sum of the others.
    products: of work that the matrix units bound.
    vector: of work that the vector units bound.
    memory: of work that main memory bounds, and waiting for copies from it.
    ici: waiting for transfers within a slice.
    dcn: waiting for transfers between slices.
  """

  step: float
  products: float
  vector: float
  memory: float
  ici: float
  dcn: float

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


def step_time(events: Iterable[Event], rates: Rates) -> Estimate:
  """Estimates one step; see `assumptions`.

  Args:
    events: of `schedule.read`.
    rates: of one device.
  """
  clock = _replay(events, rates)
  # It ends when all that it started has ended.
  for resource, end in clock.free.items():
    clock.until(end, resource)
  return Estimate(clock.now, **clock.spent)


@dataclasses.dataclass
class _Clock:
  """A replay. Main memory and the links serve one after the other."""

  now: float = 0.0
  spent: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(Estimate._fields[1:], 0.0)
  )
  # When each resource has done what it was asked; and for how long it worked.
  free: dict[str, float] = dataclasses.field(default_factory=dict)
  worked: dict[str, float] = dataclasses.field(default_factory=dict)
  # What was started: when it ends, and on which resource.
  started: dict[str, tuple[float, str]] = dataclasses.field(
    default_factory=dict
  )

  def ask(self, resource: str, seconds: float) -> float:
    """Queues work of a resource; returns when it ends."""
    end = max(self.now, self.free.get(resource, 0.0)) + seconds
    self.free[resource] = end
    self.worked[resource] = self.worked.get(resource, 0.0) + seconds
    return end

  def until(self, end: float, why: str) -> None:
    """Goes on to `end`, if that is to come."""
    self.spent[why] += max(end - self.now, 0.0)
    self.now = max(end, self.now)


def _replay(events: Iterable[Event], rates: Rates) -> _Clock:
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


def _work(clock: _Clock, x: Work, rates: Rates) -> None:
  products = x.products / (BUSY * rates.peak)
  vector = x.vector / rates.vector
  start = clock.now
  if x.serial:
    clock.until(clock.now + products, 'products')
    clock.until(clock.now + vector, 'vector')
  elif products >= vector:
    clock.until(clock.now + products, 'products')
  else:
    clock.until(clock.now + vector, 'vector')
  if x.bytes:
    done, clock.now = clock.now, start
    end = clock.ask('memory', x.bytes / rates.memory)
    clock.now = done
    clock.until(end, 'memory')


def _loop(clock: _Clock, x: Loop, rates: Rates) -> None:
  """Adds one iteration, as often as it runs.

  An iteration takes no less than what it asks of each resource: what it does
  not wait for delays the next.
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
    'vector operations take turns',
    'collectives run at the full speed of the links that their groups span, '
    'one after the other; what is asynchronous delays what waits for it',
    'nothing waits for data, evaluations, saves or slow hosts, nor for what '
    'model.remat=offload and optim.state=host copy to and from their memory',
  ]
