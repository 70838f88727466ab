# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of a config.json."""

import math
from typing import Any, NamedTuple

from gpt_jax import ranges
from gpt_jax.spec import UsageError

# Parts of the names of sizes that no tensor need have: positions without a
# table, windows, limits.
_FREE = ('position', 'n_ctx', 'window', 'distance', 'capacity', 'bos', 'eos')


class Bounds(NamedTuple):
  """What the files hold, which no size exceeds.

  Attributes:
    tensors: their number. Layers may share one, so 1,000 are never too many.
    numbers: in all tensors.
  """

  tensors: int
  numbers: int


class Options:
  """A config.json, read with complaints that name the option."""

  def __init__(self, values: dict[str, Any], bounds: Bounds | None = None):
    """`values` is the parsed file; without `bounds` there are no files."""
    self._values, self._bounds = values, bounds

  def fail(self, name: str, why: str) -> UsageError:
    """The error to raise about an option."""
    return UsageError(f'config.json: {name}={self._values.get(name)!r}: {why}')

  def get(self, name: str, default: Any = None) -> Any:
    """The value, or `default` where there is none or it is null."""
    value = self._values.get(name)
    return default if value is None else value

  def has(self, name: str) -> bool:
    """Whether it is there, be it null."""
    return name in self._values

  def size(self, name: str, default: int | None = None) -> int:
    """A whole number from 1; without a default it must be there."""
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise self.fail(name, 'must be a whole number from 1')
    if value > (most := self._most(name)):
      raise self.fail(
        name, f'is more than the files can hold, {most:,}; copy them again'
      )
    return value

  def _most(self, name: str) -> int:
    """The largest size: nothing larger is tried, however it would fail."""
    if self._bounds is None or any(part in name for part in _FREE):
      return ranges.INT32
    if 'layer' in name:
      return max(self._bounds.tensors, 1000)
    return min(self._bounds.numbers, ranges.INT32)

  def whole(self, name: str, default: int) -> int:
    """A whole number, which may be negative for none."""
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
      raise self.fail(name, 'must be a whole number')
    if value > 0:
      self.size(name)
    return value

  def number(self, name: str, default: float | None = None) -> float:
    """A number; without a default it must be there."""
    value = self.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
      raise self.fail(name, 'must be a number')
    if isinstance(value, float) and not math.isfinite(value):
      raise self.fail(name, 'must be a finite number')
    if abs(value) > ranges.LARGEST:
      raise self.fail(name, 'must be a number that float32 holds')
    return value if abs(value) <= ranges.INT32 else float(value)

  def flag(self, name: str, default: bool) -> bool:
    """True or false."""
    value = self.get(name, default)
    if not isinstance(value, bool):
      raise self.fail(name, 'must be true or false')
    return value

  def choice(self, name: str, choices: dict[str, str], default: str) -> str:
    """What `choices` has for the value."""
    value = self.get(name, default)
    if not isinstance(value, str) or value not in choices:
      known = ', '.join(choices)
      raise self.fail(name, f'is not supported; one of {known}')
    return choices[value]

  def only(self, name: str, *accepted: Any) -> None:
    """Refuses what we do not compute; null and absence are accepted."""
    if self.get(name, accepted[0]) not in accepted:
      known = ' or '.join(repr(a) for a in accepted)
      raise self.fail(name, f'is not supported, only {known}')
