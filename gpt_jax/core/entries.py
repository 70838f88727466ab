# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a field of the config, and an option of it, is declared, with what it needs.

A wing declares a section of its own with these, and names it in its
`choices.py` by the field 'section'.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections.config_dict import FieldReference, placeholder

from gpt_jax.core import ranges
from gpt_jax.core.ranges import OneOf, Range


def number_or_text(value: int) -> FieldReference:
  """A field that accepts a number or a text, in a file or as an override."""
  return FieldReference(value, field_type=object)


class Field(NamedTuple):
  """A field of the config: all that is known of it, in one place."""

  default: Any  # None: it may stay empty
  # The range or the names of its values; a table of the calls that it names; or
  # a type.
  takes: Any
  doc: str  # as `gpt-jax inspect --field` and docs/fields.md print it
  or_text: bool = False  # a number, or a text that `lengths` reads
  # May change when a run resumes, since the result does not depend on it.
  free: bool = False
  # Calls that its text may hold, several with commas, where the room that reads
  # the text checks them; or, of the calls that it may name, those to document.
  calls: Mapping[str, Any] | None = None
  # The field that must be set where this one is.
  needs: str = ''

  @property
  def range(self) -> Range | OneOf | None:
    """Which values it takes; None: any of its type, or calls."""
    return None if isinstance(self.takes, Mapping) else ranges.of(self.takes)

  @property
  def table(self) -> Mapping[str, Any]:
    """The calls to document."""
    return self.calls or (self.takes if isinstance(self.takes, Mapping) else {})

  @property
  def initial(self) -> Any:
    """The value in a new `ConfigDict`."""
    if self.default is None:
      return placeholder(ranges.plain(self.takes))
    return number_or_text(self.default) if self.or_text else self.default


class Option(NamedTuple):
  """What an option needs of other fields, declared beside it: a row of 'option'.

  Attributes:
    needs: field -> the value that it must have.
    check: of a config, for what a value alone cannot say.
  """

  needs: Mapping[str, Any] = MappingProxyType({})
  check: Callable[[Any], None] | None = None


class Section(dict[str, Any]):
  """The fields and sections of a section, by name.

  With `free` all its fields may change on resume, also those that users name.
  """

  def __init__(self, doc: str, /, *, free: bool = False, **entries: Any):
    """`doc` is the line above its fields in docs/fields.md."""
    super().__init__(entries)
    self.doc, self.free = doc, free
