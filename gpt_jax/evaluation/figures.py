# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks of `evaluate`, and results with standard errors."""

import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from etils import epy

from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.files.progress import Report
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.evaluation.score import Journal, Scorer

with epy.lazy_imports():
  from gpt_jax.decoding import requests

T = TypeVar('T')
# Numbers by name; signatures, such as BLEU's, are text.
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
  error = 0.0
  if len(array) > 1:
    # From the first one: that of equal values is exactly 0.
    error = (array - array[0]).std(ddof=1) / math.sqrt(len(array))
  return {name: float(array.mean()), f'{name}_stderr': float(error)}


def clean(
  numbers: Sequence[int], seen: Collection[int] | None, measured: Callable[[Sequence[int]], Figures]
) -> Figures:
  """The results of examples that training has not seen, as NAME_clean.

  GPT-3, section 4 and table C.1. Only results with a standard error: the others
  describe the examples.

  Args:
    seen: those that training has seen; None if that is not known.
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
      out |= {f'{name}_clean': found[name], f'{name}_clean_stderr': found[error]}
  return out | {'examples_clean': len(rest)}


def mean_of_groups(name: str, groups: Sequence[Sequence[float]]) -> Figures:
  """The unweighted mean of the groups' means.

  Groups are independent, so the error is sqrt(sum of squared errors) / n.
  """
  found = [mean('x', values) for values in groups]
  error = math.sqrt(sum(f['x_stderr'] ** 2 for f in found)) / len(found)
  return {name: float(np.mean([f['x'] for f in found])), f'{name}_stderr': error}


def ratio(name: str, sums: Sequence[float], counts: Sequence[float]) -> Figures:
  """R = sum(y) / sum(x) over parts of different sizes, such as windows.

  First-order error (the delta method; Cochran, Sampling Techniques, section
  2.11), from the residuals y - R x of the parts:
  sqrt(n / (n - 1) sum((y - R x)^2)) / sum(x), as in `mean` for equal x.
  """
  y, x = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
  value, n = y.sum() / x.sum(), len(y)
  squares = np.square(y - value * x).sum()
  error = math.sqrt(n / (n - 1) * squares) / x.sum() if n > 1 else 0.0
  return {name: float(value), f'{name}_stderr': float(error)}


def exponential(name: str, value: float, error: float) -> Figures:
  """Exp of a value, with its first-order error.

  Omitted if too large for a float, as may happen with an untrained model.
  """
  if value >= math.log(sys.float_info.max):
    return {}
  return {name: math.exp(value), f'{name}_stderr': math.exp(value) * error}


def perplexity(name: str, losses: Sequence[float]) -> Figures:
  """Exp of the mean loss in nats, with first-order error p s / sqrt(n)."""
  found = mean('x', losses)
  return exponential(name, found['x'], found['x_stderr'])


class FigureCurve(NamedTuple):
  """A figure of a task over the checkpoints of a run."""

  task: str  # its name, and the number of shots
  figure: str  # its name: the first that the task reports, or `relative`
  # The figure and its standard error by step.
  values: dict[int, tuple[float, float]]


class Setting(NamedTuple):
  """How a task is measured."""

  shots: int = 0  # number of solved examples before each one
  seed: int = 0  # for drawing them
  # The first examples of each group to measure; None: all.
  limit: int | None = None
  # Positions of the `MeasuredTask.texts` that training has seen; None if that
  # is not known.
  seen: frozenset[int] | None = None
  outputs: str = ''  # file for the generated texts; '': they are not kept


class MeasuredTask(Protocol):
  """Texts, and a measure of a model on them."""

  @property
  def takes_shots(self) -> bool:
    """Whether there are few-shot examples to show."""
    ...

  @property
  def takes_sources(self) -> bool:
    """Whether the model generates texts for sources, as encoder-decoders can.

    Other tasks measure decoders alone.
    """
    ...

  def measure(self, scorer: Scorer, setting: Setting, journal: Journal, report: Report) -> Figures:
    """Measures a model; the main figure is first.

    With shots, `shots_shown` is the mean number that fitted into the context.
    If `setting.seen` is known, results of the unseen examples are added: see
    `clean`.
    """
    ...

  def check(self, shots: int) -> None:
    """Reads the measured examples, and the few-shot pool if `shots` > 0."""
    ...

  def texts(self) -> Sequence[tuple[str, str]]:
    """'file:line' and text of everything that training must not contain."""
    ...


# Makes a task from the folder of the task files.
Make = Callable[[str], MeasuredTask]


def read_all(kind: str, entries: Callable[[], Iterator[T]]) -> list[T]:
  """Reads all entries of a task; `kind` names them, as in 'examples'."""
  out = [*entries()]
  if not out:
    raise UsageError(f'the task has no {kind}: its files are empty')
  return out


def write_outputs(path: str, rows: Iterable[dict[str, Any]]) -> None:
  """Writes generated texts, a JSON object for each example."""
  lines = [json.dumps(row, ensure_ascii=False) + '\n' for row in rows]
  os.makedirs(os.path.dirname(path), exist_ok=True)
  write_atomically(path, ''.join(lines))
