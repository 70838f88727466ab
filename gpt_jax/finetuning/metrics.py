# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well a task is done: metrics of labels by name, those of SQuAD for spans,
CoNLL's for tags.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.data import answers, label_metrics
from gpt_jax.data.tasks import Task
from gpt_jax.finetuning import tags
from gpt_jax.spec import UsageError

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
  if again := {n for n in task.labels if task.labels.count(n) > 1}:
    raise UsageError(
      f'finetune.task={call!r}: labels names {min(again)!r} more than once; '
      'name each class once'
    )
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


def _of_answers(one: Callable[..., float]) -> Metric:
  """The mean over questions."""

  def mean(labels: Any, predictions: Any) -> float:
    pairs = zip(predictions, labels, strict=True)
    return float(np.mean([one(said, known) for said, known in pairs]))

  return mean


def _of_words(labels: Any, predictions: Any) -> float:
  flat = (np.array([*itertools.chain(*x)]) for x in (labels, predictions))
  return label_metrics.accuracy(*flat)


# By the kind of task.
METRICS: dict[str, dict[str, Metric]] = {
  'classification': label_metrics.OF_CLASSES,
  'choice': {'accuracy': label_metrics.accuracy},
  'regression': label_metrics.OF_SCORES,
  'target': dict.fromkeys(('accuracy', 'exact_match'), label_metrics.accuracy),
  'spans': {
    'f1': _of_answers(answers.f1),
    'exact_match': _of_answers(answers.exact_match),
  },
  'tags': {'f1': tags.f1, 'accuracy': _of_words},
}
