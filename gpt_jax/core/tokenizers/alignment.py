# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exact ranges of tokens, from those that the `tokenizers` library gives.

The library gives each byte of a run of unknown characters the range of the
whole run, and leaves out characters that a normalizer joins to others, such as
the accent of a letter. What a token spells tells which characters it is from.
"""

import functools
import re
from typing import Any

import numpy as np
import tokenizers

from gpt_jax.core.tokenizers.words import SPACE_MARK

_BYTE = re.compile(r'<0x([0-9A-F]{2})>')
# Around a text that is normalized in part, so that it is not at an end.
_EDGE = '|'
_PAIRS = 1 << 16  # of characters whose normalization is remembered


class Alignment:
  """Aligns the tokens of a library with the characters of texts."""

  def __init__(self, library: tokenizers.Tokenizer):
    """`library` no longer changes its normalizer."""
    self._normalizer: Any = library.normalizer
    self._joined = functools.lru_cache(_PAIRS)(self._joins)

  def ranges(self, text: str, encoding: tokenizers.Encoding) -> np.ndarray:
    """Start and stop of each token, int32 [num_tokens, 2]."""
    found = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    if self._normalizer is not None:
      self._extend(text, found)
    same = np.flatnonzero((found[1:] == found[:-1]).all(1) & (found[1:, 1] - found[1:, 0] > 1))
    if len(same):
      spelled = encoding.tokens
      ends = np.flatnonzero(np.diff(same) > 1)
      firsts = [same[0], *same[ends + 1]]
      for first, last in zip(firsts, [*same[ends], same[-1]], strict=True):
        run = slice(first, last + 2)
        self._split(text, spelled[run], found[run])
    return found

  def _extend(self, text: str, found: np.ndarray) -> None:
    """Adds characters without a token that are joined to their neighbours."""
    steps = np.zeros(len(text) + 1, np.int64)
    np.add.at(steps, found[:, 0], 1)
    np.add.at(steps, found[:, 1], -1)
    uncovered = np.flatnonzero(np.cumsum(steps)[:-1] <= 0).tolist()
    if not uncovered:
      return
    before, after = np.arange(len(text) + 1), np.arange(len(text) + 1)
    for i in uncovered:
      if self._joined(text[i : i + 2]):
        before[i + 1] = before[i]
    for i in reversed(uncovered):
      if i and self._joined(text[i - 1 : i + 1]):
        after[i] = after[i + 1]
    found[:, 0], found[:, 1] = before[found[:, 0]], after[found[:, 1]]

  def _split(self, text: str, spelled: list[str], found: np.ndarray) -> None:
    """Gives tokens of one range their own characters, if these are known."""
    start, stop = found[0].tolist()
    parts = [_bytes(token) for token in spelled]
    clusters = self._clusters(text[start:stop])
    try:
      whole = b''.join(parts).decode()
    except UnicodeDecodeError:
      return
    marked = ''.join(part for part, _ in clusters).replace(' ', SPACE_MARK)
    owners = [i for i, (part, _) in enumerate(clusters) for _ in part]
    spelled_marks = whole.replace(' ', SPACE_MARK)
    if spelled_marks == SPACE_MARK + marked:
      owners = owners[:1] + owners  # the mark before a text
    elif marked.count(spelled_marks) == 1:
      # At an end other tokens may have a part of a character.
      at = marked.index(spelled_marks)
      owners = owners[at : at + len(whole)]
    else:
      return
    of_bytes = np.repeat(owners, [len(c.encode()) for c in whole])
    bounds = start + np.cumsum([0, *(size for _, size in clusters)])
    ends = np.cumsum([len(part) for part in parts])
    firsts = ends - np.array([len(part) for part in parts])
    found[:, 0] = bounds[of_bytes[firsts]]
    found[:, 1] = bounds[of_bytes[ends - 1] + 1]

  def _clusters(self, text: str) -> list[tuple[str, int]]:
    """What each part of a text becomes, and how many characters it has.

    Parts are as short as possible, so that the whole is the parts joined.
    """
    if self._inside(text) == text:
      return [(character, 1) for character in text]
    starts = [0]
    starts += [i for i in range(1, len(text)) if not self._joined(text[i - 1 : i + 1])]
    parts = zip(starts, [*starts[1:], len(text)], strict=True)
    return [(self._inside(text[i:j]), j - i) for i, j in parts]

  def _joins(self, pair: str) -> bool:
    """Whether two characters become something else than each alone."""
    return len(pair) > 1 and self._inside(pair) != ''.join(map(self._inside, pair))

  def _inside(self, text: str) -> str:
    """What a part of a text becomes that is not at an end."""
    if self._normalizer is None:
      return text
    whole = self._normalizer.normalize_str(f'{_EDGE}{text}{_EDGE}')
    return whole.partition(_EDGE)[2].rpartition(_EDGE)[0]


def _bytes(token: str) -> bytes:
  """What a token spells, maybe one byte."""
  found = _BYTE.fullmatch(token)
  return bytes([int(found[1], 16)]) if found else token.encode()
