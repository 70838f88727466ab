# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lengths of training, in steps or in tokens: 2000, '50k_steps', '1.5T_tokens'.

All are whole numbers, of at most 64 bits.
"""

import fractions
import re
from typing import Any, NamedTuple

from gpt_jax import ranges
from gpt_jax.spec import UsageError, shown

_PATTERN = re.compile(r'(\d[\d_]{,30}(?:\.\d{1,30})?)([kMGBT]?)_(steps|tokens)')
_SUFFIXES = {
  '': 1,
  'k': 10**3,
  'M': 10**6,
  'G': 10**9,
  'B': 10**9,
  'T': 10**12,
}


class Amount(NamedTuple):
  """`count` steps or tokens."""

  count: int
  unit: str  # 'steps' or 'tokens'


def parse(field: str, value: Any) -> Amount:
  """Reads a number of steps, or a text that says its unit.

  Args:
    field: where the value stands, for the error message.
    value: an int (steps), or a text such as '50k_steps' or '4.5B_tokens' with
      one of the suffixes k, M, G or B, T (powers of 1000) or none.

  Raises:
    UsageError: it is neither, or no whole number.
  """
  if type(value) is int and 0 <= value <= ranges.INT64:
    return Amount(value, 'steps')
  found = _PATTERN.fullmatch(value) if isinstance(value, str) else None
  if found:
    number, suffix, unit = found.groups()
    count = fractions.Fraction(number.replace('_', '')) * _SUFFIXES[suffix]
    if count.denominator == 1 and count <= ranges.INT64:
      return Amount(int(count), unit)
  raise UsageError(
    f'{field}={shown(value)}: give a whole number of steps or tokens, as '
    "in 2000, '50k_steps', '375M_tokens', '1.5T_tokens'"
  )
