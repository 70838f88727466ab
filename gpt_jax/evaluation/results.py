# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of one step on disk, written whenever there are new ones."""

import json
import os
from typing import Any

from gpt_jax.data import json_file
from gpt_jax.evaluation.figures import Figures
from gpt_jax.training import metrics


class Results:
  """A JSON file with `step`, `model` and results by `eval/NAME/...`."""

  def __init__(self, path: str, *, step: int, model: str):
    """Loads earlier results of the same model.

    Args:
      path: of the file, which need not exist.
      step: of the model.
      model: its fingerprint; results of other models are dropped.
    """
    self._path = path
    self._values: dict[str, Any] = {'step': step, 'model': model}
    self._new: set[str] = set()
    if os.path.exists(path):
      remedy = 'remove it, and it is measured again'
      found = json_file.read(path, remedy=remedy)
      if found.get('model') == model:
        self._values = found

  def add(self, figures: Figures) -> None:
    """Adds new results and writes the file.

    Drops what an earlier process found for the same tasks: it may come from
    other data or another seed.
    """
    names = {key.split('/')[1] for key in figures}
    for name in names - self._new:
      old = [k for k in self._values if k.startswith(f'eval/{name}/')]
      for key in old:
        del self._values[key]
    self._new |= names
    self._values |= figures
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    text = json.dumps(self._values, indent=1)
    metrics.write_atomically(self._path, text + '\n')
