# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The smallest tokenizers: bytes, and the characters of a corpus."""

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpt_jax.data.sources.sources import Document
from gpt_jax.data.tokenizers import saved, special, words
from gpt_jax.spec import UsageError


class Bytes:
  """The 256 values of a byte of UTF-8, and the end of document.

  Lossless. Bytes that are not UTF-8 decode to U+FFFD.
  """

  kind = 'bytes'
  vocab_size = 257
  eos_id = 256
  special = special.of({}, eos_id, {})
  _words = words.of_text([*(bytes([i]) for i in range(eos_id)), None])
  in_threads = True
  parts_at_spaces = False
  run_ids = frozenset()

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, {})

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def offsets(self, text: str) -> np.ndarray:
    first = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    start = np.cumsum(first, dtype=np.int32) - 1
    return np.stack([start, start + 1], axis=1)

  def decode(self, ids: Iterable[int]) -> str:
    return bytes(int(i) for i in ids if i < 256).decode(errors='replace')

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return self._words.starts(ids)

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, {})


class Characters:
  """The characters of a corpus in sorted order, then the end of document.

  Lossless for the text that it encodes; refuses other characters.
  """

  kind = 'characters'
  in_threads = True
  parts_at_spaces = False
  run_ids = frozenset()

  def __init__(self, alphabet: str):
    """`alphabet` holds each character once, sorted."""
    self.alphabet = alphabet
    self._sorted = _code_points(alphabet)
    self.eos_id = len(alphabet)
    self.special = special.of({}, self.eos_id, {})
    self.vocab_size = len(alphabet) + 1
    self._words = words.of_text([*(c.encode() for c in alphabet), None])

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self._contents())

  def encode(self, text: str) -> np.ndarray:
    points = _code_points(text)
    ids = np.searchsorted(self._sorted, points)
    known = self._sorted[np.minimum(ids, self.eos_id - 1)] == points
    if not known.all():
      character = text[int(np.argmin(known))]
      raise UsageError(
        f'the text holds {character!r} (U+{ord(character):04X}), which is '
        f'none of the {self.eos_id} characters of this tokenizer; leave it '
        "out, or use tokenizer.name='bytes'"
      )
    return ids.astype(np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def offsets(self, text: str) -> np.ndarray:
    start = np.arange(len(text), dtype=np.int32)
    return np.stack([start, start + 1], axis=1)

  def decode(self, ids: Iterable[int]) -> str:
    return ''.join(self.alphabet[i] for i in ids if i != self.eos_id)

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return self._words.starts(ids)

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self._contents())

  def _contents(self) -> dict[str, bytes]:
    return {'characters.json': json.dumps(self.alphabet).encode()}


def byte_values() -> Callable[[Iterable[Document]], Bytes]:
  """The 256 bytes."""
  return lambda documents: Bytes()


def characters() -> Callable[[Iterable[Document]], Characters]:
  """The set of characters of the whole corpus."""
  return characters_of


def characters_of(documents: Iterable[Document]) -> Characters:
  """Collects the alphabet of `documents`."""
  alphabet = set()
  for document in documents:
    alphabet.update(document.text)
  return Characters(''.join(sorted(alphabet)))


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)
