# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the sentences of a token store end: the choices of `data.sentences`.

A document is encoded as a whole, and the boundaries that a splitter finds are
looked up in its tokens, so that the tokens do not depend on the splitter. Most
tokenizers would encode a single sentence differently: in "It rains. It" the
second "It" has a space before it. A token that spans the space and the next
word belongs to the sentence of its last character.
"""

import functools
from collections.abc import Callable, Iterable

import numpy as np

from gpt_jax.core.text.sentences import spans
from gpt_jax.core.tokens.store import Splitter

# Maps a text to the end of each sentence in characters; the last is its length.
Split = Callable[[str], Iterable[int]]


def terminal() -> Splitter:
  """After terminal punctuation and space, and at line ends."""
  return functools.partial(in_tokens, lambda text: (stop for _, stop in spans(text)))


def lines() -> Splitter:
  """One sentence per line, as in the input of BERT's data writer."""
  return functools.partial(in_tokens, line_ends)


def line_ends(text: str) -> Iterable[int]:
  """After each line feed, and at the end."""
  start = 0
  while start := text.find('\n', start) + 1:
    yield start
  yield len(text)


def in_tokens(split: Split, text: str, offsets: np.ndarray, last: bool) -> np.ndarray:
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
