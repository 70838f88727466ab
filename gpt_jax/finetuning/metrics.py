# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well a task is done: metrics of scikit-learn and SciPy by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from gpt_jax.finetuning.tasks import Task
from gpt_jax.spec import UsageError

# Neither is typed well enough for a type checker.
stats: Any = scipy.stats
sk: Any = sklearn.metrics

# Labels and predictions, each [N], to a number; the more the better.
Metric = Callable[[np.ndarray, np.ndarray], float]


def check(task: Task, call: str) -> None:
  """Checks that a task can be measured by its metrics.

  Args:
    task: with the names of its classes.
    call: of the config, for the message.

  Raises:
    UsageError: names the metric, and those that can be had.
  """
  classes = len(task.labels)
  fit = [name for name, kinds in KINDS.items() if task.kind in kinds]
  what = task.kind
  if task.kind == 'classification' and classes != 2:
    fit.remove('f1')
    what = f'{classes} classes'
  for name in task.metrics:
    if name not in METRICS:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: unknown; one of '
        + ', '.join(METRICS)
      )
    if name not in fit:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: does not measure {what}; '
        'one of ' + ', '.join(fit)
      )


def _accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  return float(sk.accuracy_score(labels, predictions))


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Of class 1."""
  return float(sk.f1_score(labels, predictions, pos_label=1, zero_division=0))


def _macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  found = sk.f1_score(labels, predictions, average='macro', zero_division=0)
  return float(found)


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
  return float(sk.matthews_corrcoef(labels, predictions))


def _pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  if _constant(labels, predictions):
    return 0.0
  return float(stats.pearsonr(labels, predictions)[0])


def _spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  if _constant(labels, predictions):
    return 0.0
  return float(stats.spearmanr(labels, predictions)[0])


def _constant(labels: np.ndarray, predictions: np.ndarray) -> bool:
  """The correlation with a constant is undefined: it explains nothing."""
  return any(np.ptp(x) == 0 for x in (labels, predictions))


METRICS: dict[str, Metric] = {
  'accuracy': _accuracy,
  'exact_match': _accuracy,
  'f1': _f1,
  'macro_f1': _macro_f1,
  'matthews': _matthews,
  'pearson': _pearson,
  'spearman': _spearman,
}
# The kinds of task that each measures.
KINDS = {
  'accuracy': ('classification', 'choice', 'target'),
  'exact_match': ('target',),
  'f1': ('classification',),
  'macro_f1': ('classification',),
  'matthews': ('classification',),
  'pearson': ('regression',),
  'spearman': ('regression',),
}
