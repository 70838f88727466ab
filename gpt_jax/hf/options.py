# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of a config.json."""

from typing import Any

from gpt_jax.spec import UsageError


class Options:
  """A config.json, read with complaints that name the option."""

  def __init__(self, values: dict[str, Any]):
    """`values` is the parsed file."""
    self._values = values

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
    return value

  def number(self, name: str, default: float | None = None) -> float:
    """A number; without a default it must be there."""
    value = self.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
      raise self.fail(name, 'must be a number')
    return value

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
