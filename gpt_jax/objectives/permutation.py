# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Orders in which the tokens of a row are predicted (XLNet, Yang et al. 2019).

NumPy, on the host. A row's order is one number for each token, its rank. The
content stream of a token sees all tokens of at most its own rank, the query
stream that predicts it those of lower ranks (equation 4). Tokens that are not
predicted (section 2.3, partial prediction) share the lowest rank: they are seen
by all, and see no prediction. Of a row of two halves those of the second are
ranked after the whole first half, which they see.

As the released code makes them (zihangdai/xlnet, data_utils.py): chosen are
runs of 1 to 5 words, p(n) ~ 1/n, each within a context of K n tokens more, and
then single tokens, until there are exactly so many; <sep> and <cls> are never
chosen, and are ranked with what is.
"""

from typing import NamedTuple

import numpy as np

from gpt_jax.data.rows import MASKING, Keys, Rows
from gpt_jax.objectives.masking import ngrams


class Permutation(NamedTuple):
  """How tokens are chosen and ranked.

  Attributes:
    context: K: one token of so many is predicted.
    runs: the probabilities that 1, 2, ... words in a row are chosen together.
    block: tokens that are ranked together; blocks have the same order, one
      after the other.
  """

  context: int
  runs: tuple[float, ...]
  block: int

  @classmethod
  def of(cls, context: int, longest: int, block: int) -> 'Permutation':
    """With runs of up to `longest` words."""
    return cls(context, ngrams(longest), block)

  def places(self, length: int) -> int:
    """How many tokens of a row are predicted: 85 of 512 with K = 6."""
    return max(length // self.context, 1)

  def __call__(
    self, rows: Rows, keys: Keys, starts: np.ndarray, segments: int = 1
  ) -> dict[str, np.ndarray]:
    """Chooses and ranks.

    Args:
      rows: B rows of L tokens.
      keys: of the rows.
      starts: bool [B, L], which tokens begin a word.
      segments: parts of the same length, of which each has its own order.

    Returns:
      `ranks` int32 [B, L], and with P = `places(L / segments)` of each segment:
      `masked_positions` and `masked_targets` int32 [B, segments * P], and
      `masked_weights` float32, 1 where a place holds a chosen token.
    """
    none_BL = np.zeros(rows.tokens.shape, bool)
    special_BL = none_BL if rows.special is None else rows.special
    reused_BL = none_BL if rows.reused is None else rows.reused
    chosen_BL, ranks_BL = none_BL.copy(), np.zeros(none_BL.shape, np.int32)
    length = rows.tokens.shape[1] // segments
    P = self.places(length)
    for row, generator in enumerate(keys.generators(MASKING)):
      open_L = rows.real[row] & ~special_BL[row]
      for begin in range(0, segments * length, length):
        segment = slice(begin, begin + length)
        # Of a row with padding fewer, as it has fewer tokens.
        goal = min(
          P, max(int(rows.real[row, segment].sum()) // self.context, 1)
        )
        order_L = np.zeros(length, np.int64)
        for place, count in _parts(reused_BL[row, segment], goal):
          chosen_BL[row, begin + place] = self._choose(
            open_L[begin + place], starts[row, begin + place], count, generator
          )
          order_L[place] = self.order(len(place), generator)
        late_L = chosen_BL[row, segment] | special_BL[row, segment]
        ranks_BL[row, segment] = ranks(order_L, late_L, reused_BL[row, segment])
    return {
      'ranks': ranks_BL,
      **_gathered(rows.tokens, chosen_BL, segments, P),
    }

  def order(self, length: int, generator: np.random.Generator) -> np.ndarray:
    """When each of so many tokens would be predicted, int64 [length]."""
    in_block = generator.permutation(self.block)
    place = np.arange(length)
    found = in_block[place % self.block] + place // self.block * self.block
    return np.argsort(np.argsort(found))  # a last block may be shorter

  def _choose(
    self,
    open_L: np.ndarray,
    starts_L: np.ndarray,
    goal: int,
    generator: np.random.Generator,
  ) -> np.ndarray:
    """Chooses `goal` tokens, or all that are open; bool [L]."""
    chosen_L = np.zeros(len(open_L), bool)
    left = min(goal, int(open_L.sum()))
    begins = np.flatnonzero(open_L & starts_L)
    # A word ends where another or a token that is not open begins.
    ends = np.flatnonzero(np.append(starts_L | ~open_L, True))
    at = 0
    while left:
      n = 1 + int(generator.choice(len(self.runs), p=self.runs))
      before = int(generator.integers(self.context * n))
      first = int(np.searchsorted(begins, at + before))
      if first == len(begins):
        break
      begin = end = int(begins[first])
      for word in begins[first : first + n].tolist():
        stop = int(ends[np.searchsorted(ends, word, side='right')])
        if word != end or stop - begin > left:
          break
        end = stop
      chosen_L[begin:end] = True
      left -= end - begin
      at = end + self.context * n - before
    rest = np.flatnonzero(open_L & ~chosen_L)
    chosen_L[generator.permutation(rest)[:left]] = True
    return chosen_L


def ranks(
  order_L: np.ndarray, late_L: np.ndarray, reused_L: np.ndarray
) -> np.ndarray:
  """The ranks of a row's tokens.

  Args:
    order_L: when each of its part would be predicted.
    late_L: bool, those that are predicted, and <sep> and <cls>.
    reused_L: bool, those of the half that the others see, if there is one.
  """
  ranks_L = np.where(late_L, order_L + 1, 0)
  return np.where(reused_L, 0, reused_L.any() * len(order_L)) + ranks_L


def _parts(reused_L: np.ndarray, goal: int) -> list[tuple[np.ndarray, int]]:
  """The places of each part of a row, and how many of them to choose."""
  if not reused_L.any():
    return [(np.arange(len(reused_L)), goal)]
  halves = np.flatnonzero(reused_L), np.flatnonzero(~reused_L)
  return list(zip(halves, (goal - goal // 2, goal // 2), strict=True))


def _gathered(
  tokens_BL: np.ndarray, chosen_BL: np.ndarray, segments: int, num_places: int
) -> dict[str, np.ndarray]:
  """What is chosen; so many places of each segment, in their order."""
  B, L = tokens_BL.shape
  # The chosen positions in ascending order, then whatever else there is.
  order = np.argsort(~chosen_BL.reshape(B, segments, -1), axis=2, kind='stable')
  order = order[:, :, :num_places] + np.arange(0, L, L // segments)[:, None]
  positions_BP = order.reshape(B, -1)
  weights_BP = np.take_along_axis(chosen_BL, positions_BP, axis=1)
  return {
    'masked_positions': positions_BP.astype(np.int32),
    'masked_targets': np.take_along_axis(tokens_BL, positions_BP, axis=1),
    'masked_weights': weights_BP.astype(np.float32),
  }
