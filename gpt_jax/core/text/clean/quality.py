# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Filters documents by a classifier's score.

GPT-3 (Brown et al. 2020, appendix A): a logistic regression over hashed words,
trained to tell curated text from raw web text; a document is kept if
`np.random.pareto(alpha) > 1 - score`, alpha = 9, so that some of low score
stay. Here the random number is a function of the document's text. With
`threshold` a document is kept if its score is at least that.

Instead of the classifier a Python function of the user may give the score:
`function='module:name'`, called with the text. For the draw its scores must be
between 0 and 1; a threshold works with any numbers.
"""

import dataclasses
import functools
import hashlib
import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.core.spec import UsageError, optional
from gpt_jax.core.text import sources
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Outcome

# GPT-3's, of the Pareto draw.
ALPHA = 9.0
# Features of the words, and the most training documents of each set.
_FEATURES, _DOCUMENTS = 1 << 18, 10_000
# The characters of a document that are scored.
_LONGEST = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class Quality(steps.Local):
  """Removes documents by their score; see `quality` for the arguments."""

  high: str
  low: str
  function: str
  alpha: float | None
  threshold: float | None = None
  weights: np.ndarray | None = None  # of the features; None before training
  bias: float = 0.0
  name = 'quality'

  @property
  def files(self) -> dict[str, str]:
    found = {}
    for call in filter(None, (self.high, self.low)):
      found |= sources.load('data.clean', call).files
    return found

  def check(self) -> None:
    if bool(self.function) == bool(self.high and self.low):
      raise UsageError(
        'data.clean: give quality either two sources of text, as in '
        'quality(high="text(\'good/*.txt\')", low="text(\'web/*.txt\')"), or '
        "function='module:name'"
      )
    if self.alpha is not None and self.threshold is not None:
      raise UsageError(
        'data.clean: quality takes alpha (a Pareto draw) or threshold (the '
        'score that a document has at least), not both'
      )
    alpha = ALPHA if self.alpha is None else self.alpha
    if not (_is_finite(alpha) and alpha > 0):
      raise UsageError(f'data.clean: quality(alpha={alpha!r}) must be a number above 0')
    if self.threshold is not None and not _is_finite(self.threshold):
      raise UsageError(f'data.clean: quality(threshold={self.threshold!r}) must be a number')
    if self.function:
      _function(self.function)
    else:
      _vectorizer()
      for call in (self.high, self.low):
        sources.load('data.clean', call).check()

  def clean(self, document: Document) -> Outcome:
    score = self.score(document.text)
    if self._passes(document.text, score):
      return steps.keep(document)
    why = f'score {score:.3f}: {document.text[:160]}'
    return steps.remove(document, 'low quality', why)

  def _passes(self, text: str, score: float) -> bool:
    if self.threshold is not None:
      return score >= self.threshold
    alpha = ALPHA if self.alpha is None else self.alpha
    return pareto(text, alpha) > 1 - score

  def score(self, text: str) -> float:
    """The score of the classifier, between 0 and 1, or of the function."""
    if self.function:
      return float(_function(self.function)(text))
    assert self.weights is not None, 'call ready() first'
    hashed = _vectorizer().transform([text[:_LONGEST]])
    return float(1 / (1 + np.exp(-(hashed @ self.weights + self.bias)[0])))

  def ready(self) -> 'Quality':
    if self.function or self.weights is not None:
      return self
    weights, bias = train(self.high, self.low)
    return dataclasses.replace(self, weights=weights, bias=bias)


def quality(
  high: str = '',
  low: str = '',
  function: str = '',
  alpha: float | None = None,
  threshold: float | None = None,
) -> Quality:
  """Keeps documents that a classifier rates as good.

  Args:
    high: a source of good text.
    low: a source of text such as the corpus has.
    function: instead of these, 'module:name' of a function from text to score.
    alpha: a document stays if pareto(alpha) > 1 - score; by default 9, as for
      GPT-3.
    threshold: instead of alpha, the least score of a document that stays.
  """
  return Quality(high, low, function, alpha, threshold)


def pareto(text: str, alpha: float) -> float:
  """A draw of `numpy.random.pareto(alpha)` that depends on the text alone."""
  digest = hashlib.sha256(text.encode()).digest()
  uniform = int.from_bytes(digest[:6], 'little') / 2**48
  return (1 - uniform) ** (-1 / alpha) - 1


def train(high: str, low: str) -> tuple[np.ndarray, float]:
  """Trains a classifier of two sources: weights [features] and bias."""
  linear = importlib.import_module('sklearn.linear_model')
  read = [
    itertools.islice(sources.documents('data.clean', call), _DOCUMENTS) for call in (high, low)
  ]
  texts = [[d.text[:_LONGEST] for d in documents] for documents in read]
  labels = np.repeat([1, 0], [len(part) for part in texts])
  hashed = _vectorizer().transform(itertools.chain(*texts))
  # liblinear's result does not depend on the number of threads.
  model = linear.LogisticRegression(
    solver='liblinear', class_weight='balanced', random_state=0
  ).fit(hashed, labels)
  return model.coef_[0], float(model.intercept_[0])


def _is_finite(value: Any) -> bool:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  return number and math.isfinite(value)


@functools.cache
def _vectorizer() -> Any:
  text = optional('sklearn.feature_extraction.text', 'data.clean: quality(...) needs scikit-learn')
  return text.HashingVectorizer(n_features=_FEATURES, alternate_sign=False)


@functools.cache
def _function(text: str) -> Callable[[str], float]:
  module, _, name = text.partition(':')
  try:
    return getattr(importlib.import_module(module), name)
  except (ImportError, AttributeError, ValueError) as e:
    raise UsageError(
      f'data.clean: quality(function={text!r}): {e}; name a function that can '
      "be imported, as in 'package.module:score'"
    ) from e
