# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of one step on disk, written whenever there are new ones."""

import os
from collections.abc import Mapping
from typing import Any

from gpt_jax.data import json_file
from gpt_jax.evaluation import names
from gpt_jax.evaluation.figures import Figures
from gpt_jax.spec import UsageError
from gpt_jax.training import metrics


class Results:
  """A JSON file with `step`, `model` and results by `eval/NAME/...`.

  `tasks` holds the call of each task by its name, so that no task replaces the
  results of another.
  """

  def __init__(
    self,
    path: str,
    *,
    step: int,
    model: str,
    tasks: Mapping[str, str],
    limit: int | None = None,
  ):
    """Loads earlier results of the same model.

    Args:
      path: of the file, which need not exist.
      step: of the model.
      model: its fingerprint; results of other models are dropped.
      tasks: those to be measured: the call by the name.
      limit: examples of each task; such results have a file of their own.

    Raises:
      UsageError: the file has results of another task under one of the names.
    """
    self._path, self._tasks = path, tasks
    self._values: dict[str, Any] = {'step': step, 'model': model}
    if limit is not None:
      self._values['limit'] = limit
    self._new: set[str] = set()
    if os.path.exists(path):
      remedy = 'remove it, and it is measured again'
      found = json_file.read(path, remedy=remedy)
      if found.get('model') == model:
        self._values = found
    self._calls: dict[str, str] = self._values.setdefault('tasks', {})
    for name, call in tasks.items():
      before = self._calls.get(name, call)
      if before != call:
        raise UsageError(
          f'--tasks: {path} holds eval/{name} of {before}, not of {call}; give '
          'this one a name of its own by name=, or remove the file'
        )

  def add(self, figures: Figures) -> None:
    """Adds new results and writes the file.

    Drops what an earlier process found for the same tasks: it may come from
    other data or another seed.
    """
    known = {*self._tasks, *self._calls}
    owners = {names.owner(key, known) for key in figures}
    replaced = owners - self._new
    for key in [*self._values]:
      if key.startswith('eval/') and names.owner(key, known) in replaced:
        del self._values[key]
    self._new |= owners
    self._calls |= {n: c for n, c in self._tasks.items() if n in owners}
    self._values |= figures
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    text = metrics.to_json(self._values, indent=1)
    metrics.write_atomically(self._path, text + '\n')
