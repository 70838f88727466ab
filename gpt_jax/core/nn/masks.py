# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention patterns, and the masks of keys that each query sees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.ranges import Count


class Recurrent(NamedTuple):
  """A layer that reads its tokens in order, in place of a block of attention.

  Attributes:
    make: the factory of the layer, which is called as a `block.Block`.
    make_stack: makes a stack of such layers, as `build.make_stack`.
    cells: number of cells, for each direction.
    residual: whether its input, which is as wide, is added to its output.
    attends: whether it attends to the encoder's output.
  """

  make: Callable[..., Any]
  make_stack: Callable[..., Any]
  width: int
  cells: int
  directions: str = 'forward'
  residual: bool = False
  attends: bool = False

  @property
  def state_width(self) -> int:
    """The width of each direction's output."""
    return self.width if self.directions == 'forward' else self.width // 2


class Pattern(NamedTuple):
  """Which keys a query sees, by their distance.

  Attributes:
    name: as in the config.
    causal: no query sees a later key.
    window: a query sees no key further back than `window` - 1; None: no bound.
    local: whether the layer takes the rotation of local layers, if the
      positions have one: `rope(local_theta=...)`.
    count: from the queries' places to the number of keys that each sees, if
      that does not follow from the bounds.
    blocks: the blocks that are seen, which differ between layers and heads:
      their `dense(request)` attends to them, and their `extra` tokens precede
      each row; None: there are none.
    recurrent: the layer in place of attention; None: the layer attends.
    model: the class of the models that have such layers; None: any.
  """

  name: str
  causal: bool = True
  window: int | None = None
  local: bool = False
  count: Callable[[np.ndarray], np.ndarray] | None = None
  blocks: Any = None
  recurrent: Recurrent | None = None
  model: Any = None

  def visible(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """Whether a query at one place sees a key at another; they broadcast."""
    assert self.blocks is None, 'what is seen depends on layer and head'
    seen = key <= query if self.causal else (key <= query) | (key > query)
    if self.window is not None:
      seen &= query - key < self.window
    return seen

  def num_visible(self, length: int) -> np.ndarray:
    """The number of keys that each query of a row sees, int64 [length].

    Equal to the row sums of `visible`, without its quadratic cost.
    """
    query = np.arange(length, dtype=np.int64)
    if self.count is not None:
      return self.count(query)
    seen = query + 1
    if self.window is not None:
      seen = np.minimum(seen, self.window)
    return seen if self.causal else seen + (length - 1 - query)


def full() -> Pattern:
  """Every token sees itself and all before it."""
  return Pattern('full')


def bidirectional() -> Pattern:
  """Every token sees every token (encoders)."""
  return Pattern('bidirectional', causal=False)


def local(window: Count) -> Pattern:
  """Every token sees itself and the `window` - 1 tokens before it."""
  return Pattern('local', window=window, local=True)


# Masks: which keys each query sees.
#
# They follow from data that travel with the tokens, so that neither queries nor
# keys need to be a whole row, or in order.


class Tokens(NamedTuple):
  """The data of tokens that decide visibility: [B or 1, N], or None if unused.

  Attributes:
    places: int, in their rows.
    segments: int, the document of each.
    real: bool, False for padding.
  """

  places: jax.Array
  segments: jax.Array | None = None
  real: jax.Array | None = None

  def at(self, part: slice) -> 'Tokens':
    """The data of some of the tokens."""
    return jax.tree.map(lambda x: x[:, part], self)


class Order(NamedTuple):
  """Which keys are seen by their rank, up to a bound of each query.

  XLNet's orders of prediction, where a key's rank is its place in the order,
  and the masks of UniLM's rows.

  Attributes:
    bounds_BL: int32, the highest rank that a query sees.
    ranks_BM: int32, of the keys.
  """

  bounds_BL: jax.Array
  ranks_BM: jax.Array

  def visible(self) -> jax.Array:
    """The mask of keys that each query sees, bool [B, L, M]."""
    return self.ranks_BM[:, None] <= self.bounds_BL[..., None]


def visible(
  pattern: Pattern | None,
  query: Tokens,
  key: Tokens,
  prefix_B: jax.Array | None = None,
  given_BLM: jax.Array | None = None,
) -> jax.Array:
  """The mask of keys that each query sees, bool [B or 1, L, M].

  Keys may be those of a row, a device's part of it, a cache, a memory or an
  encoder's output.

  Args:
    pattern: of the layer; None: for keys of another text, all visible.
    query: tokens of the queries.
    key: tokens of the keys.
    given_BLM: a further mask, which only hides keys; None: there is none.
  """

  def pairs(of_query: jax.Array, of_key: jax.Array):
    return of_query[:, :, None], of_key[:, None]

  places = query.places, key.places
  if pattern is None:
    shape = jnp.broadcast_shapes(*(x.shape for x in pairs(*places)))
    mask = jnp.ones(shape, bool)
  else:
    mask = pattern.visible(*pairs(*places))
  if pattern is not None and prefix_B is not None:
    both_ways = pattern._replace(causal=False)
    within = both_ways.visible(*pairs(*places))
    inside_BM = key.places < prefix_B[:, None]
    mask |= within & inside_BM[:, None]
  if key.real is not None:
    mask &= key.real[:, None]
  if key.segments is not None:
    assert query.segments is not None
    mask &= query.segments[:, :, None] == key.segments[:, None]
  if given_BLM is not None:
    mask &= given_BLM
  return mask


def may_see(
  pattern: Pattern, query: Tokens, key: Tokens, prefix_B: jax.Array | None = None
) -> jax.Array | None:
  """Whether any query may see any key; None: the pattern bounds nothing.

  It compares the ranges of places and documents, so only False is certain:
  such blocks of queries and keys can be skipped.
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
