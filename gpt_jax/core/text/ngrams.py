# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds where documents overlap an evaluation set, by n-grams of words.

As GPT-3 counts overlaps (Brown et al. 2020, appendix C): words are lower-cased,
separated by white space and without punctuation, and n is 13. `Index` holds the
n-grams of the evaluation set, which is small; documents of any size and number
are looked up in it. Matches are exact: words are compared, not hashes.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.core.text import hashing

# Characters whose words are held at a time.
_BLOCK = 1 << 20

_PUNCTUATION = re.compile(r'[^\w\s]+|_+')
_SPACE = re.compile(r'\s')
_TOKEN = re.compile(r'\S+')


class Overlap(NamedTuple):
  """An n-gram of the index in a document."""

  gram: int  # its number in the index
  start: int  # its first character in the document
  stop: int  # after its last character


def words(text: str) -> list[str]:
  """The words of a text: lower-cased, without punctuation."""
  return _PUNCTUATION.sub('', text.lower()).split()


def blocks(text: str) -> Iterator[tuple[int, str]]:
  """Cuts a text of any length at white space: (first character, piece)."""
  start = 0
  while start < len(text):
    stop = start + _BLOCK
    if stop < len(text):
      space = _SPACE.search(text, stop, stop + _BLOCK)
      stop = space.start() if space else stop
    yield start, text[start:stop]
    start = stop


class Index:
  """The n-grams of some texts, each with the texts that hold it."""

  def __init__(self, texts: Iterable[tuple[str, str]], n: int = 13):
    """Builds it.

    Args:
      texts: a label, which says where the text is from, and the text of each.
      n: words in an n-gram; shorter texts have none.
    """
    self.n = n
    self.labels: list[str] = []
    self.num_short = 0  # texts of fewer than n words
    self._ids: dict[str, int] = {}
    windows, owners = [np.empty((0, n), np.int32)], []
    for number, (label, text) in enumerate(texts):
      self.labels.append(label)
      ids = [self._ids.setdefault(w, len(self._ids)) for w in words(text)]
      self.num_short += len(ids) < n
      if len(ids) >= n:
        row = np.array(ids, np.int32)
        windows.append(np.lib.stride_tricks.sliding_window_view(row, n))
        owners.append(np.full(len(ids) - n + 1, number, np.int32))
    self._words = [*self._ids]
    self._rows, grams = np.unique(np.concatenate(windows), axis=0, return_inverse=True)
    # The texts of each n-gram, one after the other.
    pairs = np.stack([grams.reshape(-1), np.concatenate([*owners, _NO_OWNER])])
    pairs = np.unique(pairs, axis=1)
    self._owners = pairs[1]
    self._starts = np.searchsorted(pairs[0], np.arange(len(self._rows) + 1))
    hashes = hashing.of_runs(self._rows.reshape(-1), n)[::n]
    self._order = np.argsort(hashes, kind='stable')
    self._hashes = hashes[self._order]

  def __len__(self) -> int:
    """The number of different n-grams."""
    return len(self._rows)

  def text(self, gram: int) -> str:
    """The words of an n-gram."""
    return ' '.join(self._words[i] for i in self._rows[gram])

  def holders(self, gram: int) -> list[int]:
    """The texts that hold an n-gram, as positions in `labels`."""
    start, stop = self._starts[gram : gram + 2]
    return self._owners[start:stop].tolist()

  def find(self, text: str) -> list[Overlap]:
    """All n-grams of the index in a document, in the document's order."""
    found, before = [], np.empty(0, np.int64)
    offset = 0  # words before the block
    for _, block in blocks(text):
      ids = [self._ids.get(word, -1) for word in words(block)]
      window = np.concatenate([before, np.array(ids, np.int64)])
      for at, gram in self._matches(window):
        found.append((offset - len(before) + at, gram))
      offset += len(ids)
      before = window[max(len(window) - self.n + 1, 0) :]
    return _located(text, found, self.n) if found else []

  def _matches(self, ids: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields (first word, n-gram) of a block of word numbers."""
    if len(ids) < self.n or not len(self):
      return
    hashes = hashing.of_runs(ids, self.n)
    known = np.concatenate([[0], np.cumsum(ids >= 0)])
    whole = known[self.n :] - known[: -self.n] == self.n
    left = np.searchsorted(self._hashes, hashes, 'left')
    right = np.searchsorted(self._hashes, hashes, 'right')
    for at in np.flatnonzero(whole & (left < right)).tolist():
      for gram in self._order[left[at] : right[at]].tolist():
        if np.array_equal(self._rows[gram], ids[at : at + self.n]):
          yield at, gram


_NO_OWNER = np.empty(0, np.int32)


def _located(text: str, found: list[tuple[int, int]], n: int) -> list[Overlap]:
  """Finds the characters of the words."""
  wanted = {at for first, _ in found for at in (first, first + n - 1)}
  spans: dict[int, tuple[int, int]] = {}
  number, last = 0, max(wanted)
  for start, block in blocks(text):
    for token in _TOKEN.finditer(block):
      if not _PUNCTUATION.sub('', token.group().lower()):
        continue
      if number in wanted:
        spans[number] = start + token.start(), start + token.end()
      number += 1
    if number > last:
      break
  return [Overlap(gram, spans[at][0], spans[at + n - 1][1]) for at, gram in found]
