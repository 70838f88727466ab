# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which keys a query may see: the attention patterns."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError


class Pattern(NamedTuple):
  """A pattern is a rule on positions, and the bounds that follow from it.

  Attributes:
    rule: bool function of query and key positions; None sees all.
    causal: no query sees a later key.
    window: a query sees no key further back than `window` - 1; None: no bound.
  """

  rule: Callable[[jax.Array, jax.Array], jax.Array] | None = None
  causal: bool = True
  window: int | None = None

  def visible(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """True where the key at one position is seen from the query at another.

    The arguments are integer positions that broadcast against each other.
    """
    seen = key <= query if self.causal else (key <= query) | (key > query)
    if self.window is not None:
      seen &= query - key < self.window
    if self.rule is not None:
      seen &= self.rule(query, key)
    return seen


def full() -> Pattern:
  """Every token sees itself and all before it."""
  return Pattern()


def bidirectional() -> Pattern:
  """Every token sees every token (encoders)."""
  return Pattern(causal=False)


def local(window: Count) -> Pattern:
  """Every token sees itself and the `window` - 1 tokens before it."""
  return Pattern(window=window)


def strided(stride: Count) -> Pattern:
  """The last `stride` tokens, and every `stride`-th before (Sparse
  Transformer, Child et al. 2019, section 4.3; both sets in one head).
  """

  def rule(query: jax.Array, key: jax.Array) -> jax.Array:
    distance = query - key
    return (distance < stride) | (distance % stride == 0)

  return Pattern(rule=rule)


def fixed(stride: Count, summary: Count = 1) -> Pattern:
  """The token's own block of `stride`, and the last `summary` tokens of each
  block before (Sparse Transformer, section 4.3; both sets in one head).
  """
  if summary > stride:
    raise UsageError(
      f'model.attention: summary={summary} is longer than a block of stride='
      f'{stride}; at most {stride}'
    )

  def rule(query: jax.Array, key: jax.Array) -> jax.Array:
    same = query // stride == key // stride
    return same | (key % stride >= stride - summary)

  return Pattern(rule=rule)


PATTERNS: dict[str, Callable[..., Pattern]] = {
  'bidirectional': bidirectional,
  'fixed': fixed,
  'full': full,
  'local': local,
  'strided': strided,
}
