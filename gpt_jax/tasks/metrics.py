# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Labels against predictions, each [N]: metrics of scikit-learn and SciPy.

The more the better.
"""

import collections
import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

# Neither is typed well enough for a type checker.
stats: Any = scipy.stats
sk: Any = sklearn.metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The share of predictions that are right."""
  return float(sk.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Of class 1."""
  return float(sk.f1_score(labels, predictions, pos_label=1, zero_division=0))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The mean over classes of their F1."""
  found = sk.f1_score(labels, predictions, average='macro', zero_division=0)
  return float(found)


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Matthews' correlation of classes."""
  return float(sk.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The correlation; 0 with a constant."""
  if _constant(labels, predictions):
    return 0.0
  return float(stats.pearsonr(labels, predictions)[0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The correlation of ranks; 0 with a constant."""
  if _constant(labels, predictions):
    return 0.0
  return float(stats.spearmanr(labels, predictions)[0])


def _constant(labels: np.ndarray, predictions: np.ndarray) -> bool:
  """The correlation with a constant is undefined: it explains nothing."""
  return any(np.ptp(x) == 0 for x in (labels, predictions))


OF_CLASSES: dict[str, Callable[[Any, Any], float]] = {
  'accuracy': accuracy,
  'f1': f1,
  'macro_f1': macro_f1,
  'matthews': matthews,
}
OF_SCORES: dict[str, Callable[[Any, Any], float]] = {
  'pearson': pearson,
  'spearman': spearman,
}


# Answers compared as SQuAD's evaluation does (Rajpurkar et al., 2016).


_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normal(text: str) -> str:
  """The text without case, punctuation, articles and more than one space."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def exact_match(answer: str, answers: Sequence[str]) -> bool:
  """Whether an answer is one of those accepted, both normalised."""
  return normal(answer) in {normal(x) for x in answers}


def words_f1(answer: str, answers: Sequence[str]) -> float:
  """The best F1 of the words of an answer and of one accepted.

  Two empty answers agree, as in SQuAD 2.0; one alone has no word in common.
  """
  return max(_f1(normal(answer).split(), normal(x).split()) for x in answers)


def _f1(said: list[str], right: list[str]) -> float:
  if not said or not right:
    return float(said == right)
  common = collections.Counter(said) & collections.Counter(right)
  count = sum(common.values())
  return 2 * count / (len(said) + len(right))
