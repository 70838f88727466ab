# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hashes of documents: of the whole corpus, and of those that occur twice.

`Digest` is the sum, modulo 2^256, of the hashes of (position, hash of the
document), for each document (Bellare and Micciancio, 1997, AdHash): machines
compute it for parts of a corpus, and the sums add up to that of the whole.

`Duplicates` counts the held-out documents that are also in the training split,
word for word: documents are held out by name, so a copy under another name may
train. Texts are compared by 64 bits of a hash. Above `MOST` hashes only texts
whose hash lies in a part of all values are kept (as in distinct sampling,
Gibbons 2001), and the part is halved as often as needed: memory is bounded, and
the count becomes an estimate.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpt_jax.core.files.document import encoded, utf8_size
from gpt_jax.core.text import hashing
from gpt_jax.core.text.holdout import Part

SIZE = 32  # bytes

_MODULUS = 1 << 8 * SIZE


def of_part(part: Part) -> tuple[bytes, int]:
  """The hash of a document's name, side and text; the text's bytes."""
  size = utf8_size(part.document.text)
  head = f'{part.document.name}\0{part.held_out}\0{size}\0'
  found = hashlib.sha256(head.encode())
  for piece in encoded(part.document.text):
    found.update(piece)
  return found.digest(), size


class Digest:
  """The sum over documents, of which the first has the number `start`."""

  def __init__(self, start: int = 0):
    self._position = start
    self._sum = 0

  def add(self, of_part: bytes):
    """Adds the hash of the next document, from `of_part`."""
    both = self._position.to_bytes(8, 'little') + of_part
    self._sum += int.from_bytes(hashlib.sha256(both).digest(), 'little')
    self._position += 1

  def hexdigest(self) -> str:
    return f'{self._sum % _MODULUS:0{2 * SIZE}x}'


def total(hexdigests: Iterable[str]) -> str:
  """The sum over all parts of a corpus."""
  found = sum(int(part, 16) for part in hexdigests) % _MODULUS
  return f'{found:0{2 * SIZE}x}'


# Hashes that are kept, of both splits: 8 bytes each.
MOST = 1 << 21

# New hashes that are collected before they are merged.
_BUFFER = 1 << 16


class Copies(NamedTuple):
  """How many held-out documents also train; about as many unless exact."""

  count: int
  exact: bool


class Duplicates:
  """Counts texts that are on both sides of the split."""

  def __init__(self, *, pairs: bool = False):
    """`pairs`: every two documents are a pair, and compared as one text."""
    self._pairs, self._source = pairs, None
    self._kept = {side: np.empty(0, np.uint64) for side in (False, True)}
    self._new: dict[bool, list[int]] = {False: [], True: []}
    self._shift = 0  # texts are kept if this many low bits of the hash are 0

  def add(self, text: str, held_out: bool):
    """Adds a document of either side."""
    if self._pairs:
      if self._source is None:
        self._source = text
        return
      text, self._source = f'{self._source}\0{text}', None
    self._new[held_out].append(hashing.of_text(text))
    if sum(map(len, self._new.values())) >= _BUFFER:
      self._sort_in()

  def merge(self, other: 'Duplicates') -> 'Duplicates':
    """Adds the documents of another part of the corpus."""
    other._sort_in()
    self._shift = max(self._shift, other._shift)
    for side, kept in other._kept.items():
      self._kept[side] = np.concatenate([self._kept[side], kept])
    self._sort_in()
    return self

  def copies(self) -> Copies:
    """The held-out documents that also train."""
    self._sort_in()
    found = np.isin(self._kept[True], self._kept[False])
    return Copies(int(np.count_nonzero(found)) << self._shift, not self._shift)

  def _sort_in(self):
    for side, new in self._new.items():
      joined = np.concatenate([self._kept[side], np.array(new, np.uint64)])
      # Train texts are a set; of held-out texts every copy counts.
      self._kept[side] = joined if side else np.unique(joined)
      new.clear()
    self._thin()
    while sum(map(len, self._kept.values())) > MOST:
      self._shift += 1
      self._thin()

  def _thin(self):
    low = np.uint64((1 << self._shift) - 1)
    for side, kept in self._kept.items():
      self._kept[side] = kept[kept & low == 0]
