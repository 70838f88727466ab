# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where sentences begin: after terminal punctuation and space, and in lines.

There is no model of a language: "e.g. this" counts as two. Spaces belong to the
sentence before them, so that joined sentences are the text again.

With `data.sentences = 'terminal'` a token store notes where sentences end. A
document is encoded as a whole, and the boundaries that a splitter finds are
looked up in its tokens, so that the tokens do not depend on the splitter. Most
tokenizers would encode a single sentence differently: in "It rains. It" the
second "It" has a space before it. A token that spans the space and the next
word belongs to the sentence of its last character.
"""

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gpt_jax import spec

# A run of space is tried once, from its start: long ones take linear time.
_END = re.compile(r'[.!?]["\'\u201d\u2019)\]]*\s+|(?<!\s)\s*\n\s*')


def spans(text: str) -> Iterator[tuple[int, int]]:
  """Yields the first character of each sentence, and after its last."""
  start = 0
  for end in _END.finditer(text):
    if not text[start : end.end()].isspace():
      yield start, end.end()
      start = end.end()
  if start < len(text):
    yield start, len(text)


def count_sentences(text: str) -> int:
  """The number of sentences of a text."""
  return sum(1 for _ in spans(text))


# Maps a text to the end of each sentence in characters; the last is its length.
Splitter = Callable[[str], Iterable[int]]


def splitter(text: str) -> Splitter | None:
  """The splitter that `data.sentences` names; None for 'none'."""
  return spec.build('data.sentences', text, SPLITTERS)


def in_tokens(
  split: Splitter, text: str, offsets: np.ndarray, last: bool
) -> np.ndarray:
  """After which tokens of a text sentences end, without the document's end.

  Args:
    text: a document, or a piece of a long one.
    last: whether the document ends with it.

  Returns:
    int64 [S], ascending, above 0.
  """
  count = len(offsets)
  starts, stops = offsets.astype(np.int64).T
  # A token without a character of its own, such as the first byte of a
  # character that is spelled in several, ends where the next token does.
  stops = np.where(starts == stops, len(text) + 1, stops)
  stops = np.minimum.accumulate(stops[::-1])[::-1]
  inner = [stop for stop in split(text) if stop < len(text)]
  ends = np.unique(np.searchsorted(stops, inner, side='right'))
  ends = ends[(ends > 0) & (ends < count)]
  # A piece that does not end a line was cut within a sentence: see `encode`.
  if count and text.endswith('\n') and not last:
    ends = np.append(ends, count)
  return ends.astype(np.int64)


def none() -> None:
  """The store has no sentences."""


def terminal() -> Splitter:
  """After terminal punctuation and space, and at line ends."""
  return lambda text: (stop for _, stop in spans(text))


def lines() -> Splitter:
  """One a line, as BERT's data writer reads them."""
  return _lines


def _lines(text: str) -> Iterable[int]:
  start = 0
  while start := text.find('\n', start) + 1:
    yield start
  yield len(text)


SPLITTERS = {'none': none, 'terminal': terminal, 'lines': lines}
