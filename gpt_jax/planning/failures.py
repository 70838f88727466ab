# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Goodput under failures: how often to save, and what a second tier of checkpoints saves.

Simulates a run on many hosts. Failures come as a Poisson process, with rates
from published runs. After each one all hosts restart, restore the newest
checkpoint that is left, and do again what came after it. A failure during that
begins the recovery anew. With one tier the goodput is Daly's (2006, equation
13); a test compares the two.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from gpt_jax.core import spec
from gpt_jax.core.ranges import NotNegative, Positive, Probability
from gpt_jax.core.runtime.tables import TextTable

# Simulated days: at a failure a day the goodput's standard error is below 0.1%.
DAYS = 20_000
_DAY = 86400.0


class PublishedRun(NamedTuple):
  """A published run, and its unplanned interruptions."""

  name: str
  hosts: int  # of 8 GPUs
  days: float
  failures: int
  # Share of failures after which a host was exchanged or repaired, so that its
  # memory is lost: all but those of software and network.
  hardware: float
  cite: str

  @property
  def a_day(self) -> float:
    """Failures of one host in a day."""
    return self.failures / (self.hosts * self.days)


SOURCES = (
  PublishedRun(
    'OPT-175B',
    124,
    60,
    35 + 70,
    1.0,
    cite='arXiv 2205.01068, section 2.5: 35 manual restarts and about 70 '
    'automatic ones in two months, all of hardware',
  ),
  PublishedRun(
    'Llama 3 405B',
    2048,
    54,
    419,
    1 - (54 + 35 + 7 + 2) / 419,
    cite='arXiv 2407.21783, table 5: 419 unexpected interruptions, of which '
    'software 54, network 35, NCCL timeouts 7, dependencies 2',
  ),
)


class Tiers(NamedTuple):
  """The two tiers of checkpoints: times in seconds.

  Args:
    every: work between saves into the workdir.
    blocks: for which training waits at each.
    writes: until one is in the workdir; the next begins after it.
    restore: from the workdir.
    local_every: work between local saves.
    local_blocks: for which training waits at each.
    local_restore: from the hosts.
    restart: from a failure until a checkpoint is read: noticing it, exchanging
      the host, starting, compiling.
    both: share of the failures that cost a host's memory and also take that of
      the host with the copies, as a power cut of their rack.
  """

  every: Positive = 3600.0
  blocks: NotNegative = 10.0
  writes: NotNegative = 60.0
  restore: NotNegative = 300.0
  local_every: Positive = 120.0
  local_blocks: NotNegative = 1.0
  local_restore: NotNegative = 30.0
  restart: NotNegative = 600.0
  both: Probability = 0.05


TIERS = {'tiers': Tiers}


class TimeShares(NamedTuple):
  """Shares of the wall time; they add up to 1."""

  goodput: float  # work that was kept
  saving: float
  lost: float  # work done again
  recovering: float


def simulate(
  a_day: float, hardware: float, times: Tiers, *, local: bool, days: float = DAYS, seed: int = 0
) -> TimeShares:
  """Simulates a run.

  Args:
    a_day: failures of all hosts in a day.
    hardware: share of the failures that cost a host's memory.
    local: whether there is a local tier.
    days: of wall time.
  """
  rng, end = np.random.default_rng(seed), days * _DAY
  # Part of the time between failures that is work.
  saving = times.blocks / times.every
  if local:
    saving += times.local_blocks / times.local_every
  at_work = 1 / (1 + saving)
  wall = recovering = worked = 0.0
  kept = 0.0  # seconds of work in the newest checkpoint of any tier
  persistent = 0.0  # and of the workdir
  near = False  # whether the local tier is read after a failure
  while wall < end:
    left = rng.exponential(_DAY / a_day)
    if wall:
      read = times.local_restore if near else times.restore
      spent = min(left, times.restart + read)
      recovering, left, wall = recovering + spent, left - spent, wall + spent
    work = left * at_work
    wall, worked = wall + left, worked + work
    reached = kept + work
    persistent = max(persistent, math.floor(reached / times.every) * times.every)
    newest = math.floor(reached / times.local_every) * times.local_every
    near = local and (near or newest > kept)
    if near and rng.random() >= hardware * times.both:
      kept = max(kept, newest, persistent)
    else:
      near, kept = False, persistent
  return TimeShares(kept / wall, worked * saving / wall, (worked - kept) / wall, recovering / wall)


def best_every(a_day: float, times: Tiers) -> float:
  """Seconds of work between saves into the workdir that lose least time, without a local tier.

  Daly's estimate (2006, equation 20), but no less than a save takes.
  """
  mean, blocks = _DAY / a_day, times.blocks
  best = mean
  if blocks < 2 * mean:
    part = math.sqrt(blocks / (2 * mean))
    best = math.sqrt(2 * blocks * mean) * (1 + part / 3 + part**2 / 9) - blocks
  return max(best, times.writes)


def plan(hosts: int, given: str) -> dict[str, Any]:
  """Simulates a run at the failure rate of each source; returns plain JSON.

  Args:
    hosts: of 8 accelerators, as in the sources.
    given: a call `tiers(...)`.
  """
  times: Tiers = spec.build('--tiers', given, TIERS)
  rows = []
  for source in SOURCES:
    a_day = hosts * source.a_day
    row: dict[str, Any] = {'rates': source.name, 'source': source.cite, 'failures_a_day': a_day}
    best = times._replace(every=best_every(a_day, times))
    row['every_minutes'] = round(best.every / 60, 1)
    kinds = ('workdir', times, False), ('best', best, False), ('both_tiers', times, True)
    for name, used, local in kinds:
      row[name] = simulate(a_day, source.hardware, used, local=local)._asdict()
    rows.append(row)
  return {'hosts': hosts, **times._asdict(), 'rows': rows}


def show(found: dict[str, Any], console: Console) -> None:
  """Prints the table."""
  hosts = spec.counted(found['hosts'], 'host')
  table = TextTable(
    'rates of',
    'a day',
    'checkpoints',
    'goodput',
    'lost',
    'recovering',
    'saving',
    title=f'Failures of {hosts}, {DAYS:,} simulated days',
  )
  for row in found['rows']:
    for name, told in (
      ('workdir', f'workdir, {found["every"]:g} s'),
      ('best', f'workdir, {60 * row["every_minutes"]:g} s'),
      ('both_tiers', f'+ local, {found["local_every"]:g} s'),
    ):
      x = row[name]
      first = name == 'workdir'
      table.add_row(
        *(row['rates'], f'{row["failures_a_day"]:.1f}') if first else ('', ''),
        told,
        f'{x["goodput"]:.1%}',
        f'{x["lost"]:.1%}',
        f'{x["recovering"]:.1%}',
        f'{x["saving"]:.1%}',
      )
  console.print(table)
  for row in found['rows']:
    best = f'--config.checkpoint.every_minutes={row["every_minutes"]:g}'
    console.print(f'{row["rates"]}: {best}; {row["source"]}', soft_wrap=True)
