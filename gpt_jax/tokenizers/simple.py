# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in NumPy and Python: bytes, characters, frequent bytes, words."""

import abc
import collections
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from gpt_jax.files import vectors
from gpt_jax.files.document import Document
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import special, words
from gpt_jax.tokenizers.saved import Saved
from gpt_jax.tokenizers.special import END_OF_DOCUMENT

# A word of WikiText: text between white space, or a line end.
_WORD = re.compile(r'\n|[^\s]+')
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


_RARE = '\ufffd'  # rare bytes are decoded to it


def _byte_level(symbols: Sequence[int | str]) -> tokenizers.Tokenizer:
  """A symbol for each byte, or for each frequent one and the rare ones."""
  vocabulary = {
    s if isinstance(s, str) else words.spelled(s): i
    for i, s in enumerate(symbols)
  }
  unknown = _RARE if _RARE in vocabulary else None
  library = tokenizers.Tokenizer(
    models.BPE(vocabulary, [], unk_token=unknown, fuse_unk=False)
  )
  library.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  library.decoder = decoders.ByteLevel()
  return library


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

  def to_library(self) -> tokenizers.Tokenizer:
    return _byte_level([*range(self.eos_id), END_OF_DOCUMENT])


_BYTES = Bytes()


class FrequentBytes(Simple):
  """The end of document, the symbol of rare bytes, then the frequent ones.

  Rare bytes are lost: they decode to U+FFFD. Papers on models of bytes use few
  symbols, for enwik8 204.
  """

  kind = 'frequent_bytes'
  eos_id = 0
  special = special.of({}, eos_id, {END_OF_DOCUMENT: eos_id})

  def __init__(self, values: Sequence[int]):
    """`values` get the ids from 2 on."""
    self.values = [*values]
    self.contents = {'bytes.json': json.dumps(self.values).encode()}
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

  def to_library(self) -> tokenizers.Tokenizer:
    return _byte_level([END_OF_DOCUMENT, _RARE, *self.values])


class Characters(Simple):
  """The characters of a corpus in sorted order, then the end of document.

  Lossless; refuses characters that are not among them.
  """

  kind = 'characters'

  def __init__(self, alphabet: str):
    """`alphabet` holds each character once, sorted."""
    self.alphabet = alphabet
    self.contents = {'characters.json': json.dumps(alphabet).encode()}
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

  def to_library(self) -> tokenizers.Tokenizer:
    """Refuses other characters, since the unknown token does not exist."""
    vocabulary = {c: i for i, c in enumerate(self.alphabet)}
    vocabulary[END_OF_DOCUMENT] = self.eos_id
    library = tokenizers.Tokenizer(
      models.WordLevel(vocabulary, unk_token='none')
    )
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
    library.decoder = decoders.Fuse()
    return library


class WordList(Simple):
  """The end of document, the unknown word, then words by their frequency.

  Not lossless: white space becomes one space, and rare words `<unk>`. The
  perplexity per token is the papers' per word, where the ends of lines and of
  documents count as words. An adaptive softmax needs ids by frequency.
  """

  kind = 'words'
  eos_id = 0
  special = special.of({}, eos_id, {END_OF_WORDS: eos_id})
  in_threads = False
  parts_at_spaces = True

  def __init__(self, words: Sequence[str]):
    """`words` get the ids from 2 on."""
    self.words = [*words]
    self.contents = {'words.json': json.dumps(self.words).encode()}
    self._ids = {word: i for i, word in enumerate(words, start=2)}
    self.vocab_size = len(self.words) + 2

  @property
  def listed(self) -> list[str]:
    """The words of all ids, in order."""
    return [END_OF_WORDS, UNKNOWN, *self.words]

  def with_words(self, texts: Iterable[str]) -> 'WordList':
    """A list with the words of `texts` too, after those that it has."""
    found = dict.fromkeys(w for text in texts for w in _WORD.findall(text))
    known = {*self.listed}
    return WordList([*self.words, *(w for w in found if w not in known)])

  def encode(self, text: str) -> np.ndarray:
    found = [self._ids.get(w, _UNKNOWN_ID) for w in _WORD.findall(text)]
    return np.array(found, np.int32)

  def offsets(self, text: str) -> np.ndarray:
    spans = [match.span() for match in _WORD.finditer(text)]
    return np.array(spans, np.int32).reshape(-1, 2)

  def decode(self, ids: Iterable[int]) -> str:
    words = [
      UNKNOWN if i == _UNKNOWN_ID else self.words[i - 2]
      for i in map(int, ids)
      if i != self.eos_id
    ]
    return _EDGES.sub('\n', ' '.join(words))

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return np.ones(np.shape(ids), bool)

  def to_library(self) -> tokenizers.Tokenizer:
    vocabulary = {word: i for i, word in enumerate(self.listed)}
    library = tokenizers.Tokenizer(
      models.WordLevel(vocabulary, unk_token=UNKNOWN)
    )
    # Python's white space, spelled out: the library's differs.
    points = [c for c in map(chr, range(0x3001)) if c.isspace() and c != '\n']
    spaces = ''.join(f'\\x{{{ord(c):X}}}' for c in points)
    library.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.Split(Regex(f'[{spaces}]+'), 'removed'),
        pre_tokenizers.Split('\n', 'isolated'),
      ]
    )
    library.decoder = decoders.Sequence(
      [
        # Puts a space before each word, as none has this prefix.
        decoders.WordPiece(prefix=END_OF_WORDS, cleanup=False),
        decoders.Fuse(),
        decoders.Replace(Regex(' ?\\n ?'), '\n'),
      ]
    )
    return library


def byte_values() -> Callable[[Iterable[Document]], Bytes]:
  """The 256 bytes."""
  return lambda documents: Bytes()


def characters() -> Callable[[Iterable[Document]], Characters]:
  """The characters of the whole corpus, also of held-out documents."""
  return characters_of


def characters_of(documents: Iterable[Document]) -> Characters:
  """Collects the alphabet of `documents`."""
  alphabet = set()
  for document in documents:
    alphabet.update(document.text)
  return Characters(''.join(sorted(alphabet)))


def frequent_bytes(
  vocab_size: Count,
) -> Callable[[Iterable[Document]], FrequentBytes]:
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

  return read


def word_list(
  vocab_size: Whole = 0, count: Count = 1
) -> Callable[[Iterable[Document]], WordList]:
  """The words of the training split, the most frequent first.

  Args:
    vocab_size: the most words, with `<unk>` and the end of document; 0: all.
    count: how often a word must occur.
  """

  def read(documents: Iterable[Document]) -> WordList:
    counts = collections.Counter()
    for document in documents:
      counts.update(_WORD.findall(document.text))
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

  return read


def word_list_file(
  path: str, size: Count, vocab_size: Whole = 0
) -> Callable[[Iterable[Document]], WordList]:
  """The words of a file of word vectors (GloVe), in its order.

  A text is split at white space, so words that hold any are left out.

  Args:
    path: in the text format; see optim.vectors.
    size: numbers of a vector.
    vocab_size: the first words of the file, with `<unk>` and the end of
      document; 0: all.
  """

  def read(documents: Iterable[Document]) -> WordList:
    del documents
    if 0 < vocab_size < 3:
      raise UsageError(
        f'tokenizer.name: words_file(vocab_size={vocab_size}) has no word; '
        'give at least 3, or 0 for all'
      )
    found = (
      word
      for word in vectors.words(path, size)
      if word != UNKNOWN and _WORD.fullmatch(word)
    )
    most = vocab_size - 2 if vocab_size else None
    kept = [*itertools.islice(found, most)]
    return WordList(kept)

  return read


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)
