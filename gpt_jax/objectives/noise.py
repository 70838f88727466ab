# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a text that BART is to restore (Lewis et al., 2019, 2.2).

Each corruption is a pair: a function of choices that were made, which gives the
numbers of the tokens that stay, in their new order, with `MASK` where a [MASK]
stands; and a step that draws the choices. Steps may follow one another in any
order. NumPy, on the host.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from gpt_jax import ranges
from gpt_jax.ranges import Fraction, Probability

# In place of a token's number.
MASK = -1


class Piece(NamedTuple):
  """A text, or what has become of it.

  Attributes:
    ids: int32 [N].
    starts: bool [N], which tokens begin a word.
  """

  ids: np.ndarray
  starts: np.ndarray


class Vocabulary(NamedTuple):
  """What steps know of the tokenizer.

  Attributes:
    size: of the vocabulary.
    mask_id: of [MASK].
    stop_id: of the full stop, which ends a sentence; None: it has none.
  """

  size: int
  mask_id: int
  stop_id: int | None


Step = Callable[[Piece, np.random.Generator, Vocabulary], Piece]


def masked(count: int, positions: np.ndarray) -> np.ndarray:
  """Token masking: each of some tokens becomes a [MASK]."""
  index = np.arange(count)
  index[positions] = MASK
  return index


def deleted(count: int, positions: np.ndarray) -> np.ndarray:
  """Token deletion: nothing tells where they were."""
  return np.delete(np.arange(count), positions)


def infilled(count: int, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Text infilling: each span becomes one [MASK], whatever its length.

  Args:
    count: of the tokens.
    starts: int [S], of spans that do not overlap.
    lengths: int [S]; 0 puts a [MASK] before the token at its start.
  """
  change = np.zeros(count + 1, np.int64)
  np.add.at(change, starts, 1)
  np.add.at(change, starts + lengths, -1)
  kept = np.flatnonzero(np.cumsum(change[:-1]) == 0)
  index = np.concatenate([np.full(len(starts), MASK), kept])
  # Of those at one place a [MASK] comes first.
  places = np.concatenate([2 * starts, 2 * kept + 1])
  return index[np.argsort(places, kind='stable')]


def permuted(ends: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Sentence permutation.

  Args:
    ends: int [S], after the last token of each sentence; the text's come last.
    order: int [S], which sentence comes first, second, ...
  """
  sentences = np.split(np.arange(int(ends[-1])), ends[:-1])
  return np.concatenate([sentences[i] for i in order])


def rotated(count: int, offset: int) -> np.ndarray:
  """Document rotation: the token at `offset` comes first."""
  return np.roll(np.arange(count), -offset)


def span_lengths(draws: np.ndarray, budget: int) -> np.ndarray:
  """Takes draws in turn until they cover the budget; the last one is cut.

  Raises:
    ValueError: there are too few.
  """
  covered = np.cumsum(draws)
  last = int(np.searchsorted(covered, budget))
  if last == len(draws):
    raise ValueError(f'{covered[-1:]} of {budget} are covered')
  lengths = np.array(draws[: last + 1])
  lengths[last] -= covered[last] - budget
  return lengths


def sentence_ends(ids: np.ndarray, stop_id: int) -> np.ndarray:
  """Where sentences end: after a full stop that follows no other one.

  As in the released code; the last sentence ends with the text.
  """
  stops = ids == stop_id
  stops[1:] &= ids[:-1] != stop_id
  return np.unique(np.append(np.flatnonzero(stops) + 1, len(ids)))


def _changed(piece: Piece, index: np.ndarray, mask_id: int) -> Piece:
  hidden = index == MASK
  if not len(piece.ids):
    ids, starts = np.zeros(len(index), np.int32), hidden
  else:
    ids, starts = piece.ids[index], piece.starts[index] | hidden
  return Piece(np.where(hidden, np.int32(mask_id), ids), starts)


def mask(rate: Fraction) -> Step:
  """Token masking: this part of the tokens, rounded at random."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = masked(count, _some(rate, count, generator))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def delete(rate: Fraction) -> Step:
  """Token deletion: this part of the tokens, rounded at random."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = deleted(count, _some(rate, count, generator))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def infill(
  rate: Fraction = 0.3,
  mean: Annotated[float, ranges.number(0.1, 1000)] = 3.0,
  random: Probability = 0.0,
) -> Step:
  """Text infilling: spans of whole words.

  The released code draws the starts without regard to the lengths, so that
  spans run into one another and fewer words are hidden than `rate` says. Here
  all ways to lay the spans side by side are equally likely.

  Args:
    rate: of the words, rounded up, that are in spans.
    mean: of the lengths, in words, which are from a Poisson distribution.
    random: of the [MASK]s that become a random token (released code: 0.1).
  """

  def step(piece, generator, vocabulary):
    bounds = np.append(np.flatnonzero(piece.starts), len(piece.ids))
    begins, lengths = _spans(len(bounds) - 1, rate, mean, generator)
    starts = bounds[begins]
    index = infilled(len(piece.ids), starts, bounds[begins + lengths] - starts)
    made = _changed(piece, index, vocabulary.mask_id)
    places = np.flatnonzero(index == MASK)
    places = places[generator.random(len(places)) < random]
    made.ids[places] = generator.integers(vocabulary.size, size=len(places))
    return made

  return step


def permute() -> Step:
  """Sentence permutation: all of them, by full stops."""

  def step(piece, generator, vocabulary):
    ends = sentence_ends(piece.ids, vocabulary.stop_id)
    index = permuted(ends, generator.permutation(len(ends)))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def rotate() -> Step:
  """Document rotation: each token may come first, with the same chance."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = rotated(count, int(generator.integers(max(count, 1))))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def _some(
  rate: float, count: int, generator: np.random.Generator
) -> np.ndarray:
  """Positions of a part of the tokens, right on average."""
  chosen = int(rate * count - 1e-9 + generator.random())
  return generator.choice(count, size=min(chosen, count), replace=False)


def _spans(
  count: int, rate: float, mean: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Draws begins and lengths, int [S], of spans of `count` words."""
  # 0.3 x 10 is 3, not what floats make of it.
  budget = int(np.ceil(rate * count - 1e-9))
  if not budget:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)
  draws = np.zeros(0, np.int64)
  while draws.sum() < budget:
    more = generator.poisson(mean, size=8 + int(budget / mean))
    draws = np.concatenate([draws, more])
  lengths = span_lengths(draws, budget)
  # No text grows: of empty spans there are no more than the others save.
  empty = lengths == 0
  room = budget - np.count_nonzero(lengths)
  lengths = generator.permutation(lengths[~empty | (np.cumsum(empty) <= room)])
  # A place for each word that stays, and one for each span.
  places = count - budget + len(lengths)
  places = np.sort(generator.choice(places, size=len(lengths), replace=False))
  before = np.cumsum(lengths) - lengths
  return places - np.arange(len(lengths)) + before, lengths


NOISES = {
  'delete': delete,
  'infill': infill,
  'mask': mask,
  'permute': permute,
  'rotate': rotate,
}
