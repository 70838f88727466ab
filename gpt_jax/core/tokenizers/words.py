# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens begin a word, for masks of whole words.

In text a word begins at a space, which belongs to it, and before and after any
character that is neither letter nor digit; each ideograph is a word, as in
BERT, and each kana. Encodings that mark where words continue (`##`) or end
(`</w>`) decide for themselves.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

SPACE_MARK = '\u2581'  # a space inside the pieces of SentencePiece

_BYTE = re.compile(r'<0x([0-9A-F]{2})>')
_IDEOGRAPH = re.compile(
  '[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]'
)


class Words(NamedTuple):
  """Whether the token of each id begins a word, or the token after it does."""

  begins: np.ndarray  # bool [vocab_size]
  closes: np.ndarray  # bool [vocab_size], the next token begins a word

  def starts(self, ids: np.ndarray) -> np.ndarray:
    """Bool [..., L] for rows of ids [..., L]; the first of a row is True."""
    ids = np.asarray(ids)
    found = self.begins[ids]
    found[..., :1] = True
    found[..., 1:] |= self.closes[ids[..., :-1]]
    return found


def of_text(pieces: Iterable[bytes | None]) -> Words:
  """From the UTF-8 of each piece, which may be part of a character.

  Args:
    pieces: in the order of ids; None: a special token, a word of its own.
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
  """For pieces that begin with `prefix` inside a word, as in WordPiece."""
  begins = np.array([not piece.startswith(prefix) for piece in pieces], bool)
  return Words(begins, np.zeros_like(begins))


def of_suffix(pieces: Iterable[str | None], suffix: str) -> Words:
  """For pieces that end with `suffix` at the end of a word; None: special."""
  pieces = list(pieces)
  begins = np.array([piece is None for piece in pieces], bool)
  ends = [piece is None or piece.endswith(suffix) for piece in pieces]
  return Words(begins, np.array(ends, bool))


def of_bytes(piece: str) -> bytes:
  """The bytes of a piece of byte-level BPE, in GPT-2's spelling."""
  return b''.join(_SPELLED.get(c, c.encode()) for c in piece)


def spelled(byte: int) -> str:
  """The character of a byte in pieces of byte-level BPE."""
  return _CHARACTERS[byte]


def of_marks(piece: str) -> bytes:
  """The bytes of a piece of SentencePiece, also of a byte token."""
  if found := _BYTE.fullmatch(piece):
    return bytes([int(found[1], 16)])
  return piece.replace(SPACE_MARK, ' ').encode()


def _goes_on(character: str) -> bool:
  """Whether a character may be inside a word."""
  letter = character.isalnum() or unicodedata.category(character)[0] == 'M'
  return letter and not _IDEOGRAPH.match(character)


def _spelling() -> dict[str, bytes]:
  """Printable bytes are themselves; others are characters from U+0100 on."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [byte for byte in range(256) if byte not in printable]
  spelled = {chr(byte): bytes([byte]) for byte in printable}
  return spelled | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


_SPELLED = _spelling()
_CHARACTERS = {byte[0]: character for character, byte in _SPELLED.items()}
