# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores on disk, so that a stopped evaluation resumes after its last batch.

One JSON line per batch. An incomplete last line is ignored.
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
    head = json.dumps({'model': self._key, 'rows': rows})
    found, whole = {}, []
    if self._path is None:
      return found
    if os.path.exists(self._path):
      with open(self._path, encoding='utf-8') as f:
        lines = f.read().split('\n')
      if lines[0] == head:
        for line in lines[1:-1]:  # the last is empty or incomplete
          found.update({int(i): score for i, score in json.loads(line).items()})
          whole.append(line)
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    with open(self._path, 'w', encoding='utf-8') as f:
      f.write('\n'.join([head, *whole, '']))
    return found

  def add(self, scores: dict[int, Any]) -> None:
    """Appends new scores."""
    if self._path is not None:
      with open(self._path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(scores) + '\n')
