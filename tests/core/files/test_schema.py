# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What does not fit a type, in words."""

from typing import Any, NotRequired, TypedDict

import pytest

from gpt_jax.core import ranges
from gpt_jax.core.files import schema


class Part(TypedDict):
  id: int


class Whole(TypedDict):
  name: str
  parts: list[Part]
  size: NotRequired[ranges.Count | None]
  sizes: NotRequired[dict[str, int]]
  loss: NotRequired[float]


GOOD = {'name': 'x', 'parts': [{'id': 1}], 'more': {}}


@pytest.mark.parametrize(
  'more',
  [
    {},
    {'size': 3, 'sizes': {'a': 2}, 'loss': 2},
    {'size': None, 'loss': float('nan')},
    {'loss': float('-inf'), 'parts': []},
  ],
)
def test_what_fits(more):
  assert schema.problem({**GOOD, **more}, Whole) == ''


@pytest.mark.parametrize(
  ('value', 'said'),
  [
    ([], 'it must be an object'),
    ({}, 'it lacks name, parts'),
    ({**GOOD, 'name': 3}, 'name must be a text'),
    ({**GOOD, 'parts': {}}, 'parts must be a list'),
    ({**GOOD, 'parts': [{'id': 1}, 5]}, 'parts.1 must be an object'),
    ({**GOOD, 'parts': [{}]}, 'parts.0 lacks id'),
    ({**GOOD, 'parts': [{'id': True}]}, 'parts.0.id must be a whole number'),
    ({**GOOD, 'parts': [{'id': 10**30}]}, 'parts.0.id must be at most '),
    ({**GOOD, 'size': 0}, 'size must be at least 1'),
    ({**GOOD, 'sizes': {'a': None}}, 'sizes.a must be a whole number'),
    ({**GOOD, 'loss': 'x'}, 'loss must be a number'),
    ({**GOOD, 'loss': 10**400}, 'loss must be at most the largest float32'),
    ({**GOOD, 'loss': False}, 'loss must be a number'),
  ],
)
def test_what_does_not(value, said):
  assert schema.problem(value, Whole).startswith(said)


def test_anything():
  assert schema.problem(object(), Any) == ''
