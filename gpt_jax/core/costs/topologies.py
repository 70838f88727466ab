# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU slices that Google sells: their shapes and networks. Training needs none of it."""

import math
import re
from typing import NamedTuple

from gpt_jax.core.costs import slice_names
from gpt_jax.core.costs.chips import CHIPS, PEAKS, Chip
from gpt_jax.core.costs.slice_names import PREFIXES, SOLD, Shape, Sold
from gpt_jax.core.costs.slice_names import text as text_of
from gpt_jax.core.spec import UsageError

CHOICES = (
  'give GENERATION:SHAPE with one of '
  + ', '.join(CHIPS)
  + ', as in v4:4x4x8 or v5e:16x16, or an accelerator name such as v4-128, '
  'v5litepod-256'
)

# Accelerators by their cloud names, such as v4-512: the bf16 peak of a chip,
# and how many of the units that the number counts (cores or chips) it has.
CLOUD_NAMES = {
  **{prefix: (CHIPS[sold.name].peak, sold.cores) for prefix, sold in PREFIXES.items()},
  'a100': (PEAKS['NVIDIA A100'], 1),
  'h100': (PEAKS['NVIDIA H100'], 1),
}


class Slices(NamedTuple):
  """`number` equal slices of one generation."""

  chip: Chip
  shape: Shape
  number: int = 1

  @property
  def sold(self) -> Sold:
    """All slices of the generation, and their names."""
    return SOLD[self.chip.name]

  @property
  def name(self) -> str:
    """Name of one slice, as in `v4:12x16x16`."""
    return f'{self.chip.name}:{text_of(self.shape)}'

  @property
  def chips(self) -> int:
    """Chips in all slices."""
    return self.number * math.prod(self.shape)

  @property
  def devices(self) -> int:
    """JAX devices in all slices."""
    return self.chips * self.chip.devices

  @property
  def hosts(self) -> int:
    """Machines in all slices, on which `launch/` starts the run."""
    return self.number * self.sold.hosts(self.shape)

  @property
  def accelerator(self) -> str:
    """The cloud's name of one slice, as in `v4-6144`; see `usual`."""
    return self.sold.named(math.prod(self.shape))

  @property
  def usual(self) -> bool:
    """Whether the cloud's name means this shape, and not another one."""
    return self.sold.by_chips[math.prod(self.shape)] == self.shape

  @property
  def host(self) -> Shape:
    """Bounds of a host in chips, as passed to the compiler."""
    return (1, 1, 1) if math.prod(self.shape) == 1 else self.chip.host

  @property
  def wrap(self) -> tuple[bool, bool, bool]:
    """For each dimension, whether its last chip links to its first.

    A three-dimensional slice is a torus if it consists of whole 4x4x4 cubes. In
    two dimensions only a side of 16, that of the pod, wraps around.
    """
    if self.sold.dimensions == 3:
      closed = all(n % 4 == 0 for n in self.shape)
      return (closed, closed, closed)
    return (self.shape[0] == 16, self.shape[1] == 16, False)

  @property
  def hbm(self) -> float:
    """Bytes that the compiler allows on one JAX device."""
    return self.chip.hbm / self.chip.devices

  @property
  def peak(self) -> float:
    """bf16 FLOP/s of one JAX device."""
    return self.chip.peak / self.chip.devices

  def __str__(self) -> str:
    return self.name if self.number == 1 else f'{self.number} x {self.name}'


def parse(text: str, number: int = 1) -> Slices:
  """Parses `v4:4x4x8`, or an accelerator name such as `v4-256`.

  A name means the most cubic shape with that number of chips; `number` is how
  many such slices there are.
  """
  if number < 1:
    raise UsageError(f'--slices={number}: must be at least 1')
  wrong = f'--topology={text}:'
  if found := re.fullmatch(r'(\w+):(\d+(?:x\d+)+)', text.strip()):
    chip = _generation(found[1])
    if chip is None:
      raise UsageError(f'{wrong} unknown generation {found[1]!r}; {CHOICES}')
    shape = tuple(int(n) for n in found[2].split('x'))
    sold = SOLD[chip.name]
    if len(shape) != sold.dimensions:
      raise UsageError(
        f'{wrong} a slice of {chip.name} has {sold.dimensions} dimensions, as '
        f'in {chip.name}:{text_of(sold.small[-1])}'
      )
    if shape not in sold.shapes:
      raise UsageError(
        f'{wrong} no such slice is sold; the nearest: ' + _nearest(chip, math.prod(shape), shape)
      )
    return Slices(chip, shape, number)
  try:
    kind, shape = slice_names.resolve(text.strip())
  except ValueError as e:
    raise UsageError(f'{wrong} {e}; or give GENERATION:SHAPE, as in v4:4x4x8') from e
  return Slices(CHIPS[kind.name], shape, number)


def _generation(name: str) -> Chip | None:
  """The chip with a name, ours or the cloud's: v5e is also v5litepod."""
  kind = PREFIXES.get(name)
  return kind and CHIPS[kind.name]


def _nearest(chip: Chip, chips: int, shape: Shape) -> str:
  """The sold shapes nearest in number of chips, at most three."""
  # The user may have transposed the shape.
  shapes = SOLD[chip.name].shapes
  same = [s for s in shapes if sorted(s) == sorted(shape)]
  by_size = {}
  for slices in shapes:
    by_size.setdefault(math.prod(slices), slices)
  below = [s for n, s in by_size.items() if n <= chips][-1:]
  above = [s for n, s in by_size.items() if n > chips][:1]
  return ', '.join(
    f'{chip.name}:{text_of(s)} ({math.prod(s)} chips)' for s in same or below + above
  )
