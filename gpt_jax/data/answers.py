# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers compared as SQuAD's evaluation does (Rajpurkar et al., 2016)."""

import collections
import re
import string
from collections.abc import Sequence

_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normal(text: str) -> str:
  """The text without case, punctuation, articles and more than one space."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def exact_match(answer: str, answers: Sequence[str]) -> bool:
  """Whether an answer is one of those accepted, both normalised."""
  return normal(answer) in {normal(x) for x in answers}


def f1(answer: str, answers: Sequence[str]) -> float:
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
