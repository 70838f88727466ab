# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of one step on disk, written whenever there are new ones."""

import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.decoding import requests
from gpt_jax.evaluation import names
from gpt_jax.files import files
from gpt_jax.spec import FailedError, UsageError
from gpt_jax.training import metrics

# Results with standard errors.


# Numbers, but for a signature such as BLEU's.
Figures = dict[str, Any]


def check_finite(found: Figures) -> None:
  """Checks that every result is a number.

  Raises:
    FailedError: one is NaN or infinite.
  """
  for name, value in found.items():
    if isinstance(value, float) and not math.isfinite(value):
      raise FailedError(f'{name} of the model is {value}: {requests.DAMAGED}')


def mean(name: str, values: Sequence[float]) -> Figures:
  """The mean over examples and its standard error, s / sqrt(n)."""
  array = np.asarray(values, np.float64)
  error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else 0.0
  return {name: float(array.mean()), f'{name}_stderr': float(error)}


def clean(
  numbers: Sequence[int],
  seen: Collection[int] | None,
  measured: Callable[[Sequence[int]], Figures],
) -> Figures:
  """The results of examples that training has not seen, as NAME_clean.

  GPT-3, section 4 and table C.1. Of the results, those with an error, since
  others say what the examples are.

  Args:
    numbers: of the examples.
    seen: which of them training has seen; None: it is not known.
    measured: computes results of examples.
  """
  if seen is None:
    return {}
  rest = [n for n in numbers if n not in seen]
  found = measured(rest) if rest else {}
  out: Figures = {}
  for name in found:
    error = f'{name}_stderr'
    if error in found and '/' not in name:
      out |= {
        f'{name}_clean': found[name],
        f'{name}_clean_stderr': found[error],
      }
  return out | {'examples_clean': len(rest)}


def mean_of_groups(name: str, groups: Sequence[Sequence[float]]) -> Figures:
  """The unweighted mean of the groups' means.

  Groups are independent, so the error is sqrt(sum of squared errors) / n.
  """
  found = [mean('x', values) for values in groups]
  error = math.sqrt(sum(f['x_stderr'] ** 2 for f in found)) / len(found)
  return {
    name: float(np.mean([f['x'] for f in found])),
    f'{name}_stderr': error,
  }


def ratio(name: str, sums: Sequence[float], counts: Sequence[float]) -> Figures:
  """R = sum(y) / sum(x) over parts of different sizes, such as windows.

  First-order error (the delta method; Cochran, Sampling Techniques, section
  2.11), from the residuals y - R x of the parts:
  sqrt(n / (n - 1) sum((y - R x)^2)) / sum(x). For equal x it is that of `mean`.
  """
  y, x = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
  value, n = y.sum() / x.sum(), len(y)
  squares = np.square(y - value * x).sum()
  error = math.sqrt(n / (n - 1) * squares) / x.sum() if n > 1 else 0.0
  return {name: float(value), f'{name}_stderr': float(error)}


def exponential(name: str, value: float, error: float) -> Figures:
  """Exp of a value, with its first-order error.

  Omitted if it is too large for a float, as it may be for an untrained model.
  """
  if value >= math.log(sys.float_info.max):
    return {}
  return {name: math.exp(value), f'{name}_stderr': math.exp(value) * error}


def perplexity(name: str, losses: Sequence[float]) -> Figures:
  """Exp of the mean loss in nats, with first-order error p s / sqrt(n)."""
  found = mean('x', losses)
  return exponential(name, found['x'], found['x_stderr'])


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
    """
    self._path, self._tasks = path, tasks
    self._values: dict[str, Any] = {'step': step, 'model': model}
    if limit is not None:
      self._values['limit'] = limit
    self._new: set[str] = set()
    if os.path.exists(path):
      remedy = 'remove it, and it is measured again'
      found = files.read_json(path, remedy=remedy)
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
