# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The text that a tokenizer learns from: a sample of the training split."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator

from gpt_jax.data.sources.source import Document

# Unless it is asked for: so many bytes for each piece, at most so many. On two
# cores unigram took 12 s for 32,000 pieces of English books.
_BYTES_PER_PIECE = 1000
_MOST_BYTES = 64_000_000

# It is taken in chunks of about this many characters.
_CHUNK = 1 << 14
LONGEST = 4 * _CHUNK  # a line without end is cut here


def size(vocab_size: int, asked: int) -> int:
  """Bytes of the sample; `asked` is 0 where it goes by the vocabulary."""
  return asked or min(_BYTES_PER_PIECE * vocab_size, _MOST_BYTES)


def num_bytes(chunks: Iterable[str]) -> int:
  return sum(len(chunk.encode()) for chunk in chunks)


def too_small(chunks: Iterable[str], asked: int, most: str) -> str:
  """Says that a sample supports fewer pieces than were asked for.

  Args:
    chunks: the sample.
    asked: its bytes, as `size` gives them.
    most: the number of pieces that it supports, and of which kind.
  """
  held = num_bytes(chunks)
  more = f'raise sample_bytes above {held}' if held >= asked else 'add text'
  return (
    f'{held} bytes of this corpus support at most {most}; ask for no more, or '
    + more
  )


def take(documents: Iterable[Document], most: int, seed: int) -> list[str]:
  """Chooses about `most` bytes of chunks by the least hash of their place.

  One pass in memory bounded by the sample. What is chosen does not depend on
  the order of the documents, and is everything where there is less than asked
  for.
  """
  key = seed.to_bytes(8, 'little', signed=True)
  heap, held = [], 0  # the greatest hash on top
  for order, (place, chunk) in enumerate(cut(documents)):
    digest = hashlib.blake2b(place.encode(), digest_size=8, key=key).digest()
    length = len(chunk.encode())
    heapq.heappush(heap, (-int.from_bytes(digest, 'big'), order, length, chunk))
    held += length
    while held - heap[0][2] >= most:
      held -= heapq.heappop(heap)[2]
  return [chunk for _, _, _, chunk in sorted(heap, key=lambda entry: entry[1])]


def cut(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
  """Cuts documents at newlines into pairs of a place and a text."""
  for name, text in documents:
    start = 0
    while start < len(text):
      stop = text.find('\n', start + _CHUNK, start + LONGEST)
      stop = start + LONGEST if stop < 0 else stop
      yield f'{name}@{start}', text[start:stop]
      start = stop
