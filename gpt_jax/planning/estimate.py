# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimates the time of a training step from its compiled program.

Uncalibrated: no program was timed on a TPU here. Over ten published runs (PaLM
and MaxText's, v4, v5e, v5p) the compiler's FLOPs at 73% of the peak were as
near as a replay of the schedule, within -21% to +14%. None of them was bound
by communication; the terms for it are there to rank layouts.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from gpt_jax.planning.collectives import Collective

ERROR = 0.25  # of the estimate, either way
# Of the peak: what published runs made of the FLOPs that they executed, the
# communication of a good layout included; and what matrix units make while
# nothing else holds them up.
ACHIEVED, BUSY = 0.73, 0.9


class Rates(NamedTuple):
  """What a device can do.

  Attributes:
    peak: bf16 FLOP/s.
    link: bytes/s over one link to a neighbour, one way.
    dcn: bytes/s to other slices.
    shape: chips along each dimension of a slice's network.
    wrap: whether the last chip of a dimension is linked to the first.
  """

  peak: float
  link: float
  dcn: float
  shape: tuple[int, ...]
  wrap: tuple[bool, ...]


class Estimate(NamedTuple):
  """Seconds of one step: `step` is the largest of what follows it.

  Attributes:
    step: the estimate.
    achieved: FLOPs at `ACHIEVED` of the peak.
    exposed: FLOPs at `BUSY` of the peak, plus `blocking`.
    ici: all that is sent within a slice, one after the other.
    dcn: all that is sent between slices.
    blocking: what of `ici` nothing is computed meanwhile.
  """

  step: float
  achieved: float
  exposed: float
  ici: float
  dcn: float
  blocking: float

  @property
  def bound(self) -> str:
    """What the step's time comes from."""
    terms = {
      'compute': self.achieved,
      'compute and blocking communication': self.exposed,
      'communication within a slice': self.ici,
      'communication between slices': self.dcn,
    }
    return max(terms, key=lambda name: terms[name])


def step_time(
  flops: float, collectives: Iterable[Collective], mesh: Mesh, rates: Rates
) -> Estimate:
  """See `Estimate` and `assumptions`.

  Args:
    flops: that one device executes in a step: `hlo_matmuls.Flops.total`.
    collectives: of `collectives.read`.
    mesh: of TPU devices, that the program was compiled for.
    rates: of one device.
  """
  ici = dcn = blocking = 0.0
  for x in collectives:
    if x.kind == 'dcn':
      dcn += x.bytes / rates.dcn
      continue
    seconds = x.bytes / (rates.link * links(x, mesh, rates))
    ici += seconds
    blocking += seconds if x.blocking else 0
  achieved = flops / (ACHIEVED * rates.peak)
  exposed = flops / (BUSY * rates.peak) + blocking
  step = max(achieved, exposed, ici, dcn)
  return Estimate(step, achieved, exposed, ici, dcn, blocking)


def links(collective: Collective, mesh: Mesh, rates: Rates) -> int:
  """How many of a chip's links a collective sends over at once.

  Of each dimension of the network that its group spans two, where it is a
  ring, else one. A permutation goes to one neighbour.
  """
  devices = mesh.devices.ravel()
  at = np.array([devices[i].coords for i in collective.members])
  count = 0
  for size, wrap, along in zip(rates.shape, rates.wrap, at.T, strict=False):
    spanned = len(np.unique(along))
    if spanned > 1:
      count += 2 if wrap and spanned == size else 1
  return 1 if collective.kind == 'collective-permute' else max(count, 1)


def assumptions() -> list[str]:
  """What an estimate takes for granted, in sentences to print."""
  return [
    f'no faster than the executed FLOPs at {ACHIEVED:.0%} of the peak, the '
    'mean of ten published runs',
    f'nor than the FLOPs at {BUSY:.0%} of it plus all collectives that the '
    'schedule overlaps with nothing, one after the other',
    'collectives run at the full speed of the links that their groups span',
    'attention counts whole, masked or not; nothing waits for data, '
    'evaluations, saves or slow hosts',
  ]
