# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of two halves, [reused, A, SEP, B, SEP, CLS] (XLNet, Yang et al. 2019).

As the released code makes them (zihangdai/xlnet, data_utils.py). The first half
of a row, `length // 2` tokens, is text of which the rest sees all, and which
sees nothing of the rest. A goes on with that text, up to the end of a sentence;
in half of the rows B is what follows A, in the others text from elsewhere. No
row has padding; the next row begins with A's first token. The row's token types
are 0 in the first half and in A, 1 in B, each with its [SEP], and 2 for [CLS].

Every other row of the run is read from the right to the left: [CLS, SEP, B,
SEP, A, reused], where B stands before A in the text. The released code turns
the tokens of such a row round and takes its distances with the other sign:
attention that knows distances alone cannot tell the two. The end of a document
is a token of its own, <eod>.

Where the released code differs: text from elsewhere is never cut on its left,
and where no sentence ends within A, A is half of what fits.
"""

from collections.abc import Sequence

import numpy as np

from gpt_jax.data.mixture_order import Place
from gpt_jax.data.rows import MAKING_ROWS, Keys, Rows
from gpt_jax.data.store import TokenStore
from gpt_jax.data.texts import Texts, check_special
from gpt_jax.spec import UsageError

_AROUND = 3  # two [SEP] and [CLS]
_LEAST = 2 * (_AROUND + 2)  # two tokens at least for A and B


class HalfRows:
  """Rows of `length` tokens of a store."""

  def __init__(self, store: TokenStore, length: int):
    """Counts the rows.

    Raises:
      UsageError: the store, its tokenizer or the length does not do.
    """
    check_special(store)
    if length < _LEAST:
      raise UsageError(
        f'model.context_length={length}: a row of data.rows={store.rows!r} '
        f'has two halves, one of them with three more tokens and two texts; '
        f'give {_LEAST} or more'
      )
    self._store, self._length = store, length
    self._reused = length // 2
    self._room = length - self._reused - _AROUND
    self._sentence_ends = store.sentence_ends
    self._parts = store.parts()
    self.sizes = {
      name: max((stop - start - self._room) // self._reused, 0)
      for name, (start, stop) in self._parts.items()
    }
    self.tokens = {name: n * length for name, n in self.sizes.items()}
    self.num_rows = self.num_held_out = sum(self.sizes.values())

  def texts(self, places: Sequence[Place], keys: Keys) -> list[Texts]:
    """The tokens of the store that rows have: the first half, A and B."""
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
    """The rows at some places."""
    found = self.texts(places, keys)
    special, L = self._store.special, self._length
    assert special.cls_id is not None and special.sep_id is not None
    cls, sep = (
      np.array([i], np.int32) for i in (special.cls_id, special.sep_id)
    )
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
    return Rows(
      tokens,
      real,
      special=put_in,
      token_types=types,
      pair=pair,
      reused=reused,
    )

  def read_held_out(self, keys: Keys) -> Rows:
    """The rows of a held-out set."""
    return self.read([Place('', 0, row) for row in keys.row.tolist()], keys)

  def _texts(
    self, source: str, row: int, generator: np.random.Generator, back: bool
  ) -> Texts:
    """The first half, A and B of a row; pair is 1 where B is from elsewhere."""
    start, stop = self._parts[source]
    room, reused = self._room, self._reused
    begin = start + row * reused
    which, other, where = generator.random(3)
    # The text of A and what is next to it, in the order of reading.
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
      # Where a sentence begins that has as much text after it.
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
