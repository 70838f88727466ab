# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Passages of documents: how they are cut, and whose they are."""

import re
from collections.abc import Callable, Iterator

from gpt_jax import spec

_BLANK_LINES = re.compile(r'\r?\n\s*\n')
_NUMBERS = re.compile(r'(?:#\d+)+$')


def parents(
  field: str, text: str, *, cleaned: bool = False
) -> Callable[[str], str]:
  """How the name of a document tells which one it was cut from.

  Numbers at the end of a name are left out where something may have cut
  documents: of 'book.txt#7' and 'book.txt#7#0' the parent is 'book.txt'. Else
  each document is its own parent.

  Args:
    field: where the call stands in the config.
    text: a call of a source.
    cleaned: whether `data.clean` was applied, which may cut any document.
  """
  call = spec.parse(field, text)[0]
  if cleaned or call.name == 'passages':
    return _without_numbers
  cut = {
    pair.key
    for pair in call.args
    if call.name == 'mixture'
    and spec.parse(f'data.sources.{pair.key}', pair.value)[0].name == 'passages'
  }
  return lambda name: (
    _without_numbers(name) if name.partition('/')[0] in cut else name
  )


def _without_numbers(name: str) -> str:
  return _NUMBERS.sub('', name)


def cut(text: str, chars: int) -> Iterator[str]:
  """Cuts a text at the first blank line after each `chars` characters."""
  start = 0
  for blank in _BLANK_LINES.finditer(text):
    if blank.start() - start >= chars:
      yield text[start : blank.start()]
      start = blank.end()
  if start < len(text):
    yield text[start:]
