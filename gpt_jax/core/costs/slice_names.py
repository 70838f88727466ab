# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""TPU slices as Google Cloud sells and names them: the table of `plan` and launch/.

  python3 gpt_jax/core/costs/slice_names.py v5e-32

prints for launch/ the cloud's name, the chips, the hosts and the shape:
`v5litepod-32 32 8 4x8`; or, with exit code 2, why no slice has that name and the
nearest names. It needs only Python: the launching machine may have nothing else.

Shapes and names are from the Cloud TPU pages on each generation
(https://docs.cloud.google.com/tpu/docs/v4 and so on), read in 2026.
"""

import difflib
import functools
import itertools
import math
import re
import sys
from typing import NamedTuple

Shape = tuple[int, ...]  # of a slice, in chips


class Sold(NamedTuple):
  """The slices of a generation that are sold."""

  name: str  # of the generation, ours
  prefixes: tuple[str, ...]  # of the cloud's names, its own first
  cores: int  # per chip, as the number in a name counts: TensorCores, or chips
  # Shapes smaller than a cube; in two dimensions all shapes.
  small: tuple[Shape, ...]
  largest: int  # chips in the largest slice

  @property
  def dimensions(self) -> int:
    """Dimensions of the network: 2 or 3."""
    return len(self.small[0])

  @property
  def shapes(self) -> list[Shape]:
    """All shapes: fewest chips first, then the most cubic."""
    return _shapes(self)

  @property
  def by_chips(self) -> dict[int, Shape]:
    """For each number of chips the shape that a name means: the most cubic."""
    found: dict[int, Shape] = {}
    for shape in self.shapes:
      found.setdefault(math.prod(shape), shape)
    return found

  def named(self, chips: int) -> str:
    """The cloud's name of a slice, as in `v5litepod-32`."""
    return f'{self.prefixes[0]}-{chips * self.cores}'

  def hosts(self, shape: Shape) -> int:
    """Machines in a slice, on which `launch/` starts the run.

    A two-dimensional slice of up to 8 chips is one machine. Larger slices
    consist of machines with four chips; all slices are compiled that way.
    """
    chips = math.prod(shape)
    return 1 if self.dimensions == 2 and chips <= 8 else chips // 4


@functools.cache
def _shapes(sold: Sold) -> list[Shape]:
  """See `Sold.shapes`.

  From 64 chips on, a three-dimensional slice consists of whole cubes:
  4a x 4b x 4c with a <= b <= c.
  """
  shapes = list(sold.small)
  if sold.dimensions == 3:
    sides = range(4, sold.largest // 16 + 1, 4)
    for a, b in itertools.combinations_with_replacement(sides, 2):
      if a * b * b <= sold.largest:
        shapes += [(a, b, c) for c in range(b, sold.largest // (a * b) + 1, 4)]
  return sorted(shapes, key=lambda shape: (math.prod(shape), sum(shape)))


_SMALL_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
SOLD = {
  sold.name: sold
  for sold in (
    Sold('v4', ('v4',), 2, _SMALL_3D, 4096),
    Sold('v5e', ('v5litepod', 'v5e'), 1, _SMALL_2D, 256),
    Sold('v5p', ('v5p',), 2, _SMALL_3D, 6144),
    Sold('v6e', ('v6e',), 1, _SMALL_2D, 256),
    Sold('tpu7x', ('tpu7x',), 2, _SMALL_3D, 9216),
  )
}
PREFIXES = {prefix: sold for sold in SOLD.values() for prefix in sold.prefixes}


def resolve(name: str) -> tuple[Sold, Shape]:
  """The slice that a cloud name such as `v5p-128` means.

  Raises:
    ValueError: none has that name; says the nearest ones.
  """
  found = re.fullmatch(r'(\w+)-([1-9]\d*)', name)
  if not found:
    raise ValueError('no slice has that name; names are as ' + ', '.join(_examples()))
  prefix, number = found[1], int(found[2])
  if prefix not in PREFIXES:
    near = difflib.get_close_matches(prefix, PREFIXES, 2, 0.5)
    kinds = dict.fromkeys(PREFIXES[prefix] for prefix in near)
    names = [_nearest(sold, number)[0] for sold in kinds]
    raise ValueError('no slice has that name; the nearest: ' + ', '.join(names or _examples()))
  sold = PREFIXES[prefix]
  chips, rest = divmod(number, sold.cores)
  if rest or chips not in sold.by_chips:
    unit = 'chips' if sold.cores == 1 else f'TensorCores, {sold.cores} a chip,'
    raise ValueError(
      f'no slice of {number:,} {unit} is sold; the nearest: ' + ', '.join(_nearest(sold, number))
    )
  return sold, sold.by_chips[chips]


def _nearest(sold: Sold, number: int) -> list[str]:
  """Names with their shapes: of the same number, or the nearest below and above."""
  chips, sizes = number / sold.cores, [*sold.by_chips]
  near = [n for n in sizes if n == chips]
  near = near or [n for n in sizes if n < chips][-1:] + [n for n in sizes if n > chips][:1]
  return [f'{sold.named(n)} ({sold.name}:{text(sold.by_chips[n])})' for n in near]


def _examples() -> list[str]:
  return [sold.named(64) for sold in SOLD.values()]


def text(shape: Shape) -> str:
  """`4x8`."""
  return 'x'.join(str(n) for n in shape)


if __name__ == '__main__':
  try:
    one, its_shape = resolve(sys.argv[1])
  except ValueError as e:
    print(e)
    sys.exit(2)
  size = math.prod(its_shape)
  print(one.named(size), size, one.hosts(its_shape), text(its_shape))
