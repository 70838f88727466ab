# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Source texts for an encoder-decoder, as they are given."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt_jax.data import lines
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import blanks, prompt_files
from gpt_jax.spec import UsageError


class Source(NamedTuple):
  """A text to answer.

  Attributes:
    where: the flag, or 'file:line', for errors.
    text: the text.
  """

  where: str
  text: str

  @property
  def fields(self) -> dict[str, Any]:
    """As a file has it."""
    return {'source': self.text}

  def encoded(self, tokenizer: Tokenizer) -> Any:
    """The ids of the text, int [N]; see `blanks.encode`, `sourced.read`.

    Args:
      tokenizer: of the model.

    Raises:
      UsageError: it cannot be encoded.
    """
    try:
      prompt_files.check(self.text)
      return blanks.encode(tokenizer, self.text)
    except UsageError as e:
      raise UsageError(f'{self.where}: {e}') from e


def given(texts: Sequence[str]) -> list[Source]:
  """Sources of the command line: see `prompt_files.typed`."""
  typed = prompt_files.typed('--source', texts)
  return [Source('--source', text) for text in typed]


def read(path: str) -> list[Source]:
  """Reads a file of sources.

  Lines of a .jsonl are objects with a `source`, those of any other file are
  sources themselves. None is empty, so that answers stand as the lines do.

  Raises:
    UsageError: a line does not do, or there is none.
  """
  found = [*lines.texts(path)]
  while found and not found[-1][1].strip():
    found.pop()
  of_json = os.path.splitext(path)[1] == '.jsonl'
  sources = []
  for where, line in found:
    text = prompt_files.entry(where, line).get('source') if of_json else line
    if not isinstance(text, str) or not text.strip():
      raise UsageError(
        f'{where}: needs a source, a text that is not empty; mend the line'
      )
    sources.append(Source(where, text))
  if not sources:
    raise UsageError(f'--sources={path}: holds no source')
  return sources
