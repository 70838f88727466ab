# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Typed access to the fields of task records.

Values of the wrong type are refused: a string in place of a list would become
one choice per letter, and null the text 'None'.
"""

from collections.abc import Sequence
from typing import Any

from gpt_jax.data.records import Record
from gpt_jax.spec import UsageError


def text(record: Record, *columns: str) -> str:
  """Returns the text in a column: in the first of these that there is.

  Raises:
    UsageError: the column is missing, or is not a text.
  """
  there = [name for name in columns if name in record.fields]
  column = (*there, columns[0])[0]
  value = record[column]
  if not isinstance(value, str):
    raise UsageError(
      f'{record.where}: {column}={value!r} is no text; mend or remove the line'
    )
  return value


def texts(where: str, column: str, value: Any) -> tuple[str, ...]:
  """Returns a non-empty list of texts.

  Args:
    where: 'file:line', for errors.
    column: of the value, for errors.
    value: of the column, or part of it.

  Raises:
    UsageError: it is not such a list.
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
  """Returns the index of the right choice.

  Args:
    where: 'file:line', for errors.
    value: one of the names, or its text.
    names: of the choices, in order: numbers or letters.

  Raises:
    UsageError: it is not one of the names.
  """
  known = [str(name) for name in names]
  if str(value) not in known:
    raise UsageError(
      f'{where}: label {value!r} is none of its {len(known)} choices, which '
      f'are {", ".join(known)}; mend or remove the line'
    )
  return known.index(str(value))
