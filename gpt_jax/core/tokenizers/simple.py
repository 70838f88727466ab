# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in NumPy and Python: bytes, characters, frequent bytes, words."""

import abc
import collections
import json
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

import numpy as np

from gpt_jax.core.files.document import Document
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special, words
from gpt_jax.core.tokenizers.saved import Saved
from gpt_jax.core.tokenizers.special import END_OF_DOCUMENT
from gpt_jax.core.tokenizers.tokenizer import Maker

# A word of WikiText: text between white space, or a line end.
WORD = re.compile(r'\n|[^\s]+')
# WikiText is published with it, so it is this word in a text, too.
UNKNOWN = '<unk>'
_UNKNOWN_ID = 1
# Its end of document: a word list may have the usual name, and no word a space.
END_OF_WORDS = '<end of document>'
_EDGES = re.compile(r' ?\n ?')

_RARE_ID = 1
_NO_BYTE = 0xFF  # never occurs in UTF-8


class Simple(Saved, abc.ABC):
  """A tokenizer whose only special token is the end of a document."""

  eos_id: int
  vocab_size: int
  special: special.Special
  run_ids = frozenset()
  in_threads = True
  parts_at_spaces = False
  # The file that holds the argument of the constructor; '': it has none.
  file: ClassVar[str] = ''

  @classmethod
  def of_files(cls, kind: str, contents: dict[str, bytes]) -> Self:
    del kind
    arguments = [json.loads(contents[cls.file])] if cls.file else []
    return cls(*arguments)

  @abc.abstractmethod
  def encode(self, text: str) -> np.ndarray: ...

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  @abc.abstractmethod
  def offsets(self, text: str) -> np.ndarray: ...

  def encode_special(self, text: str) -> np.ndarray:
    return special.encode(text, self.special.names, self.encode)

  def offsets_special(self, text: str) -> np.ndarray:
    return special.offsets(text, self.special.names, self.offsets)


class Bytes(Simple):
  """The 256 values of a byte of UTF-8, and the end of document.

  Lossless. Bytes that are not UTF-8 decode to U+FFFD.
  """

  kind = 'bytes'
  contents: ClassVar = {}
  vocab_size = 257
  eos_id = 256
  special = special.of({}, eos_id, {END_OF_DOCUMENT: eos_id})
  _words = words.of_text([*(bytes([i]) for i in range(eos_id)), None])

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def offsets(self, text: str) -> np.ndarray:
    first = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    start = np.cumsum(first, dtype=np.int32) - 1
    return np.stack([start, start + 1], axis=1)

  def decode(self, ids: Iterable[int]) -> str:
    return bytes(int(i) for i in ids if i < 256).decode(errors='replace')


_BYTES = Bytes()


class FrequentBytes(Simple):
  """The end of document, the symbol of rare bytes, then the frequent ones.

  Rare bytes are lost: they decode to U+FFFD. Papers on models of bytes use few
  symbols, for enwik8 204.
  """

  kind, file = 'frequent_bytes', 'bytes.json'
  eos_id = 0
  special = special.of({}, eos_id, {END_OF_DOCUMENT: eos_id})

  def __init__(self, values: Sequence[int]):
    """`values` get the ids from 2 on."""
    self.values = [*values]
    self.contents = {self.file: json.dumps(self.values).encode()}
    self._bytes = np.array([_BYTES.eos_id, _NO_BYTE, *values], np.int32)
    self.vocab_size = len(self._bytes)
    self._ids = np.full(_BYTES.vocab_size, _RARE_ID, np.int32)
    self._ids[self._bytes] = np.arange(self.vocab_size)

  def encode(self, text: str) -> np.ndarray:
    return self._ids[_BYTES.encode(text)]

  def offsets(self, text: str) -> np.ndarray:
    return _BYTES.offsets(text)

  def decode(self, ids: Iterable[int]) -> str:
    return _BYTES.decode(self._bytes[int(i)] for i in ids)

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return _BYTES.word_starts(self._bytes[ids])


class Characters(Simple):
  """The characters of a corpus in sorted order, then the end of document.

  Lossless; refuses characters that are not among them.
  """

  kind, file = 'characters', 'characters.json'

  def __init__(self, alphabet: str):
    """`alphabet` holds each character once, sorted."""
    self.alphabet = alphabet
    self.contents = {self.file: json.dumps(alphabet).encode()}
    self._sorted = _code_points(alphabet)
    self.eos_id = len(alphabet)
    self.special = special.of({}, self.eos_id, {END_OF_DOCUMENT: self.eos_id})
    self.vocab_size = len(alphabet) + 1
    self._words = words.of_text([*(c.encode() for c in alphabet), None])

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

  def offsets(self, text: str) -> np.ndarray:
    start = np.arange(len(text), dtype=np.int32)
    return np.stack([start, start + 1], axis=1)

  def decode(self, ids: Iterable[int]) -> str:
    return ''.join(self.alphabet[i] for i in ids if i != self.eos_id)


class WordList(Simple):
  """The end of document, the unknown word, then words by their frequency.

  Not lossless: white space becomes one space, and rare words `<unk>`. The
  perplexity per token is the papers' per word, where the ends of lines and of
  documents count as words. An adaptive softmax needs ids by frequency.
  """

  kind, file = 'words', 'words.json'
  eos_id = 0
  special = special.of({}, eos_id, {END_OF_WORDS: eos_id})
  in_threads = False
  parts_at_spaces = True

  def __init__(self, words: Sequence[str]):
    """`words` get the ids from 2 on."""
    self.words = [*words]
    self.contents = {self.file: json.dumps(self.words).encode()}
    self._ids = {word: i for i, word in enumerate(words, start=2)}
    self.vocab_size = len(self.words) + 2

  @property
  def listed(self) -> list[str]:
    """The words of all ids, in order."""
    return [END_OF_WORDS, UNKNOWN, *self.words]

  def with_words(self, texts: Iterable[str]) -> 'WordList':
    """A list with the words of `texts` too, after those that it has."""
    found = dict.fromkeys(w for text in texts for w in WORD.findall(text))
    known = {*self.listed}
    return WordList([*self.words, *(w for w in found if w not in known)])

  def encode(self, text: str) -> np.ndarray:
    found = [self._ids.get(w, _UNKNOWN_ID) for w in WORD.findall(text)]
    return np.array(found, np.int32)

  def offsets(self, text: str) -> np.ndarray:
    spans = [match.span() for match in WORD.finditer(text)]
    return np.array(spans, np.int32).reshape(-1, 2)

  def decode(self, ids: Iterable[int]) -> str:
    words = [
      UNKNOWN if i == _UNKNOWN_ID else self.words[i - 2] for i in map(int, ids) if i != self.eos_id
    ]
    return _EDGES.sub('\n', ' '.join(words))

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return np.ones(np.shape(ids), bool)


def byte_values() -> Maker:
  """The 256 bytes."""
  return Maker(lambda documents: Bytes())


def characters() -> Maker:
  """The characters of the whole corpus, also of held-out documents."""
  return Maker(characters_of, learned=True, of_all=True)


def characters_of(documents: Iterable[Document]) -> Characters:
  """Collects the alphabet of `documents`."""
  alphabet = set()
  for document in documents:
    alphabet.update(document.text)
  return Characters(''.join(sorted(alphabet)))


def frequent_bytes(vocab_size: Count) -> Maker:
  """The byte values of the training split, the most frequent first.

  Args:
    vocab_size: the most symbols, with the two that are not bytes.
  """

  def read(documents: Iterable[Document]) -> FrequentBytes:
    counts = np.zeros(256, np.int64)
    for document in documents:
      counts += np.bincount(_BYTES.encode(document.text), minlength=256)
    # Ties go by value, so that the order of the documents does not matter.
    ordered = np.argsort(-counts, kind='stable')[: np.count_nonzero(counts)]
    kept = ordered[: max(vocab_size - 2, 0)].tolist()
    if not kept:
      raise UsageError(
        f'tokenizer.name: frequent_bytes(vocab_size={vocab_size}): keeps none '
        f'of the {len(ordered)} byte values of this corpus; raise vocab_size '
        'above 2, or add text'
      )
    return FrequentBytes(kept)

  return Maker(read, learned=True, vocab_size=vocab_size)


def word_list(vocab_size: Whole = 0, count: Count = 1) -> Maker:
  """The words of the training split, the most frequent first.

  Args:
    vocab_size: the most words, with `<unk>` and the end of document; 0: all.
    count: how often a word must occur.
  """

  def read(documents: Iterable[Document]) -> WordList:
    counts = collections.Counter()
    for document in documents:
      counts.update(WORD.findall(document.text))
    del counts[UNKNOWN]
    # Ties go by spelling, so that the order of the documents does not matter.
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [word for word, number in ordered if number >= count]
    kept = kept[: max(vocab_size - 2, 0)] if vocab_size else kept
    if not kept:
      raise UsageError(
        f'tokenizer.name: words(vocab_size={vocab_size}, count={count}): keeps '
        f'none of the {len(counts)} words of this corpus; raise vocab_size '
        'above 2, lower count, or add text'
      )
    return WordList(kept)

  return Maker(read, learned=True, vocab_size=vocab_size or None)


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)
