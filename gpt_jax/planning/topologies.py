# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU generations: the rates of their chips, and what they are sold in.

Shapes, peaks, HBM with its bandwidth, and data-centre network are from the
Cloud TPU pages on v4, v5e, v5p, v6e and tpu7x, read in 2026
(https://docs.cloud.google.com/tpu/docs/v4 and so on); the one-way speed of a
link, and the vector units of v5e and later, from the scaling book
(https://jax-ml.github.io/scaling-book/tpus), those of v4 from its paper (Jouppi
et al., 2023: 128 lanes of 16 units in each of two cores); the HBM that the
compiler allows from its own error message (libtpu 0.0.42.1).
"""

import itertools
import math
import re
from typing import Any, NamedTuple

from gpt_jax.costs.flops import PEAKS
from gpt_jax.spec import UsageError

GIB = 2**30
Shape = tuple[int, ...]


class Chip(NamedTuple):
  """One TPU generation. Rates are per chip and second."""

  name: str
  kind: str  # the device_kind of its JAX devices
  devices: int  # JAX devices per chip
  peak: float  # bf16 FLOP
  hbm: float  # bytes that the compiler allows, per chip
  hbm_bandwidth: float  # bytes
  link: float  # bytes over one link, one way
  dcn: float  # bytes over the data-centre network
  clock: float  # Hz of the matrix units
  side: int  # of a matrix unit: products of other sizes are padded
  vector: float  # operations of the vector units
  config_name: str  # libtpu's name for the use of its cores
  host: Shape  # bounds of a host, in chips
  small: tuple[Shape, ...]  # shapes smaller than a cube; in 2-D all shapes
  largest: int  # chips in the largest slice
  cores: int  # per chip, as the number in an accelerator name counts
  prefixes: tuple[str, ...]  # of accelerator names

  @property
  def dimensions(self) -> int:
    """Dimensions of the network: 2 or 3."""
    return len(self.small[0])


_SMALL_2D = (
  *((1, 1), (2, 2), (2, 4), (4, 4)),
  *((4, 8), (8, 8), (8, 16), (16, 16)),
)
_SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

CHIPS = {
  chip.name: chip
  for chip in (
    Chip(
      name='v4',
      kind='TPU v4',
      devices=1,
      peak=275e12,
      hbm=30.75 * GIB,
      hbm_bandwidth=1200e9,
      link=45e9,
      dcn=6.25e9,  # not published: as v5p
      clock=1.05e9,
      side=128,
      vector=2 * 128 * 16 * 1.05e9,
      config_name='megacore',
      host=(2, 2, 1),
      small=_SMALL_3D,
      largest=4096,
      cores=2,
      prefixes=('v4',),
    ),
    Chip(
      name='v5e',
      kind='TPU v5 lite',
      devices=1,
      peak=197e12,
      hbm=15.75 * GIB,
      hbm_bandwidth=819e9,
      link=45e9,
      dcn=200e9 / 8 / 8,  # two cards of 100 Gbit/s for the 8 chips of a host
      clock=1.5e9,
      side=128,
      vector=8 * 128 * 4 * 1.5e9,
      config_name='default',
      host=(2, 2, 1),
      small=_SMALL_2D,
      largest=256,
      cores=1,
      prefixes=('v5litepod', 'v5e'),
    ),
    Chip(
      name='v5p',
      kind='TPU v5',
      devices=1,
      peak=459e12,
      hbm=95.74 * GIB,
      hbm_bandwidth=2765e9,
      link=90e9,
      dcn=50e9 / 8,
      clock=1.75e9,
      side=128,
      vector=2 * 8 * 128 * 4 * 1.75e9,
      config_name='megacore',
      host=(2, 2, 1),
      small=_SMALL_3D,
      largest=6144,
      cores=2,
      prefixes=('v5p',),
    ),
    Chip(
      name='v6e',
      kind='TPU v6 lite',
      devices=1,
      peak=918e12,
      hbm=31.25 * GIB,
      hbm_bandwidth=1638e9,
      link=90e9,
      dcn=6.25e9,  # as v5p; a host has four cards of 200 Gbit/s at best
      clock=1.75e9,
      side=256,
      vector=8 * 128 * 4 * 1.75e9,
      config_name='default',
      host=(2, 2, 1),
      small=_SMALL_2D,
      largest=256,
      cores=1,
      prefixes=('v6e',),
    ),
    Chip(
      name='tpu7x',
      kind='TPU7x',
      devices=2,
      peak=2307e12,
      hbm=2 * 94.75 * GIB,
      hbm_bandwidth=7380e9,
      link=90e9,  # assumed: a third of 1.2 TB/s both ways over six links
      dcn=6.25e9,  # assumed: as v5p
      clock=1.9e9,  # assumed
      side=256,
      vector=2 * 8 * 128 * 4 * 1.9e9,  # assumed: as v6e, in two cores
      config_name='default',
      host=(2, 2, 1),
      small=_SMALL_3D,
      largest=9216,
      cores=2,
      prefixes=('tpu7x',),
    ),
  )
}


# TPU slices that Google sells, of the chips in `generations`.


__all__ = ['CHIPS', 'GIB', 'Chip', 'Shape', 'Slices', 'parse', 'sold']

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
    """Machines in all slices: those that `launch/` starts the run on.

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

  A name means the most cubic shape with that number of chips.

  Args:
    text: value of --topology.
    number: of slices.
  """
  if number < 1:
    raise UsageError(f'--slices={number}: must be at least 1')
  wrong = f'--topology={text}:'
  if found := re.fullmatch(r'(\w+):(\d+(?:x\d+)+)', text.strip()):
    chip = CHIPS.get(found[1])
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
        f'{wrong} no such slice is sold; the nearest: '
        + _nearest(chip, math.prod(shape), shape)
      )
    return Slices(chip, shape, number)
  if found := re.fullmatch(r'(\w+)-(\d+)', text.strip()):
    for chip in CHIPS.values():
      if found[1] in chip.prefixes:
        return Slices(chip, _named(chip, int(found[2]), wrong), number)
  raise UsageError(f'{wrong} no slice is named so; {CHOICES}')


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


def _named(chip: Chip, count: int, wrong: str) -> Shape:
  """The shape that an accelerator name stands for."""
  chips, rest = divmod(count, chip.cores)
  found = [shape for shape in sold(chip) if math.prod(shape) == chips]
  if rest or not found:
    unit = 'chips' if chip.cores == 1 else 'cores, two a chip'
    raise UsageError(
      f'{wrong} no slice of so many {unit} is sold; the nearest: '
      + _nearest(chip, chips, ())
    )
  return found[0]


def _nearest(chip: Chip, chips: int, shape: Shape) -> str:
  """The sold shapes nearest in number of chips, at most three."""
  # A transposed shape is the likely intention.
  same = [s for s in sold(chip) if sorted(s) == sorted(shape)]
  by_size = {}
  for found in sold(chip):
    by_size.setdefault(math.prod(found), found)
  below = [s for n, s in by_size.items() if n <= chips][-1:]
  above = [s for n, s in by_size.items() if n > chips][:1]
  return ', '.join(
    f'{chip.name}:{_text(s)} ({math.prod(s)} chips)'
    for s in same or below + above
  )


def _text(shape: Shape) -> str:
  return 'x'.join(str(n) for n in shape)


# Peak FLOP/s of accelerators under their cloud names, such as v4-512.


class Kind(NamedTuple):
  """A generation of accelerators."""

  peak: float  # dense bf16 FLOP/s of a chip
  units_per_chip: int  # what the number in the name counts: cores, or chips


class Chips(NamedTuple):
  """A number of chips of one kind."""

  count: int
  peak: float  # dense bf16 FLOP/s of one


def parse_chips(name: str) -> Chips:
  """Reads a name such as v4-512: 512 cores, which are 256 chips."""
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
    for chip in CHIPS.values()
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
  found = parse_chips(chips)
  flops = found.count * found.peak * mfu * days * 86_400
  return flops, {
    'chips': found.count,
    'peak_flops_per_second_and_chip': found.peak,
    'mfu': mfu,
    'days': days,
  }
