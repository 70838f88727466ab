# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Labels against predictions, each [N]: metrics of scikit-learn and SciPy.

The more the better.
"""

from collections.abc import Callable
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
