# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which keys a query may see: the attention patterns."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from gpt_jax.nn.blocks import Blocks
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError


class Pattern(NamedTuple):
  """A pattern is a rule on positions, and the bounds that follow from it.

  Attributes:
    rule: bool function of query and key positions, counted from the start of
      their document; None sees all.
    causal: no query sees a later key.
    window: a query sees no key further back than `window` - 1; None: no bound.
    count: how many keys the rule shows a query, from the queries' positions;
      where there is a rule, or are blocks.
    blocks: what is seen in blocks, which differ between layers and heads and
      are no rule on positions; None: the above is all.
  """

  rule: Callable[[jax.Array, jax.Array], jax.Array] | None = None
  causal: bool = True
  window: int | None = None
  count: Callable[[np.ndarray], np.ndarray] | None = None
  blocks: Blocks | None = None

  def visible(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """True where the key at one position is seen from the query at another.

    The arguments are integer positions that broadcast against each other.
    """
    seen = self.within_bounds(query, key)
    return seen if self.rule is None else seen & self.rule(query, key)

  def within_bounds(self, query: jax.Array, key: jax.Array) -> jax.Array:
    """What `causal` and `window` allow: it depends on distances alone."""
    assert self.blocks is None, 'what is seen depends on layer and head'
    seen = key <= query if self.causal else (key <= query) | (key > query)
    if self.window is not None:
      seen &= query - key < self.window
    return seen

  def num_visible(self, length: int) -> np.ndarray:
    """How many keys each query of a row sees, int64 [length].

    Equal to the row sums of `visible`, without the square of the length.
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

  def count(query: np.ndarray) -> np.ndarray:
    # Distances 0 to stride - 1, then stride, 2 * stride, ...
    return np.minimum(query + 1, stride) + query // stride

  return Pattern(rule=rule, count=count)


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

  return Pattern(rule=rule, count=count)


def bigbird(
  block: Count = 64,
  window: Count = 3,
  random: Whole = 3,
  extra: Whole = 0,
  draw: str = 'uniform',
  seed: Whole = 0,
) -> Pattern:
  """Global tokens, the blocks around, and random blocks (Zaheer et al., 2020).

  Global tokens see all and are seen by all. With `extra=0` they are those of
  the first and the last block (section 2: the internal construction, ITC);
  otherwise so many learned ones before each row (extended, ETC). Rows of up to
  window + 2 * random blocks, and the two global ones, are seen as a whole.

  Args:
    block: tokens of a block.
    window: blocks that a block sees around itself, with itself.
    random: further blocks, others for each layer, head and block.
    extra: global tokens beside those of the row.
    draw: 'uniform', or 'first': the first block stands for each random one,
      which is what transformers evaluates.
    seed: of the random blocks.
  """
  if window % 2 == 0:
    raise UsageError(
      f'model.attention: window={window} is even; a block has as many before '
      f'it as after it, take {window + 1}'
    )
  if draw not in ('uniform', 'first'):
    raise UsageError(
      f'model.attention: draw={draw!r}: unknown; one of uniform, first'
    )
  if draw == 'first' and extra:
    raise UsageError(
      f"model.attention: draw='first' with extra={extra}: no block of the row "
      "is global then; take draw='uniform'"
    )
  blocks = Blocks(block, window, random, extra, draw == 'first', seed)
  return Pattern(
    causal=False,
    count=lambda query: blocks.count(len(query)),
    blocks=blocks,
  )


PATTERNS: dict[str, Callable[..., Pattern]] = {
  'bidirectional': bidirectional,
  'bigbird': bigbird,
  'fixed': fixed,
  'full': full,
  'local': local,
  'strided': strided,
}
