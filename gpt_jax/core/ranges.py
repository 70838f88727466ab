# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which values an argument takes: declared once, where the argument is.

`def wsd(peak: Positive, shape: Literal['linear', 'sqrt'] = 'linear')` declares
what a call-string's arguments may be, which `spec` checks before it calls; a
plain `int` is an `Int32`, a plain `float` a `Real`. `config.defaults` does
the same for the fields of the config, `flags.Flags` for flags.
"""

import math
import types
import typing
from typing import Annotated, Any, NamedTuple

# Rates and factors are computed in float32, counts in int32.
LARGEST = 3.4028234663852886e38
SMALLEST = 1.1754943508222875e-38
INT32 = 2**31 - 1
INT64 = 2**63 - 1
# The limits of the types themselves, which `Range.text` leaves out.
_ENDS = (LARGEST, INT32, INT64)
# Whole numbers from here on are beyond what anybody gives: as if without end.
_MANY = 2**24


class Range(NamedTuple):
  """The numbers from `least` to `most`.

  Attributes:
    kind: int, or float, which takes whole numbers too.
    above: without `least` itself.
    below: without `most` itself.
  """

  kind: type
  least: float
  most: float
  above: bool = False
  below: bool = False

  def text(self) -> str:
    """As documentation says it: 'whole numbers from 1 to 64', or '>= 1'."""
    words = ['whole numbers' if self.kind is int else 'numbers']
    ends = self.most < (_MANY if self.kind is int else LARGEST)
    if abs(self.least) not in _ENDS:
      signs = ('above', 'from') if ends else ('>', '>=')
      words += [signs[0 if self.above else 1], f'{self.least:,}']
    if ends:
      words += ['below' if self.below else 'to', f'{self.most:,}']
    return ' '.join(words)

  def problem(self, value: Any) -> str:
    """Says what a value must be: 'must be at least 1'; '' if it is."""
    if isinstance(value, bool) or not isinstance(value, int | self.kind):
      return f'must be a {"whole " if self.kind is int else ""}number'
    # Not a number is neither more nor less than anything.
    if isinstance(value, float) and not math.isfinite(value):
      return 'must be a finite number'
    if value < self.least or (self.above and value == self.least):
      return f'must be {"above" if self.above else "at least"} {self.least:,}'
    if value > self.most or (self.below and value == self.most):
      most = 'the largest float32' if self.most == LARGEST else f'{self.most:,}'
      return f'must be {"below" if self.below else "at most"} {most}'
    if self.kind is float and 0 < abs(value) < SMALLEST:
      return f'must be 0, or at least {SMALLEST:.2g} in absolute value'
    return ''


class OneOf(NamedTuple):
  """A name of a table; `Literal` declares names that stand in no table."""

  names: tuple

  def text(self) -> str:
    """As documentation says it: 'cut or refuse'."""
    *first, last = (str(name) or "''" for name in self.names)
    return f'{", ".join(first)} or {last}' if first else last

  def problem(self, value: Any) -> str:
    """Says which names there are; '' if the value is one of them."""
    if any(type(value) is type(name) and value == name for name in self.names):
      return ''
    return f'is unknown; one of {", ".join(map(str, self.names))}'


def whole(least: int, most: int = INT32) -> Range:
  """Whole numbers."""
  return Range(int, least, most)


def number(
  least: float = 0, most: float = LARGEST, *, above: bool = False, below: bool = False
) -> Range:
  """Numbers that float32 can hold."""
  return Range(float, least, most, above, below)


Int32 = Annotated[int, whole(-INT32)]
Int64 = Annotated[int, whole(-INT64, INT64)]
Count = Annotated[int, whole(1)]
Whole = Annotated[int, whole(0)]
Port = Annotated[int, whole(0, 2**16 - 1)]
# jax.random.key drops what lies beyond 32 bits.
Seed = Annotated[int, whole(0, 2**32 - 1)]
Bytes = Annotated[int, whole(0, INT64)]
Real = Annotated[float, number(-LARGEST)]
Positive = Annotated[float, number(above=True)]
NotNegative = Annotated[float, number()]
# A learning rate. Adam's updates are of size 1: at 100 none can train.
Rate = Annotated[float, number(0, 100, above=True)]
# A factor on a loss or a penalty; with a larger one the other terms would be
# lost to rounding in float32.
Weight = Annotated[float, number(0, 10**6)]
# Added to a denominator; 1 would not be small.
Epsilon = Annotated[float, number(0, 1, above=True)]
# A decay rate, or a part that is dropped: 1 would keep nothing.
Fraction = Annotated[float, number(0, 1, below=True)]
Share = Annotated[float, number(0, 1, above=True)]
# A fraction strictly between 0 and 1.
Inside = Annotated[float, number(0, 1, above=True, below=True)]
Probability = Annotated[float, number(0, 1)]
# A longer wait overflows the system's clocks; this is 31 years.
Seconds = Annotated[float, number(0, 10**9)]

_PLAIN = {int: Int32, float: Real}


def of(annotation: Any) -> Range | OneOf | None:
  """What an annotation declares; None if it takes any value of its type."""
  annotation = _or_none(annotation) or annotation
  if typing.get_origin(annotation) is typing.Literal:
    return OneOf(typing.get_args(annotation))
  declared = _PLAIN.get(annotation, annotation)
  for extra in getattr(declared, '__metadata__', ()):
    if isinstance(extra, Range | OneOf):
      return extra
  return None


def declared(annotation: Any) -> Range:
  """Like `of`, of a number's annotation."""
  found = of(annotation)
  assert isinstance(found, Range), annotation
  return found


def plain(annotation: Any) -> Any:
  """The annotation without its range, as a user reads it."""
  if (part := _or_none(annotation)) is not None:
    return plain(part) | None
  found = hasattr(annotation, '__metadata__')
  return annotation.__origin__ if found else annotation


def _or_none(annotation: Any) -> Any:
  """X of `X | None`; None where it is something else."""
  parts = typing.get_args(annotation)
  kind = typing.get_origin(annotation)
  if kind not in (typing.Union, types.UnionType) or len(parts) != 2:
    return None
  first, second = parts
  return first if second is types.NoneType else None
