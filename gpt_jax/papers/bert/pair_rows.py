# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of two texts, [CLS] A [SEP] B [SEP] (Devlin et al., 2018; A.2).

  data.rows = "pairs('next', short=0.1)"

A row takes consecutive sentences of a document up to its target length: the
number of tokens that fit or, in a fraction `short` of the rows, a smaller one,
uniform from 2 on. The next row begins after them. A is a random number of these
sentences, from the first on; B is the rest (pair 0).

'next' (BERT): in half of the rows B is another text (pair 1), which begins at a
sentence of another document; the sentences after A are left out in this epoch.
In a row of one sentence B is always another text, so a little more than half of
all rows have pair 1.

'order' (Lan et al., 2019, ALBERT): in half of the rows A and B are swapped
(pair 1). A row of one sentence has its B from another document here too, with
pair 1.

'unified' (Dong et al., 2019, UniLM): like 'next' in bidirectional rows, the
only ones whose label is trained on; in the others (see `unified_order`) B
follows A, except in a row of one sentence.

If both texts together are too long, the longer one loses tokens, each at its
front or its back at random.

The target length determines where the next row begins, so it is drawn once for
each sentence, whatever the seed. Everything else (where A ends, whether B is
another text and which, the swap, and which tokens are cut off) is drawn each
time that a row is read, from its number in the run: if labels repeated, a model
could memorise them from A alone from the second epoch on.

The released code (google-research, create_pretraining_data.py) differs: it
writes ten copies of the corpus to files, each with its own draws, and reads
them in turn; if B is another text, the next row begins with what followed A, so
that a copy has each sentence once; it draws the target length once for a
document, and takes B from the row's own document if ten draws gave no other.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from gpt_jax.core.ranges import Probability
from gpt_jax.core.rows.rows import MAKING_ROWS, Keys, RowMaker, Rows, Texts, check_length
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.papers.bert.sentence_rows import Sentences, assemble, check_special, sentences, walk
from gpt_jax.papers.unilm import unified_order

_AROUND = 3  # [CLS] and two [SEP]
_LEAST = _AROUND + 2  # one token in each text

# Draws for each sentence, used if a row begins there.
_DRAWS = 2
_SEED = 0x9A125  # of these draws, the same in all runs
# Rows sampled to estimate the tokens of a source: the error is below 0.3%.
_SAMPLES = 1 << 17


class PairRows(RowMaker):
  """Rows of `length` tokens of a store."""

  holds = 'pairs'
  made_of = 'sentences'
  arrays = ('special', 'token_types', 'pair')

  def __init__(self, store: TokenStore, length: int, *, pair: str, short: float):
    """Finds where rows begin; arguments as of `row_makers.pairs`."""
    check_special(store)
    check_length(store.rows, length, _LEAST, '[CLS], two [SEP] and two texts')
    self._store, self._length, self._pair = store, length, pair
    self._capacity = length - _AROUND
    self._chunks = {
      name: chunks(found, self._capacity, short=short) for name, found in sentences(store).items()
    }
    for name, found in self._chunks.items():
      if len(found.documents) < 3:
        where = f'the source {name} of {store.folder}' if name else store.folder
        raise UsageError(
          f'data.rows={store.rows!r}: {where} has text in one document only, '
          'and B is drawn from another; add documents, or take '
          "data.rows='full_sentences'"
        )
    self.sizes = {n: len(found.first) for n, found in self._chunks.items()}
    self.tokens = {
      name: _num_tokens(found, self._capacity, pair) for name, found in self._chunks.items()
    }

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    found = []
    generators = keys.generators(MAKING_ROWS)
    pairs = self._pairs(keys)
    for (source, _, row), pair, generator in zip(places, pairs, generators, strict=True):
      if row < self.sizes[source]:
        drawn = (self._capacity, pair, generator)
        found.append(texts(self._chunks[source], row, *drawn))
      else:
        found.append(Texts([], 0))
    return found

  def _pairs(self, keys: Keys) -> list[str]:
    """How A and B of each row are made: 'next', 'order' or 'following'."""
    if self._pair != 'unified':
      return [self._pair] * len(keys.run)
    both = unified_order.masks(keys.run) == unified_order.BIDIRECTIONAL
    return np.where(both, 'next', 'following').tolist()

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    return assemble(self._store, self.texts(places, keys), self._length, types=True)


class Chunks(NamedTuple):
  """The rows of one source, by its sentences."""

  sentences: Sentences
  tokens: np.ndarray  # int64 [S + 1], the tokens before each sentence
  documents: np.ndarray  # int64 [D + 1], the first sentence of each document
  first: np.ndarray  # int64 [R], the first sentence of each row
  stop: np.ndarray  # int64 [R], the exclusive last sentence
  aim: np.ndarray  # int64 [R], its target length in tokens


def chunks(found: Sentences, capacity: int, *, short: float) -> Chunks:
  """Finds the rows.

  Args:
    capacity: the most tokens of A and B together.
    short: fraction of rows with a smaller target length.
  """
  count = len(found.starts)
  tokens = np.append(0, np.cumsum(found.stops - found.starts))
  ends = np.searchsorted(found.documents, found.documents, side='right')
  # Raw bits, which do not change between NumPy versions.
  bits = np.random.Philox(key=_SEED).random_raw((count, _DRAWS))
  draws = (bits >> 11) * 2.0**-53
  fewer = 2 + (draws[:, 1] * (capacity - 1)).astype(np.int64)
  aim = np.where(draws[:, 0] < short, fewer, capacity)
  stop = np.searchsorted(tokens, tokens[:-1] + aim, side='left')
  stop = np.minimum(stop, ends)
  first = walk(stop)
  starts = np.flatnonzero(np.diff(found.documents, prepend=-1))
  return Chunks(found, tokens, np.append(starts, count), first, stop[first], aim[first])


def _middle(first: np.ndarray, stop: np.ndarray, draw: np.ndarray) -> np.ndarray:
  """Exclusive last sentence of A, which has at least one."""
  return first + 1 + (draw * (stop - first - 1)).astype(np.int64)


def _num_tokens(found: Chunks, capacity: int, pair: str) -> int:
  """Expected tokens of an epoch's rows, as texts are drawn in each epoch.

  `pair` is 'next', 'order' or 'unified'.
  """
  before, count = found.tokens, len(found.first)
  following = before[found.stop] - before[found.first]
  following = np.minimum(following, capacity)
  total = int(following.sum()) + _AROUND * count
  rows = np.arange(_SAMPLES) * count // _SAMPLES
  bits = np.random.Philox(key=_SEED).random_raw((3, _SAMPLES))
  half, which, where = (bits >> 11) * 2.0**-53
  first, stop = found.first[rows], found.stop[rows]
  size = before[_middle(first, stop, half)] - before[first]
  start, end = _another(found, first, found.aim[rows] - size, which, where)
  size += before[end] - before[start]
  more = np.minimum(size, capacity) - following[rows]
  # Rows whose B is another text.
  both = unified_order.share(unified_order.BIDIRECTIONAL)
  share = {'next': 0.5, 'order': 0.0, 'unified': 0.5 * both}[pair]
  more = np.where(stop - first > 1, share * more, more)
  return total + round(count * float(more.mean()))


def texts(
  found: Chunks, row: int, capacity: int, pair: str, generator: np.random.Generator
) -> Texts:
  """A and B of a row, and whether B follows A.

  Args:
    found: the rows of its source.
    capacity: the most tokens of A and B together.
    pair: 'next' or 'order'; or 'following': B follows A if possible.
  """
  first, stop = found.first[row], found.stop[row]
  half, coin, which, where = generator.random(4)
  middle = _middle(first, stop, half)
  a, b = (first, middle), (middle, stop)
  alone = middle == stop
  label = int(alone or (pair != 'following' and coin < 0.5))
  if alone or (label and pair == 'next'):
    size = found.tokens[middle] - found.tokens[first]
    b = _another(found, first, found.aim[row] - size, which, where)
  elif label:
    a, b = b, a
  ranges = [
    range(int(found.sentences.starts[i]), int(found.sentences.stops[j - 1])) for i, j in (a, b)
  ]
  return Texts(cut(ranges, capacity, generator), label)


def _another(
  found: Chunks, sentence: np.ndarray, aim: np.ndarray, which: np.ndarray, where: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Sentences of another document: `aim` tokens, or up to its end.

  All arguments but the first are [N], or NumPy scalars.

  Args:
    sentence: a sentence of the excluded document.
    aim: target number of tokens; at least one sentence is taken.
    which: uniform draw below 1 of the document.
    where: uniform draw below 1 of its first sentence.
  """
  own = np.searchsorted(found.documents, sentence, side='right') - 1
  document = (which * (len(found.documents) - 2)).astype(np.int64)
  document += document >= own
  start, end = found.documents[document], found.documents[document + 1]
  first = start + (where * (end - start)).astype(np.int64)
  wanted = found.tokens[first] + np.maximum(aim, 1)
  stop = np.searchsorted(found.tokens, wanted, side='left')
  return first, np.minimum(stop, end)


def cut(ranges: list[range], capacity: int, generator: np.random.Generator) -> list[range]:
  """Two texts of at most `capacity` tokens together.

  As often as necessary, the longer text (the second if equal) loses its first
  or its last token.
  """
  a, b = map(len, ranges)
  over = max(a + b - capacity, 0)
  first = min(over, abs(a - b))  # until both are equally long
  rest = over - first
  lost = [rest // 2, rest - rest // 2]
  lost[int(a <= b)] += first
  fronts = generator.binomial(lost, 0.5).tolist()
  return [
    part[front : len(part) - (count - front)]
    for part, front, count in zip(ranges, fronts, lost, strict=True)
  ]


# Rows of two halves, [reused, A, SEP, B, SEP, CLS] (XLNet, Yang et al. 2019).
#
# As in the released code (zihangdai/xlnet, data_utils.py). The first half of a
# row, `length // 2` tokens, is text that the rest sees, but that sees nothing
# of the rest. A continues that text, up to the end of a sentence; in half of
# the rows B follows A, in the others it is text from elsewhere. No row has
# padding; the next row begins with A's first token. Token types are 0 in the
# first half and in A, 1 in B, each with its [SEP], and 2 for [CLS].
#
# Every other row of the run is read from right to left: [CLS, SEP, B, SEP, A,
# reused], with B before A in the text. The released code reverses the tokens of
# such a row and negates its distances, which is equivalent for attention with
# relative positions only. The end of a document is a separate token, <eod>.
#
# The released code differs: text from elsewhere is never cut on its left, and
# if no sentence ends within A, A is half of what fits.


_HALF_AROUND = 3  # two [SEP] and [CLS]
_HALF_LEAST = 2 * (_HALF_AROUND + 2)  # two tokens at least for A and B


class HalfRows(RowMaker):
  """Rows of `length` tokens of a store."""

  holds = 'halves'
  made_of = 'sentences'
  arrays = ('special', 'token_types', 'pair', 'reused')

  def __init__(self, store: TokenStore, length: int):
    """Counts the rows."""
    check_special(store)
    has = 'two halves, one of them with three more tokens and two texts'
    check_length(store.rows, length, _HALF_LEAST, has)
    self._store, self._length = store, length
    self._reused = length // 2
    self._room = length - self._reused - _HALF_AROUND
    self._sentence_ends = store.sentence_ends
    self._parts = store.parts()
    self.sizes = {
      name: max((stop - start - self._room) // self._reused, 0)
      for name, (start, stop) in self._parts.items()
    }
    self.tokens = {name: n * length for name, n in self.sizes.items()}

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store in each row: the first half, A and B."""
    found = []
    generators = keys.generators(MAKING_ROWS)
    backwards = keys.run % 2 == 1
    for (source, _, row), generator, back in zip(
      places, generators, backwards.tolist(), strict=True
    ):
      if row < self.sizes[source]:
        found.append(self._texts(source, row, generator, back))
      else:
        found.append(Texts([], 0))
    return found

  def read(self, places: Sequence[Place], keys: Keys) -> Rows:
    found = self.texts(places, keys)
    special, L = self._store.special, self._length
    assert special.cls_id is not None and special.sep_id is not None
    cls, sep = (np.array([i], np.int32) for i in (special.cls_id, special.sep_id))
    tokens = np.full((len(found), L), special.pad_id, np.int32)
    real, put_in = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
    types, reused = np.zeros_like(tokens), np.zeros(tokens.shape, bool)
    ranges = [part for texts in found for part in texts.ranges]
    read = iter(self._store.read_ranges(ranges))
    backwards = (keys.run % 2 == 1).tolist()
    for i, texts in enumerate(found):
      if not texts.ranges:
        continue
      first, a, b = (next(read).astype(np.int32) for _ in range(3))
      order = [first, a, sep, b, sep, cls]
      kinds = [(0, 0, 1), (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)]
      if backwards[i]:
        order, kinds = order[::-1], kinds[::-1]
      sizes = [len(part) for part in order]
      tokens[i], real[i] = np.concatenate(order), True
      types[i], put_in[i], reused[i] = np.repeat(kinds, sizes, axis=0).T
    pair = np.array([texts.pair for texts in found], np.int32)
    return Rows(tokens, real, special=put_in, token_types=types, pair=pair, reused=reused)

  def _texts(self, source: str, row: int, generator: np.random.Generator, back: bool) -> Texts:
    """The first half, A and B of a row; pair is 1 if B is from elsewhere."""
    start, stop = self._parts[source]
    room, reused = self._room, self._reused
    begin = start + row * reused
    which, other, where = generator.random(3)
    # A and its neighbour, in the order of the text.
    text = begin if back else begin + reused
    ends = self._sentence_ends
    inside = ends[slice(*np.searchsorted(ends, [text + 1, text + room]))]
    cut = text + room // 2
    if len(inside):
      cut = int(inside[int(which * len(inside))])
    sides = [range(text, cut), range(cut, text + room)]
    b, a = sides if back else sides[::-1]
    pair = int(other < 0.5)
    if pair:
      # At a sentence with enough text after it.
      last = int(np.searchsorted(ends, stop - len(b), side='right'))
      first = int(np.searchsorted(ends, start))
      elsewhere = start
      if last > first:
        elsewhere = int(ends[first + int(where * (last - first))])
      b = range(elsewhere, elsewhere + len(b))
    half = range(begin + room, begin + room + reused)
    if not back:
      half = range(begin, begin + reused)
    return Texts([half, a, b], pair)


def pairs(
  pair: Literal['next', 'order', 'unified'] = 'next', short: Probability = 0.1
) -> partial[RowMaker]:
  """Pairs of two texts: see `pair_rows`.

  Args:
    pair: 'next' (BERT), 'order' (ALBERT) or 'unified' (UniLM).
    short: fraction of rows that aim at fewer tokens than fit.
  """
  return partial(PairRows, pair=pair, short=short)


def halves() -> partial[RowMaker]:
  """XLNet's rows: text, and two texts that attend to it; see `pair_rows`."""
  return partial(HalfRows)
