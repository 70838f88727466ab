# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From tokens to text as it is shown: piece by piece, ended by stop texts."""

import itertools
from collections.abc import Sequence

from gpt_jax.data.tokenizers.tokenizer import Tokenizer

# What stands for bytes that are not UTF-8, or not yet.
_UNFINISHED = '\ufffd'
# A character has at most four bytes, so three may still become one. Decoders
# write one mark for all of them, or one for each.
_MOST_UNFINISHED = 3


class Stream:
  """The text of a continuation while its tokens arrive.

  All pieces together are what the tokenizer makes of prompt and continuation
  at once, without what it makes of the prompt. Nothing is shown that a later
  token would change: neither bytes of an unfinished character, nor a run of
  bytes that is decoded as a whole and may go on, nor what may be the beginning
  of a stop text.
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
    self._known = tokenizer.decode(self._before)
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
    ids = [*self._before, *self._new]
    text = self._tokenizer.decode(ids)
    num_closed = len(ids)
    while num_closed and ids[num_closed - 1] in self._tokenizer.run_ids:
      num_closed -= 1
    closed = num_closed == len(ids)
    final = text if closed else self._tokenizer.decode(ids[:num_closed])
    unfinished = _num_unfinished(final)
    self._find_stop(self._beyond(text[: len(text) - _num_unfinished(text)]))
    self._read(self._beyond(final[: len(final) - unfinished]))
    if closed and not unfinished and self._beyond(text):
      self._before, self._new, self._num_read = self._new, [], 0
      self._known = self._tokenizer.decode(self._before)
    return self._shown(self._num_beginning())

  def finish(self) -> str:
    """Returns the rest of the text, as no more tokens come."""
    text = self._tokenizer.decode([*self._before, *self._new])
    self._find_stop(self._beyond(text))
    self._read(self._beyond(text))
    return self._shown(0)

  def _beyond(self, text: str) -> str:
    """The text of the new tokens: what is not known yet.

    The known text may end with marks of bytes that the new tokens complete.
    """
    pairs = zip(text, self._known, strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return text[sum(1 for _ in same) :]

  def _find_stop(self, text: str) -> None:
    """Ends all before the first stop text in that of the new tokens."""
    if self._stopped:
      return
    all_ = self._held + text[self._num_read :]
    ends = [at for s in self._stop if (at := all_.find(s)) >= 0]
    if ends:
      self._stopped, self._held = True, all_[: min(ends)]

  def _read(self, text: str) -> None:
    """Takes the text of the new tokens, which no later one changes."""
    if not self._stopped:
      self._held += text[self._num_read :]
      self._num_read = max(self._num_read, len(text))

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


def _num_unfinished(text: str) -> int:
  """How many marks at the end may still become a character."""
  return min(len(text) - len(text.rstrip(_UNFINISHED)), _MOST_UNFINISHED)
