# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens begin a word, for masks that take words whole.

In text a word begins at a space, which belongs to it, and at what is neither
letter nor digit, and after it; each ideograph is a word, as for BERT. Encodings
that mark where words go on (`##`) or end (`</w>`) are taken at their word.
"""

import collections
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import saved, special

SPACE_MARK = '\u2581'  # a space inside the pieces of SentencePiece

_BYTE = re.compile(r'<0x([0-9A-F]{2})>')
_IDEOGRAPH = re.compile(
  '[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]'
)


class Words(NamedTuple):
  """Of each id, whether its token begins a word, or the one after it does.

  Attributes:
    begins: bool [vocab_size].
    closes: bool [vocab_size], the next token begins a word.
  """

  begins: np.ndarray
  closes: np.ndarray

  def starts(self, ids: np.ndarray) -> np.ndarray:
    """Bool [..., L] for rows of ids [..., L]; the first of a row is True."""
    ids = np.asarray(ids)
    found = self.begins[ids]
    found[..., :1] = True
    found[..., 1:] |= self.closes[ids[..., :-1]]
    return found


def of_text(pieces: Iterable[bytes | None]) -> Words:
  """By the UTF-8 of each piece, which may be part of a character's.

  Args:
    pieces: in order of their ids; None: a special token, a word by itself.
  """
  begins, closes = [], []
  for piece in pieces:
    text = None if piece is None else piece.decode(errors='ignore')
    if text:
      begins.append(not _goes_on(text[0]))
      closes.append(not _goes_on(text[-1]) and text[-1] != ' ')
    else:
      begins.append(piece is None)
      closes.append(piece is None)
  return Words(np.array(begins, bool), np.array(closes, bool))


def of_prefix(pieces: Iterable[str], prefix: str) -> Words:
  """Where pieces inside of a word begin with `prefix`, as WordPiece's."""
  begins = np.array([not piece.startswith(prefix) for piece in pieces], bool)
  return Words(begins, np.zeros_like(begins))


def of_suffix(pieces: Iterable[str | None], suffix: str) -> Words:
  """Where the last piece of a word ends with `suffix`; None: special."""
  pieces = list(pieces)
  begins = np.array([piece is None for piece in pieces], bool)
  ends = [piece is None or piece.endswith(suffix) for piece in pieces]
  return Words(begins, np.array(ends, bool))


def of_bytes(piece: str) -> bytes:
  """The bytes of a piece of byte-level BPE, spelled as GPT-2 does."""
  return b''.join(_SPELLED.get(c, c.encode()) for c in piece)


def spelled(byte: int) -> str:
  """The character of a byte in pieces of byte-level BPE: see `of_bytes`."""
  return _CHARACTERS[byte]


def of_marks(piece: str) -> bytes:
  """The bytes of a piece of SentencePiece, or of what it spells in bytes."""
  if found := _BYTE.fullmatch(piece):
    return bytes([int(found[1], 16)])
  return piece.replace(SPACE_MARK, ' ').encode()


def _goes_on(character: str) -> bool:
  """Whether a character may stand inside of a word."""
  letter = character.isalnum() or unicodedata.category(character)[0] == 'M'
  return letter and not _IDEOGRAPH.match(character)


def _spelling() -> dict[str, bytes]:
  """Printable bytes spell themselves; others are characters from U+0100 on."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in printable]
  spelled = {chr(byte): bytes([byte]) for byte in printable}
  return spelled | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


_SPELLED = _spelling()
_CHARACTERS = {byte[0]: character for character, byte in _SPELLED.items()}


# Words as WikiText has them: what stands between white space, and line ends.
#
# Not lossless: spaces become one, and rare words `<unk>`. The perplexity per
# token is the papers' per word, of which a line's end is one, and the end of a
# document. Ids go by frequency, as an adaptive softmax needs them.


_WORD = re.compile(r'\n|[^\s]+')
# In a text it is this word, too: WikiText is published with it.
UNKNOWN = '<unk>'
_UNKNOWN_ID = 1
_EDGES = re.compile(r' ?\n ?')


class WordList:
  """A list of words, the end of document and the unknown word before them."""

  kind = 'words'
  eos_id = 0
  special = special.of({}, eos_id, {})
  in_threads = False
  parts_at_spaces = True
  run_ids = frozenset()

  def __init__(self, words: Sequence[str]):
    """`words` have the ids from 2 on."""
    self.words = [*words]
    self._ids = {word: i for i, word in enumerate(words, start=2)}
    self.vocab_size = len(self.words) + 2

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self._contents())

  def encode(self, text: str) -> np.ndarray:
    found = [self._ids.get(w, _UNKNOWN_ID) for w in _WORD.findall(text)]
    return np.array(found, np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

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

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self._contents())

  def _contents(self) -> dict[str, bytes]:
    return {'words.json': json.dumps(self.words).encode()}


def words(
  vocab_size: Whole = 0, count: Count = 1
) -> Callable[[Iterable[Document]], WordList]:
  """The words of the training split, the most frequent first.

  Args:
    vocab_size: how many at most, with `<unk>` and the end of document; 0: all.
    count: only those that occur so often.
  """

  def read(documents: Iterable[Document]) -> WordList:
    counts = collections.Counter()
    for document in documents:
      counts.update(_WORD.findall(document.text))
    del counts[UNKNOWN]
    # Ties in the order of the words: that of the documents does not matter.
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


# The smallest tokenizers: bytes, and the characters of a corpus.


class Bytes:
  """The 256 values of a byte of UTF-8, and the end of document.

  Lossless. Bytes that are not UTF-8 decode to U+FFFD.
  """

  kind = 'bytes'
  vocab_size = 257
  eos_id = 256
  special = special.of({}, eos_id, {})
  _words = of_text([*(bytes([i]) for i in range(eos_id)), None])
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
    self._words = of_text([*(c.encode() for c in alphabet), None])

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
