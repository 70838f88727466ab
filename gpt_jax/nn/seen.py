# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of some keys each of some queries sees, by what is known of both.

Everything follows from data that go along with the tokens, so that neither
needs to be a whole row, or in order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn.masks import Pattern


class Tokens(NamedTuple):
  """Where tokens stand; each [B or 1, N], or None where nothing asks for it.

  Attributes:
    places: int, in their rows.
    positions: int, in their documents, where the pattern has a rule.
    segments: int, the document of each.
    real: bool, False for padding.
  """

  places: jax.Array
  positions: jax.Array | None = None
  segments: jax.Array | None = None
  real: jax.Array | None = None

  def at(self, part: slice) -> 'Tokens':
    """Some of them."""
    return jax.tree.map(lambda x: x[:, part], self)


def seen(
  pattern: Pattern,
  query: Tokens,
  key: Tokens,
  prefix_B: jax.Array | None = None,
  visible_BLM: jax.Array | None = None,
) -> jax.Array:
  """Bool [B or 1, L, M]; see `dot_product.Visibility` for the last two."""

  def pairs(of_query: jax.Array, of_key: jax.Array):
    return of_query[:, :, None], of_key[:, None]

  mask = pattern.within_bounds(*pairs(query.places, key.places))
  if prefix_B is not None:
    both_ways = pattern._replace(causal=False)
    within = both_ways.within_bounds(*pairs(query.places, key.places))
    inside_BM = key.places < prefix_B[:, None]
    mask |= within & inside_BM[:, None]
  if pattern.rule is not None:
    assert query.positions is not None and key.positions is not None
    # Each packed document has blocks of its own.
    mask &= pattern.rule(*pairs(query.positions, key.positions))
  if key.real is not None:
    mask &= key.real[:, None]
  if key.segments is not None:
    assert query.segments is not None
    mask &= query.segments[:, :, None] == key.segments[:, None]
  if visible_BLM is not None:
    mask &= visible_BLM
  return mask


def may_see(
  pattern: Pattern,
  query: Tokens,
  key: Tokens,
  prefix_B: jax.Array | None = None,
) -> jax.Array | None:
  """Whether any query may see any key: False is certain; None: as good as all.

  From the ends of their places and documents, so that blocks of queries and
  keys with nothing to see cost nothing.
  """
  rules = []
  if pattern.causal:
    earlier = jnp.min(key.places) <= jnp.max(query.places)
    if prefix_B is not None:
      earlier |= jnp.min(key.places) < jnp.max(prefix_B)
    rules.append(earlier)
  if pattern.window is not None:
    distance = jnp.min(query.places) - jnp.max(key.places)
    rules.append(distance < pattern.window)
  if key.segments is not None:
    assert query.segments is not None
    rules.append(jnp.min(key.segments) <= jnp.max(query.segments))
    rules.append(jnp.max(key.segments) >= jnp.min(query.segments))
  return jnp.all(jnp.stack(rules)) if rules else None
