# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From tokens to text as it is shown: piece by piece, ended by stop texts."""

from collections.abc import Sequence

from gpt_jax.data.tokenizers.tokenizer import Tokenizer

# What stands for bytes that are not UTF-8, or not yet.
_UNFINISHED = '\ufffd'
# A character has four bytes at most: so many may still become one.
_MOST_UNFINISHED = 3


class Stream:
  """The text of a continuation while its tokens arrive.

  Nothing is shown that a later token would change: neither bytes of an
  unfinished character, nor what may be the beginning of a stop text.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    stop: Sequence[str] = (),
  ):
    """`stop` are the texts before the first of which the continuation ends.

    They are not looked for in the prompt.
    """
    self._tokenizer = tokenizer
    self._stop = stop
    # Tokens are decoded after those before them, whose text is known: a space
    # between two is in neither of them alone.
    self._before = list(prompt_ids)
    # Then those before them are still needed: they begin a character.
    self._cut = tokenizer.decode(self._before).endswith(_UNFINISHED)
    self._new: list[int] = []
    self._num_read = 0  # characters of the new tokens' text
    self._held = ''
    self._stopped = False

  @property
  def stopped(self) -> bool:
    """Whether a stop text was met: no more text comes."""
    return self._stopped

  def push(self, token: int) -> str:
    """Takes a token; returns the text that may be shown now."""
    self._new.append(int(token))
    text = self._text()
    unfinished = len(text) - len(text.rstrip(_UNFINISHED))
    self._read(text[: len(text) - min(unfinished, _MOST_UNFINISHED)])
    if text and not unfinished:
      before = self._before if self._cut else []
      self._before, self._cut = before + self._new, False
      self._new, self._num_read = [], 0
    return self._shown(self._num_beginning())

  def finish(self) -> str:
    """Returns the rest of the text, as no more tokens come."""
    self._read(self._text())
    return self._shown(0)

  def _text(self) -> str:
    """The text of the new tokens."""
    decode = self._tokenizer.decode
    before = decode(self._before).rstrip(_UNFINISHED)
    return decode([*self._before, *self._new])[len(before) :]

  def _read(self, text: str) -> None:
    """Takes the text of the new tokens, up to the first stop text."""
    if self._stopped:
      return
    self._held += text[self._num_read :]
    self._num_read = max(self._num_read, len(text))
    ends = [at for s in self._stop if (at := self._held.find(s)) >= 0]
    if ends:
      self._stopped, self._held = True, self._held[: min(ends)]

  def _num_beginning(self) -> int:
    """Length of the longest end of the held text that may begin a stop."""
    if self._stopped:
      return 0
    longest = max((len(s) - 1 for s in self._stop), default=0)
    for size in range(min(longest, len(self._held)), 0, -1):
      if any(s.startswith(self._held[-size:]) for s in self._stop):
        return size
    return 0

  def _shown(self, num_kept: int) -> str:
    """All of the held text but the end."""
    at = len(self._held) - num_kept
    shown, self._held = self._held[:at], self._held[at:]
    return shown
