# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where sentences begin: after terminal punctuation and space, and in lines.

No model of a language: "e.g. this" counts as two. Spaces belong to the sentence
before, so that the sentences of a text joined are the text.
"""

import re
from collections.abc import Iterator

_END = re.compile(r'[.!?]["\'\u201d\u2019)\]]*\s+|\s*\n\s*')


def spans(text: str) -> Iterator[tuple[int, int]]:
  """Yields the first character of each sentence, and after its last."""
  start = 0
  for end in _END.finditer(text):
    if not text[start : end.end()].isspace():
      yield start, end.end()
      start = end.end()
  if start < len(text):
    yield start, len(text)


def count(text: str) -> int:
  """How many sentences a text has."""
  return sum(1 for _ in spans(text))
