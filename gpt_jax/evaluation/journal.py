# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores on disk, so that a stopped evaluation resumes after its last batch.

One JSON line per batch. What a killed process wrote last, or a crash of the
machine left damaged, is cut off.
"""

import json
import os
from typing import Any


class Journal:
  """A file of scores by row number, for one set of rows and one model."""

  def __init__(self, path: str | None, key: str):
    """Opens a file, which need not exist; None keeps nothing.

    `key` identifies the model: scores of other models are ignored.
    """
    self._path, self._key = path, key

  def start(self, rows: str) -> dict[int, Any]:
    """Returns earlier scores of these rows, by row number.

    Deletes scores of other rows or of another model.
    """
    head = json.dumps({'model': self._key, 'rows': rows}).encode()
    found = {}
    if self._path is None:
      return found
    sound = 0
    if os.path.exists(self._path):
      with open(self._path, 'rb') as f:
        first, *lines = f.read().split(b'\n')
      if first == head:
        sound = len(first) + 1
        for line in lines[:-1]:  # the last is empty or incomplete
          try:
            scores = json.loads(line)
          except ValueError:
            break
          found.update({int(i): score for i, score in scores.items()})
          sound += len(line) + 1
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    # What is there stays there: being killed now loses nothing either.
    with open(self._path, 'ab') as f:
      f.truncate(sound)
      if not sound:
        f.write(head + b'\n')
    return found

  def add(self, scores: dict[int, Any]) -> None:
    """Appends new scores."""
    if self._path is not None:
      with open(self._path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(scores) + '\n')
