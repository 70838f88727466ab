# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is in the records of tasks, by its type.

Whatever is not as it must be is refused: a list that is a text would become a
choice for each letter, and a null the text 'None'.
"""

from collections.abc import Sequence
from typing import Any

from gpt_jax.data.records import Record
from gpt_jax.spec import UsageError


def text(record: Record, column: str) -> str:
  """The text in a column.

  Raises:
    UsageError: there is none, or something else.
  """
  value = record[column]
  if not isinstance(value, str):
    raise UsageError(
      f'{record.where}: {column}={value!r} is no text; mend or remove the line'
    )
  return value


def texts(where: str, column: str, value: Any) -> tuple[str, ...]:
  """A list of at least one text.

  Args:
    where: 'file:line', for errors.
    column: that the value is from, for errors.
    value: of the column, or a part of it.

  Raises:
    UsageError: it is something else.
  """
  if (
    not isinstance(value, list)
    or not value
    or not all(isinstance(x, str) for x in value)
  ):
    raise UsageError(
      f'{where}: {column}={value!r} is no list of texts; write it as '
      '["one", "another"]'
    )
  return tuple(value)


def label(where: str, value: Any, names: Sequence[object]) -> int:
  """The number of the right choice.

  Args:
    where: 'file:line', for errors.
    value: one of the names, or a text of it.
    names: of the choices, in order: their numbers, or letters.

  Raises:
    UsageError: it is none of them.
  """
  known = [str(name) for name in names]
  if str(value) not in known:
    raise UsageError(
      f'{where}: label {value!r} is none of its {len(known)} choices, which '
      f'are {", ".join(known)}; mend or remove the line'
    )
  return known.index(str(value))
