# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peak FLOP/s of accelerators under their cloud names, such as v4-512."""

import re
from typing import Any, NamedTuple

from gpt_jax.costs.peak import PEAKS
from gpt_jax.planning import topologies
from gpt_jax.spec import UsageError


class Kind(NamedTuple):
  """A generation of accelerators."""

  peak: float  # dense bf16 FLOP/s of a chip
  units_per_chip: int  # what the number in the name counts: cores, or chips


class Chips(NamedTuple):
  """A number of chips of one kind."""

  count: int
  peak: float  # dense bf16 FLOP/s of one


def parse(name: str) -> Chips:
  """Reads a name such as v4-512: 512 cores, which are 256 chips.

  Raises:
    UsageError: the name is unknown.
  """
  found = re.fullmatch(r'([a-z0-9]+)-(\d+)', name)
  if not found or found[1] not in KINDS:
    raise UsageError(
      f'--chips={name}: unknown; give KIND-NUMBER as in v4-512, with one of '
      + ', '.join(KINDS)
    )
  kind, number = KINDS[found[1]], int(found[2])
  if not number or number % kind.units_per_chip:
    raise UsageError(
      f'--chips={name}: {found[1]} is counted in cores, {kind.units_per_chip} '
      f'to a chip; give a multiple of {kind.units_per_chip}'
    )
  return Chips(number // kind.units_per_chip, kind.peak)


# TPU names as in `topologies`; some count cores, others chips.
KINDS = {
  **{
    prefix: Kind(chip.peak, chip.cores)
    for chip in topologies.CHIPS.values()
    for prefix in chip.prefixes
  },
  'a100': Kind(PEAKS['NVIDIA A100'], 1),
  'h100': Kind(PEAKS['NVIDIA H100'], 1),
}


def budget(chips: str, days: float, mfu: float) -> tuple[float, dict[str, Any]]:
  """Training FLOPs, and what they were computed from.

  Args:
    chips: see `parse`.
    days: of training.
    mfu: the assumed share of the chips' bf16 peak.
  """
  found = parse(chips)
  flops = found.count * found.peak * mfu * days * 86_400
  return flops, {
    'chips': found.count,
    'peak_flops_per_second_and_chip': found.peak,
    'mfu': mfu,
    'days': days,
  }
