# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention patterns, and the masks of keys that each query sees."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.attention_dropout import hashed
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError

# BigBird's blocks (Zaheer et al., 2020: Big Bird: Transformers for Longer
# Sequences, section 2).
#
# Global tokens see all. The tokens between them see the global ones, the blocks
# around their own, and a few random blocks. `nn.bigbird` computes it.


class Blocks(NamedTuple):
  """The blocks of the pattern `bigbird`.

  Attributes:
    size: tokens of a block.
    window: blocks of the window, an odd number.
    random: random blocks for each head and block of queries.
    extra: global tokens before the row; 0: its first and last block are global.
    first: whether the first block replaces each random one, and is counted once
      more each time.
    seed: of the random blocks.
  """

  size: int
  window: int
  random: int
  extra: int
  first: bool
  seed: int

  def between(self, length: int) -> tuple[int, int] | None:
    """Start and end of the tokens that are not global.

    None for rows of a few blocks, which random ones would nearly fill: as in
    transformers, all their tokens see all.

    Args:
      length: of a row, with its extra tokens.
    """
    ends = 0 if self.extra else 2
    number = -(-(length - self.extra) // self.size)
    if number <= ends + self.window + 2 * self.random:
      return None
    if self.extra:
      return self.extra, length
    return self.size, (number - 1) * self.size

  def count(self, length: int) -> np.ndarray:
    """The number of keys that each query of a row sees, int64 [length].

    A random block counts in full, even if it is the row's last and shorter.
    """
    seen = np.full(length, length, np.int64)
    ends = self.between(length)
    if ends is None:
      return seen
    start, stop = ends
    query = np.arange(stop - start) // self.size
    around = self.window // 2
    first = np.maximum(query - around, 0) * self.size
    last = np.minimum((query + around + 1) * self.size, stop - start)
    drawn = 0 if self.first else self.random * self.size
    seen[start:stop] = length - (stop - start) + last - first + drawn
    return seen


def random_blocks(
  blocks: Blocks, layer: jax.Array | int, num_heads: int, number: int
) -> jax.Array:
  """The random blocks of each head and block of queries, int32 [H, N, random].

  They are drawn without replacement from the `number` blocks between the global
  ones, outside the window. They follow from seed, layer, head and block by
  arithmetic in 32 bits: they are the same on every host, device and mesh, in
  each step and after a resume.
  """
  key = jnp.asarray(layer).astype(jnp.uint32)
  key = hashed(key ^ hashed(jnp.uint32(blocks.seed)))
  head = jnp.arange(num_heads, dtype=jnp.uint32)[:, None, None]
  query = jnp.arange(number)[None, :, None]
  seen = jnp.arange(number)[None, None]
  for index in (head, query, seen):
    key = hashed(key ^ index.astype(jnp.uint32))
  around = jnp.abs(query - seen) <= blocks.window // 2
  rank = jnp.where(around, -1, (key >> 1).astype(jnp.int32))
  return jax.lax.top_k(rank, blocks.random)[1]


class Recurrent(NamedTuple):
  """A layer that reads its tokens in order, in place of a block of attention.

  Attributes:
    make: the factory of the layer, which is called as a `block.Block`.
    width: of its output.
    cells: number of cells, for each direction.
    directions: see `lstm`.
    residual: whether its input, which is as wide, is added to its output.
    attends: whether it attends to the encoder's output.
  """

  make: Callable[..., Any]
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
  """A pattern is a rule on positions, and the bounds that follow from it.

  Attributes:
    name: as in the config.
    rule: bool function of query and key positions, counted from the start of
      their document; None sees all.
    causal: no query sees a later key.
    window: a query sees no key further back than `window` - 1; None: no bound.
    count: from the queries' positions to the number of keys that the rule shows
      each; needed with a rule or blocks.
    blocks: the blocks that are seen, which differ between layers and heads, so
      that no rule on positions covers them; None: there are none.
    recurrent: the layer in place of attention; None: the layer attends.
  """

  name: str
  rule: Callable[[jax.Array, jax.Array], jax.Array] | None = None
  causal: bool = True
  window: int | None = None
  count: Callable[[np.ndarray], np.ndarray] | None = None
  blocks: Blocks | None = None
  recurrent: Recurrent | None = None

  def visible(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """True if a query at one position sees a key at another.

    The arguments are integer positions that broadcast against each other.
    """
    seen = self.within_bounds(query, key)
    return seen if self.rule is None else seen & self.rule(query, key)

  def within_bounds(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """Whether `causal` and `window` allow it, by the distance alone."""
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
  return Pattern('local', window=window)


def strided(stride: Count) -> Pattern:
  """The last `stride` tokens, and every `stride`-th before (Sparse
  Transformer, Child et al. 2019, section 4.3; both sets in one head).
  """

  def rule(query: jax.Array, key: jax.Array) -> jax.Array:
    distance = query - key
    return (distance < stride) | (distance % stride == 0)

  def count(query: np.ndarray) -> np.ndarray:
    # Distances 0 to stride - 1, then stride, 2 * stride, ...
    return np.minimum(query + 1, stride) + query // stride

  return Pattern('strided', rule=rule, count=count)


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

  def count(query: np.ndarray) -> np.ndarray:
    return query % stride + 1 + query // stride * summary

  return Pattern('fixed', rule=rule, count=count)


def bigbird(
  block: Count = 64,
  window: Count = 3,
  random: Whole = 3,
  extra: Whole = 0,
  draw: Literal['uniform', 'first'] = 'uniform',
  seed: Whole = 0,
) -> Pattern:
  """Global tokens, a window of blocks, random blocks (Zaheer et al., 2020).

  Global tokens see all and are seen by all. With `extra=0` they are those of
  the first and the last block (section 2: the internal construction, ITC);
  otherwise `extra` learned ones before each row (extended, ETC). In rows of up
  to window + 2 * random blocks beside the two global ones, all see all.

  Args:
    block: tokens of a block.
    window: blocks of the window around a block, including itself.
    random: random blocks, drawn for each layer, head and block.
    extra: global tokens beside those of the row.
    draw: 'uniform', or 'first': the first block replaces each random one, as
      transformers does in evaluation.
    seed: of the random blocks.
  """
  if window % 2 == 0:
    raise UsageError(
      f'model.attention: window={window} is even; a block has as many before '
      f'it as after it, take {window + 1}'
    )
  if draw == 'first' and extra:
    raise UsageError(
      f"model.attention: draw='first' with extra={extra}: no block of the row "
      "is global then; take draw='uniform'"
    )
  blocks = Blocks(block, window, random, extra, draw == 'first', seed)
  return Pattern(
    'bigbird',
    causal=False,
    count=lambda query: blocks.count(len(query)),
    blocks=blocks,
  )


# Masks: which keys each query sees.
#
# They follow from data that travel with the tokens, so that neither queries nor
# keys need to be a whole row, or in order.


class Tokens(NamedTuple):
  """The data of tokens that decide visibility: [B or 1, N], or None if unused.

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
    prefix_B: see `attend.Visibility`.
    given_BLM: a further mask, which only hides keys; None: there is none.
  """

  def pairs(of_query: jax.Array, of_key: jax.Array):
    return of_query[:, :, None], of_key[:, None]

  places = query.places, key.places
  if pattern is None:
    shape = jnp.broadcast_shapes(*(x.shape for x in pairs(*places)))
    mask = jnp.ones(shape, bool)
  else:
    mask = pattern.within_bounds(*pairs(*places))
  if pattern is not None and prefix_B is not None:
    both_ways = pattern._replace(causal=False)
    within = both_ways.within_bounds(*pairs(*places))
    inside_BM = key.places < prefix_B[:, None]
    mask |= within & inside_BM[:, None]
  if pattern is not None and pattern.rule is not None:
    assert query.positions is not None and key.positions is not None
    # Rules count positions from the start of each packed document.
    mask &= pattern.rule(*pairs(query.positions, key.positions))
  if key.real is not None:
    mask &= key.real[:, None]
  if key.segments is not None:
    assert query.segments is not None
    mask &= query.segments[:, :, None] == key.segments[:, None]
  if given_BLM is not None:
    mask &= given_BLM
  return mask


def may_see(
  pattern: Pattern,
  query: Tokens,
  key: Tokens,
  prefix_B: jax.Array | None = None,
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
