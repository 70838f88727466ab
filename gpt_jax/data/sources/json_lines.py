# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The texts of a JSON line."""

import json
from collections.abc import Sequence

from gpt_jax.data.sources.source import Bad


def entries(
  where: str, line: bytes, fields: Sequence[str], call: str
) -> list[str]:
  """Returns the texts under some fields of a JSON object.

  Args:
    where: the line is, for messages.
    line: in UTF-8.
    fields: of the object.
    call: an example of how a config names them.

  Raises:
    Bad: the line is no such object.
  """
  try:
    value = json.loads(line.decode('utf-8'))
  except UnicodeDecodeError as e:
    raise Bad(where, 'is not UTF-8', f': byte {e.start}') from e
  except (json.JSONDecodeError, RecursionError) as e:
    raise Bad(where, 'is not JSON', f': {e}') from e
  texts = []
  for field in fields:
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
      held = sorted(value) if isinstance(value, dict) else type(value).__name__
      raise Bad(
        where,
        f'has no text under {field!r}',
        f', it holds {held}; name the entry as in {call}',
      )
    texts.append(value[field])
    if b'\\u' in line:  # an escape may write half of a surrogate pair
      _check_characters(where, field, texts[-1])
  return texts


def _check_characters(where: str, field: str, text: str):
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as e:
    raise Bad(
      where,
      'holds half of a surrogate pair',
      f': {text[e.start]!r} in {field!r} is no character; remove it',
    ) from e
