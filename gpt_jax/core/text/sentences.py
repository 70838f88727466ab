# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where sentences begin: after terminal punctuation and space, and in lines.

There is no model of a language: "e.g. this" counts as two. Spaces belong to the
sentence before them, so that joined sentences are the text again.
"""

import re
from collections.abc import Iterator

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
