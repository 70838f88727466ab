# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a row are masked, and what stands in their places.

NumPy, on the host. All random choices of a row come from its own generator, so
that they are the same whatever rows stand beside it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpt_jax.data.rows import MASKING, Keys, Rows


class Masking(NamedTuple):
  """How tokens are chosen, and what becomes of them.

  Attributes:
    rate: of a row's tokens, [CLS] and [SEP] counted, that are chosen.
    mask: of the chosen ones that become [MASK].
    random: of the chosen ones that become a token drawn from the vocabulary,
      which may be the token itself. The rest stays.
    words: whether whole words are chosen; else single tokens.
    runs: the probabilities that 1, 2, ... words, or tokens, in a row are chosen
      together: see `ngrams`.
    vocab_size: of the tokenizer; 0: not known yet, and nothing is replaced.
    mask_id: of [MASK].
    most: of a row of so many tokens the most that are chosen; None: `rate` of
      them, rounded up.
  """

  rate: float
  mask: float
  random: float
  words: bool = False
  runs: tuple[float, ...] = (1.0,)
  vocab_size: int = 0
  mask_id: int = 0
  most: Callable[[int], int] | None = None

  def places(self, length: int) -> int:
    """The most tokens that are chosen in a row of `length`."""
    if self.most is not None:
      return max(self.most(length), 1)
    # 0.15 x 20 is 3, not what floats make of it.
    return max(math.ceil(self.rate * length - 1e-9), 1)

  def __call__(
    self, rows: Rows, keys: Keys, starts: np.ndarray | None
  ) -> dict[str, np.ndarray]:
    """Chooses and replaces.

    Args:
      rows: B rows of L tokens.
      keys: of the rows.
      starts: bool [B, L], which tokens begin a word, where words are chosen.

    Returns:
      `inputs` int32 [B, L], and with P = `places(L)`: `masked_positions` and
      `masked_targets` int32 [B, P], ascending, and `masked_weights` float32
      [B, P], 1 where a place holds a chosen token.
    """
    L = rows.tokens.shape[1]
    P = self.places(L)
    # Of each row: what rounds the number, an order of its tokens, and two for
    # what becomes of the chosen ones.
    generators = keys.generators(MASKING)
    draws = np.stack([g.random(1 + L + 2 * P) for g in generators])
    order_BL = draws[:, 1 : 1 + L]
    fate_BP, token_BP = draws[:, 1 + L : -P], draws[:, -P:]
    open_BL = rows.real if rows.special is None else rows.real & ~rows.special
    count_B = self._count(rows.real, draws[:, 0])
    count_B = np.minimum(np.minimum(count_B, open_BL.sum(axis=1)), P)
    if self.words or len(self.runs) > 1:
      begins_BL = open_BL if starts is None else starts
      each = zip(open_BL, begins_BL, count_B, generators, strict=True)
      chosen_BL = np.stack([self._spans(*row) for row in each])
    else:
      rank_BL = np.argsort(np.argsort(np.where(open_BL, order_BL, 2.0)))
      chosen_BL = rank_BL < count_B[:, None]
    # The chosen positions in ascending order, then whatever else there is.
    positions_BP = np.argsort(~chosen_BL, axis=1, kind='stable')[:, :P]
    weights_BP = np.take_along_axis(chosen_BL, positions_BP, axis=1)
    targets_BP = np.take_along_axis(rows.tokens, positions_BP, axis=1)
    new_BP = self.replaced(targets_BP, fate_BP, token_BP)
    new_BP = np.where(weights_BP, new_BP, targets_BP)
    inputs_BL = np.array(rows.tokens)
    np.put_along_axis(inputs_BL, positions_BP, new_BP, axis=1)
    return {
      'inputs': inputs_BL,
      'masked_positions': positions_BP.astype(np.int32),
      'masked_targets': targets_BP,
      'masked_weights': weights_BP.astype(np.float32),
    }

  def replaced(
    self, ids: np.ndarray, fate: np.ndarray, token: np.ndarray
  ) -> np.ndarray:
    """What stands in the places of chosen tokens, by two draws below 1.

    Args:
      ids: int32, the tokens.
      fate: of each: [MASK], a random token or itself.
      token: of each: which random one.
    """
    drawn = (token * self.vocab_size).astype(np.int32)
    new = np.where(fate < self.mask + self.random, drawn, ids)
    return np.where(fate < self.mask, np.int32(self.mask_id), new)

  def _count(self, real_BL: np.ndarray, draw_B: np.ndarray) -> np.ndarray:
    """How many tokens of each row to choose: `rate` of them on average."""
    wanted_B = self.rate * real_BL.sum(axis=1)
    # Rounded up as often as makes the mean right; 3.0000000000000004 is 3.
    count_B = np.floor(wanted_B - 1e-9 + draw_B).astype(np.int64)
    return np.maximum(count_B, real_BL.any(axis=1))

  def _spans(
    self,
    open_L: np.ndarray,
    starts_L: np.ndarray,
    count: int,
    generator: np.random.Generator,
  ) -> np.ndarray:
    """Chooses whole words, or runs of tokens or words; bool [L].

    In a random order of their first words; a run that would be too much is
    shortened, and a word that would be is left out (as in the released code of
    BERT and ALBERT), so that rarely fewer than `count` are chosen.
    """
    bounds = _units(open_L, starts_L)
    chosen_L = np.zeros(len(open_L), bool)
    sizes = np.arange(1, len(self.runs) + 1)
    lengths = generator.choice(sizes, size=len(bounds), p=self.runs)
    left = count
    for first in generator.permutation(len(bounds)).tolist():
      if not left:
        break
      for n in range(int(lengths[first]), 0, -1):
        run = bounds[first : first + n]
        # Words of a run stand side by side: none is special or padding.
        if len(run) < n or np.any(run[1:, 0] != run[:-1, 1]):
          continue
        begin, end = run[0, 0], run[-1, 1]
        if end - begin <= left and not chosen_L[begin:end].any():
          chosen_L[begin:end] = True
          left -= int(end - begin)
          break
    return chosen_L


def ngrams(longest: int) -> tuple[float, ...]:
  """Runs of n up to `longest`, p(n) = (1/n) / sum(1/k) (ALBERT, eq. 1)."""
  weights = 1 / np.arange(1, longest + 1)
  return tuple((weights / np.sum(weights)).tolist())


def masked_batch(
  rows: Rows,
  keys: Keys,
  places: Callable[[int], int],
  masking: Masking | None,
  starts: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """A batch of rows of which a model does not see some tokens.

  Args:
    rows: B rows of L tokens.
    keys: of the rows.
    places: that of `masking`.
    masking: chooses; None: rows without text, of which nothing is chosen.
    starts: see `Masking`.

  Returns:
    What `Masking` gives, `mask` bool [B, L], False for padding, and of
    `token_types`, `segments` and `positions` those that the rows have.
  """
  batch: dict[str, np.ndarray] = {'mask': rows.real}
  if masking is None:
    assert not rows.real.any(), 'rows of text need their tokenizer'
    blank = np.zeros((len(rows.tokens), places(rows.tokens.shape[1])), int)
    batch |= {
      'inputs': rows.tokens,
      'masked_positions': blank.astype(np.int32),
      'masked_targets': blank.astype(np.int32),
      'masked_weights': blank.astype(np.float32),
    }
  else:
    batch |= masking(rows, keys, starts)
  for name in ('token_types', 'segments', 'positions'):
    if (value := getattr(rows, name)) is not None:
      batch[name] = value
  return batch


def _units(open_L: np.ndarray, starts_L: np.ndarray) -> np.ndarray:
  """Begin and end of each unit that may be chosen; int [N, 2]."""
  begins = open_L.copy()
  # What goes on with a word from before the row, or a special token, is one.
  begins[1:] &= starts_L[1:] | ~open_L[:-1]
  ends = open_L & np.append(begins[1:] | ~open_L[1:], True)
  return np.stack([np.flatnonzero(begins), np.flatnonzero(ends) + 1], axis=1)
