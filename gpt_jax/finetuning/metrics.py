# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well a task is done: metrics of scikit-learn and SciPy by name, those of
SQuAD for spans, CoNLL's for tags.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from gpt_jax.data import answers
from gpt_jax.finetuning import tags
from gpt_jax.finetuning.tasks import Task
from gpt_jax.spec import UsageError

# Neither is typed well enough for a type checker.
stats: Any = scipy.stats
sk: Any = sklearn.metrics

# Labels and predictions, each [N], to a number; the more the better. Of spans
# the accepted answers and the texts said, of tags their names in each sentence.
Metric = Callable[[Any, Any], float]


def check(task: Task, call: str) -> None:
  """Checks that a task can be measured by its metrics.

  Args:
    task: with the names of its classes.
    call: of the config, for the message.

  Raises:
    UsageError: names the metric, and those that can be had.
  """
  classes = len(task.labels)
  fit, what = [*METRICS[task.kind]], task.kind
  if task.kind == 'classification' and classes != 2:
    fit.remove('f1')
    what = f'{classes} classes'
  if task.kind == 'tags' and (odd := _no_entities(task)):
    fit.remove('f1')
    what = f'tags as {odd!r}, which are not O, B-... or I-...'
  known = dict.fromkeys(itertools.chain(*METRICS.values()))
  for name in task.metrics:
    if name not in known:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: unknown; one of '
        + ', '.join(known)
      )
    if name not in fit:
      raise UsageError(
        f'finetune.task={call!r}: metric {name!r}: does not measure {what}; '
        'one of ' + ', '.join(fit)
      )


def _no_entities(task: Task) -> str:
  """A tag that is not of an entity, nor of what is none; '': all are."""
  odd = [
    tag
    for tag in task.labels
    if tag != tags.OUTSIDE and not tag.startswith(('B-', 'I-'))
  ]
  return odd[0] if odd else ''


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


def _of_answers(one: Callable[..., float]) -> Metric:
  """The mean over questions."""

  def mean(labels: Any, predictions: Any) -> float:
    pairs = zip(predictions, labels, strict=True)
    return float(np.mean([one(said, known) for said, known in pairs]))

  return mean


def _of_words(labels: Any, predictions: Any) -> float:
  flat = (np.array([*itertools.chain(*x)]) for x in (labels, predictions))
  return _accuracy(*flat)


# By the kind of task.
METRICS: dict[str, dict[str, Metric]] = {
  'classification': {
    'accuracy': _accuracy,
    'f1': _f1,
    'macro_f1': _macro_f1,
    'matthews': _matthews,
  },
  'choice': {'accuracy': _accuracy},
  'regression': {'pearson': _pearson, 'spearman': _spearman},
  'target': {'accuracy': _accuracy, 'exact_match': _accuracy},
  'spans': {
    'f1': _of_answers(answers.f1),
    'exact_match': _of_answers(answers.exact_match),
  },
  'tags': {'f1': tags.f1, 'accuracy': _of_words},
}
