# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU slices that Google sells: their shapes, networks and names."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt_jax.core.costs.chips import CHIPS, Chip
from gpt_jax.core.spec import UsageError

Shape = tuple[int, ...]  # of a slice, in chips
CHOICES = (
  'give GENERATION:SHAPE with one of '
  + ', '.join(CHIPS)
  + ', as in v4:4x4x8 or v5e:16x16, or an accelerator name such as v4-128, '
  'v5litepod-256'
)


class Slices(NamedTuple):
  """`number` equal slices of one generation."""

  chip: Chip
  shape: Shape
  number: int = 1

  @property
  def name(self) -> str:
    """Name of one slice, as in `v4:12x16x16`."""
    return f'{self.chip.name}:{_text(self.shape)}'

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
    """Machines in all slices, on which `launch/` starts the run.

    A two-dimensional slice of up to 8 chips is one machine. Larger slices
    consist of machines with four chips; all slices are compiled that way.
    """
    if self.chip.dimensions == 2 and math.prod(self.shape) <= 8:
      return self.number
    return self.chips // math.prod(self.host)

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
    if self.chip.dimensions == 3:
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
    if len(shape) != chip.dimensions:
      raise UsageError(
        f'{wrong} a slice of {chip.name} has {chip.dimensions} dimensions, as '
        f'in {chip.name}:{_text(chip.small[-1])}'
      )
    if shape not in sold(chip):
      raise UsageError(
        f'{wrong} no such slice is sold; the nearest: ' + _nearest(chip, math.prod(shape), shape)
      )
    return Slices(chip, shape, number)
  found = re.fullmatch(r'(\w+)-(\d+)', text.strip())
  if found and (chip := _generation(found[1])):
    chips, rest = divmod(int(found[2]), chip.cores)
    shapes = [shape for shape in sold(chip) if math.prod(shape) == chips]
    if rest or not shapes:
      unit = 'chips' if chip.cores == 1 else 'cores, two a chip'
      raise UsageError(
        f'{wrong} no slice of that many {unit} is sold; the nearest: ' + _nearest(chip, chips, ())
      )
    return Slices(chip, shapes[0], number)
  raise UsageError(f'{wrong} no slice has that name; {CHOICES}')


def _generation(name: str) -> Chip | None:
  """The chip with a name, ours or the cloud's: v5e is also v5litepod."""
  chips = (c for c in CHIPS.values() if name in (c.name, *c.prefixes))
  return next(chips, None)


def of_devices(devices: Sequence[Any]) -> Slices | None:
  """The slices that JAX devices form; None if they form none that is sold."""
  kinds = {device.device_kind for device in devices}
  chip = next((c for c in CHIPS.values() if {c.kind} == kinds), None)
  if chip is None:
    return None
  places = [device.coords[: chip.dimensions] for device in devices]
  shape = tuple(max(along) + 1 for along in zip(*places, strict=True))
  slices = Slices(chip, shape, num_slices(devices))
  is_sold = shape in sold(chip) and slices.devices == len(devices)
  return slices if is_sold else None


def num_slices(devices: Sequence[Any]) -> int:
  """How many slices JAX devices belong to; 1 where there are none."""
  return len({getattr(d, 'slice_index', 0) or 0 for d in devices})


def sold(chip: Chip) -> list[Shape]:
  """Shapes of a generation: fewest chips first, then the most cubic.

  From 64 chips on, a three-dimensional slice consists of whole cubes:
  4a x 4b x 4c with a <= b <= c.
  """
  shapes = list(chip.small)
  if chip.dimensions == 3:
    sides = range(4, chip.largest // 16 + 1, 4)
    for a, b in itertools.combinations_with_replacement(sides, 2):
      if a * b * b > chip.largest:
        continue
      longest = range(b, chip.largest // (a * b) + 1, 4)
      shapes += [(a, b, c) for c in longest]
  return sorted(shapes, key=lambda shape: (math.prod(shape), sum(shape)))


def _nearest(chip: Chip, chips: int, shape: Shape) -> str:
  """The sold shapes nearest in number of chips, at most three."""
  # The user may have transposed the shape.
  same = [s for s in sold(chip) if sorted(s) == sorted(shape)]
  by_size = {}
  for slices in sold(chip):
    by_size.setdefault(math.prod(slices), slices)
  below = [s for n, s in by_size.items() if n <= chips][-1:]
  above = [s for n, s in by_size.items() if n > chips][:1]
  return ', '.join(f'{chip.name}:{_text(s)} ({math.prod(s)} chips)' for s in same or below + above)


def _text(shape: Shape) -> str:
  return 'x'.join(str(n) for n in shape)
