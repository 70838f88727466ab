# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One hash of all documents and their order, that many machines can compute.

The sum, modulo 2^256, of the hashes of (position, hash of the document), for
each document (Bellare and Micciancio, 1997, AdHash): sums over parts of a
corpus add up to that of the whole.
"""

import hashlib
from collections.abc import Iterable, Iterator

from gpt_jax.data.holdout import Part

SIZE = 32  # bytes

# Characters.
_PIECE = 1 << 22

_MODULUS = 1 << 8 * SIZE


def of_part(part: Part) -> tuple[bytes, int]:
  """The hash of a document's name, side and text; the text's bytes."""
  size = sum(map(len, _encoded(part.document.text)))
  head = f'{part.document.name}\0{part.held_out}\0{size}\0'
  found = hashlib.sha256(head.encode())
  for piece in _encoded(part.document.text):
    found.update(piece)
  return found.digest(), size


def _encoded(text: str) -> Iterator[bytes]:
  """A text in UTF-8, without a copy of all of a long one."""
  for start in range(0, len(text), _PIECE):
    yield text[start : start + _PIECE].encode()


class Digest:
  """The sum over documents, of which the first has the number `start`."""

  def __init__(self, start: int = 0):
    """No document yet."""
    self._position = start
    self._sum = 0

  def add(self, of_part: bytes):
    """Adds what `of_part` gave for the next document."""
    both = self._position.to_bytes(8, 'little') + of_part
    self._sum += int.from_bytes(hashlib.sha256(both).digest(), 'little')
    self._position += 1

  def hexdigest(self) -> str:
    """The sum."""
    return f'{self._sum % _MODULUS:0{2 * SIZE}x}'


def total(hexdigests: Iterable[str]) -> str:
  """The sum over all parts of a corpus."""
  found = sum(int(part, 16) for part in hexdigests) % _MODULUS
  return f'{found:0{2 * SIZE}x}'
