# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The byte values that a corpus has, as far as a small vocabulary holds them.

Not lossless where it does not hold all: the others are one symbol, U+FFFD when
decoded. Models of bytes have few symbols in papers, 204 of enwik8.
"""

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import saved, special
from gpt_jax.tokenizers.words import Bytes

_BYTES = Bytes()
_RARE_ID = 1
# In no text of UTF-8.
_NO_BYTE = 0xFF


class FrequentBytes:
  """The end of document, the symbol of rare bytes, then the frequent ones."""

  kind = 'frequent_bytes'
  eos_id = 0
  special = special.of({}, eos_id, {})
  in_threads = True
  parts_at_spaces = False
  run_ids = frozenset()

  def __init__(self, values: Sequence[int]):
    """`values` have the ids from 2 on."""
    self._bytes = np.array([_BYTES.eos_id, _NO_BYTE, *values], np.int32)
    self.vocab_size = len(self._bytes)
    self._ids = np.full(_BYTES.vocab_size, _RARE_ID, np.int32)
    self._ids[self._bytes] = np.arange(self.vocab_size)

  @property
  def values(self) -> list[int]:
    """The bytes with the ids from 2 on."""
    return self._bytes[2:].tolist()

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self._contents())

  def encode(self, text: str) -> np.ndarray:
    return self._ids[_BYTES.encode(text)]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def offsets(self, text: str) -> np.ndarray:
    return _BYTES.offsets(text)

  def decode(self, ids: Iterable[int]) -> str:
    return _BYTES.decode(self._bytes[int(i)] for i in ids)

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return _BYTES.word_starts(self._bytes[ids])

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self._contents())

  def _contents(self) -> dict[str, bytes]:
    return {'bytes.json': json.dumps(self.values).encode()}


def frequent_bytes(
  vocab_size: Count,
) -> Callable[[Iterable[Document]], FrequentBytes]:
  """The byte values of the training split, the most frequent first.

  Args:
    vocab_size: how many symbols at most, with the two that are no byte.
  """

  def read(documents: Iterable[Document]) -> FrequentBytes:
    counts = np.zeros(256, np.int64)
    for document in documents:
      counts += np.bincount(_BYTES.encode(document.text), minlength=256)
    # Ties in the order of the values: that of the documents does not matter.
    ordered = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
    kept = ordered[: max(vocab_size - 2, 0)].tolist()
    if not kept:
      raise UsageError(
        f'tokenizer.name: frequent_bytes(vocab_size={vocab_size}): keeps none '
        f'of the {len(ordered)} byte values of this corpus; raise vocab_size '
        'above 2, or add text'
      )
    return FrequentBytes(kept)

  return read
