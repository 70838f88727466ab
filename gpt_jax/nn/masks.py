# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which keys a query may see: the attention patterns."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from gpt_jax.spec import UsageError


class Pattern(NamedTuple):
  """A causal pattern: query i sees key j iff i - window < j <= i.

  `window` None means no lower bound.
  """

  window: int | None

  def visible(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """True where the key at one position is seen from the query at another.

    The arguments are integer positions that broadcast against each other.
    """
    seen = key <= query
    if self.window is not None:
      seen &= query - key < self.window
    return seen


def full() -> Pattern:
  """Every token sees itself and all before it."""
  return Pattern(window=None)


def local(window: int) -> Pattern:
  """Every token sees itself and the `window` - 1 tokens before it."""
  if window < 1:
    raise UsageError(f'model.attention: window={window} must be at least 1')
  return Pattern(window=window)


PATTERNS: dict[str, Callable[..., Pattern]] = {'full': full, 'local': local}
