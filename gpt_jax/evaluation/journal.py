# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores on disk: an evaluation that is stopped goes on after its last batch.

One JSON line a batch. What a killed process left half is not read.
"""

import json
import os
from typing import Any


class Journal:
  """A file of scores by number, of one set of rows and one model."""

  def __init__(self, path: str | None, key: str):
    """Takes a file, which need not be there; None keeps nothing.

    `key` says which model it is: scores of another are not taken.
    """
    self._path, self._key = path, key

  def start(self, rows: str) -> dict[int, Any]:
    """The scores of these rows that were found before, by number.

    Scores of other rows, or of another model, are deleted.
    """
    head = json.dumps({'model': self._key, 'rows': rows})
    found, whole = {}, []
    if self._path is None:
      return found
    if os.path.exists(self._path):
      with open(self._path, encoding='utf-8') as f:
        lines = f.read().split('\n')
      if lines[0] == head:
        for line in lines[1:-1]:  # the last has no line break: empty, or half
          found.update({int(i): score for i, score in json.loads(line).items()})
          whole.append(line)
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    with open(self._path, 'w', encoding='utf-8') as f:
      f.write('\n'.join([head, *whole, '']))
    return found

  def add(self, scores: dict[int, Any]) -> None:
    """Notes down new scores."""
    if self._path is not None:
      with open(self._path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(scores) + '\n')
