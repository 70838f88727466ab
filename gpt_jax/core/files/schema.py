# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks what a JSON file holds against types, as a crash may have changed it.

A `TypedDict` declares an object: the fields that it must have, and the kinds
of those that it may have; others may be anything. Numbers have the ranges of
`ranges`; a plain `float` may be infinite or NaN, as a loss may.
"""

import math
import types
import typing
from typing import Any

from gpt_jax.core import ranges

_INT = ranges.whole(-ranges.INT64, ranges.INT64)
_FLOAT = ranges.number(-ranges.LARGEST)
_NAMES = {str: 'a text', bool: 'true or false', dict: 'an object', types.NoneType: 'null'}


def problem(value: Any, kind: Any, name: str = '') -> str:
  """Says what does not fit: 'devices.0.id must be a whole number'.

  Args:
    value: of parsed JSON.
    kind: a type, an annotation of `ranges`, a list or dict of such, a union
      with None, or a `TypedDict`.
    name: of the value, for the message.

  Returns:
    '' if the value fits.
  """
  if kind is Any:
    return ''
  name = name or 'it'
  origin, inside = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Required, typing.NotRequired):
    return problem(value, inside[0], name)
  if origin in (typing.Union, types.UnionType):
    said = [problem(value, part, name) for part in inside]
    return '' if '' in said else said[0]
  if typing.is_typeddict(kind):
    return _object_problem(value, kind, name)
  if origin in (list, dict):
    if not isinstance(value, origin):
      return f'{name} must be {"a list" if origin is list else "an object"}'
    items = value.items() if isinstance(value, dict) else enumerate(value)
    said = (problem(x, inside[-1], _inside(name, key)) for key, x in items)
    return next(filter(None, said), '')
  if kind is float:
    infinite = isinstance(value, float) and not math.isfinite(value)
    said = '' if infinite else _FLOAT.problem(value)
    return f'{name} {said}' if said else ''
  if kind is int or hasattr(kind, '__metadata__'):
    said = (_INT if kind is int else ranges.declared(kind)).problem(value)
    return f'{name} {said}' if said else ''
  fits = isinstance(value, kind)
  return '' if fits else f'{name} must be {_NAMES[kind]}'


def _object_problem(value: Any, kind: Any, name: str) -> str:
  if not isinstance(value, dict):
    return f'{name} must be an object'
  missing = sorted(kind.__required_keys__ - value.keys())
  if missing:
    return f'{name} lacks {", ".join(missing)}'
  fields = typing.get_type_hints(kind, include_extras=True)
  said = (
    problem(value[field], part, _inside(name, field))
    for field, part in fields.items()
    if field in value
  )
  return next(filter(None, said), '')


def _inside(name: str, key: Any) -> str:
  return str(key) if name == 'it' else f'{name}.{key}'
