# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a task of `evaluate` is, and its results with standard errors."""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from gpt_jax.decoding import requests
from gpt_jax.evaluation.score import Journal, Scorer
from gpt_jax.files.progress import Report
from gpt_jax.spec import FailedError, UsageError

T = TypeVar('T')
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


class Setting(NamedTuple):
  """What is measured of a task, and after what.

  Attributes:
    shots: number of solved examples before each one.
    seed: for drawing them.
    limit: measures the first examples only, so many of each group; None: all.
    seen: those of `Task.texts` that training has seen, by position; None: it
      is not known.
    outputs: path for the texts that the model writes; '': they are not kept.
  """

  shots: int = 0
  seed: int = 0
  limit: int | None = None
  seen: frozenset[int] | None = None
  outputs: str = ''


class Task(Protocol):
  """Texts, and a measure of how well a model does on them."""

  @property
  def takes_shots(self) -> bool:
    """Whether few-shot examples can be shown."""
    ...

  @property
  def takes_sources(self) -> bool:
    """Whether a model writes texts for sources, as an encoder-decoder can too.

    Else only a decoder can be measured.
    """
    ...

  def measure(
    self,
    scorer: Scorer,
    setting: Setting,
    journal: Journal,
    report: Report,
  ) -> Figures:
    """Measures a model.

    With shots, `shots_shown` is the mean number that fitted into the context.
    Where it is known what training has seen, figures are also given for the
    examples that it has not; see `clean`.
    """
    ...

  def check(self, shots: int) -> None:
    """Reads the measured examples, and the few-shot pool if `shots` > 0."""
    ...

  def texts(self) -> Sequence[tuple[str, str]]:
    """'file:line' and text of all that training must not contain."""
    ...


# Makes a task from the folder of the task files.
Make = Callable[[str], Task]


def read_all(kind: str, entries: Callable[[], Iterator[T]]) -> list[T]:
  """Reads all entries of a task; `kind` names them: examples, questions."""
  out = [*entries()]
  if not out:
    raise UsageError(f'the task has no {kind}: its files are empty')
  return out
