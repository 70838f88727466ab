# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a tokenizer keeps a text."""

from gpt_jax.core.tokenizers.tokenizer import Tokenizer

_LOOK = 1 << 14  # characters that are checked for changes
_CONTEXT = 20  # characters around a difference


def change(made: Tokenizer, text: str) -> str:
  """A warning that a tokenizer changes the beginning of a text, or ''."""
  text = text[:_LOOK]
  back = made.decode(made.encode(text))
  if back == text:
    return ''
  before, after = difference(text, back)
  return (
    f'does not keep the text ({before!r} comes back as {after!r}): bits per '
    'byte are of what is left of it, and compare with those of no other '
    'tokenizer'
  )


def difference(text: str, back: str) -> tuple[str, str]:
  """Both sides around the first character that differs."""
  shorter = min(len(text), len(back))
  low, high = 0, shorter  # bisection: comparing slices is fast
  while low < high:
    middle = (low + high + 1) // 2
    if text[:middle] == back[:middle]:
      low = middle
    else:
      high = middle - 1
  start = max(low - _CONTEXT, 0)
  stop = low + _CONTEXT
  return text[start:stop], back[start:stop]
