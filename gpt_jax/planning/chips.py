# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peak FLOP/s of accelerators under their cloud names, such as v4-512."""

import re
from typing import NamedTuple

from gpt_jax.flops import PEAKS
from gpt_jax.spec import UsageError


class Kind(NamedTuple):
  """A generation of accelerators."""

  device: str  # a key of `flops.PEAKS`
  devices_per_chip: int
  units_per_chip: int  # what the number in the name counts: cores, or chips


class Chips(NamedTuple):
  """So many chips of one kind."""

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
  peak = PEAKS[kind.device] * kind.devices_per_chip
  return Chips(number // kind.units_per_chip, peak)


# The names of v4, v5p and 7x count TensorCores, the others chips.
KINDS = {
  'v4': Kind('TPU v4', 1, 2),
  'v5e': Kind('TPU v5 lite', 1, 1),
  'v5p': Kind('TPU v5', 1, 2),
  'v6e': Kind('TPU v6 lite', 1, 1),
  'tpu7x': Kind('TPU7x', 2, 2),
  'a100': Kind('NVIDIA A100', 1, 1),
  'h100': Kind('NVIDIA H100', 1, 1),
}
