# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""JSON of users' files: the value of a line, and the texts of an object."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from gpt_jax.data.sources.source import Bad

# Names of an object that a message lists.
_LISTED = 20


def value(where: str, data: bytes, once: Collection[str] | None = None) -> Any:
  """The value of JSON in UTF-8.

  Args:
    where: it is, for messages.
    data: a line, or a file.
    once: names that no object may have twice, since all but the last value
      would be lost; None: any.

  Raises:
    Bad: it is no JSON, or nothing that Python can read: a number of thousands
      of digits, values within values a thousand deep.
  """

  def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(found)
    if len(made) < len(found):
      seen = set()
      for name, _ in found:
        if name in seen and (once is None or name in once):
          raise ValueError(f'an object has {name!r:.60} twice')
        seen.add(name)
    return made

  try:
    return json.loads(data.decode('utf-8'), object_pairs_hook=pairs)
  except UnicodeDecodeError as e:
    raise Bad(where, 'is not UTF-8', f': byte {e.start}') from e
  except RecursionError as e:
    raise Bad(where, 'is not JSON', ': values within values, too deep') from e
  except ValueError as e:
    # Python's own advice, after the ';', is for programmers.
    why = str(e).partition(';')[0]
    raise Bad(where, 'is not JSON', f': {why}; mend or remove it') from e


def record(where: str, data: bytes) -> Any:
  """As `value`, of which all texts are used and hold characters alone."""
  found = value(where, data)
  if b'\\u' in data:  # an escape may write half of a surrogate pair
    for text in texts(found):
      _check_characters(where, text)
  return found


def texts(found: Any) -> Iterator[str]:
  """All texts in a JSON value, in order."""
  left = [found]
  while left:
    part = left.pop()
    if isinstance(part, str):
      yield part
    elif isinstance(part, dict):
      left += reversed(part.values())
    elif isinstance(part, list):
      left += reversed(part)


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
  found, wanted = value(where, line, fields), []
  for field in fields:
    if not isinstance(found, dict) or not isinstance(found.get(field), str):
      held = type(found).__name__
      if isinstance(found, dict):
        held = sorted(found)[:_LISTED]
      raise Bad(
        where,
        f'has no text under {field!r}',
        f', it holds {held}; name the entry as in {call}',
      )
    wanted.append(found[field])
    if b'\\u' in line:  # an escape may write half of a surrogate pair
      _check_characters(where, wanted[-1], f' in {field!r}')
  return wanted


def _check_characters(where: str, text: str, place: str = ''):
  """Refuses half of a surrogate pair; `place` is said after it."""
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as e:
    raise Bad(
      where,
      'holds half of a surrogate pair',
      f': {text[e.start]!r}{place} is no character; remove it',
    ) from e
