# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps that `data.clean` may name."""

import contextlib
import os
from importlib import metadata
from typing import NamedTuple

from gpt_jax import spec
from gpt_jax.data.clean import c4 as c4_rules
from gpt_jax.data.clean import decontaminate as overlaps
from gpt_jax.data.clean import language as languages
from gpt_jax.data.clean import minhash as fuzzy
from gpt_jax.data.clean import quality as classifiers
from gpt_jax.data.clean.spans import Spans
from gpt_jax.data.clean.steps import Step
from gpt_jax.data.sources import sources
from gpt_jax.ranges import Count, Positive, Probability, Share, Whole
from gpt_jax.spec import UsageError

FIELD = 'data.clean'


class Loaded(NamedTuple):
  """What a call means.

  Attributes:
    steps: in order; none for 'none'.
    files: name -> path of what they read.
  """

  steps: list[Step]
  files: dict[str, str]


def load(text: str) -> Loaded:
  """Makes the steps of `data.clean`, without a look at what they need.

  Raises:
    UsageError: a call is wrong, or a file is missing.
  """
  loaded = spec.build_all(FIELD, text, STEPS)
  if len(loaded) > 1 and any(not part.steps for part in loaded):
    raise UsageError(f"{FIELD}={text!r}: 'none' stands alone")
  steps = [step for part in loaded for step in part.steps]
  cutting = [s for s in steps if getattr(s, 'rule', '') == 'pieces']
  if len(cutting) > 1:
    raise UsageError(
      f'{FIELD}={text!r}: documents are cut into pieces twice; give one '
      "decontaminate(..., rule='pieces') all evaluation files"
    )
  files = {
    f'clean: {name}': path
    for part in loaded
    for name, path in part.files.items()
  }
  return Loaded(steps, files)


def is_none(text: str) -> bool:
  """Tells whether nothing is to be cleaned."""
  return [call.name for call in spec.parse(FIELD, text)] == ['none']


def check(steps: list[Step]):
  """Looks whether the steps can be taken.

  Raises:
    UsageError: an argument is out of range, a file cannot be used, or a library
      is missing.
  """
  for step in steps:
    if isinstance(step, tuple(_CHECKS)):
      _CHECKS[type(step)](step)


def ready(steps: list[Step]) -> list[Step]:
  """Does what comes before the first document: trains classifiers."""
  return [
    step.ready() if isinstance(step, classifiers.Quality) else step
    for step in steps
  ]


def versions() -> dict[str, str]:
  """Of the libraries that the result depends on, as far as they are there."""
  found = {}
  for name in ('datasketch', 'py3langid', 'scikit-learn'):
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[name] = metadata.version(name)
  return found


def none() -> Loaded:
  """All documents stay as they are."""
  return Loaded([], {})


def c4(
  words: Count = 3,
  sentences: Count = 5,
  bad_words: str = '',
  duplicates: str = 'spans',
) -> Loaded:
  """C4's rules for web pages.

  Args:
    words: that a line has at least.
    sentences: that a page has at least.
    bad_words: a file of words, one a line: a page with any of them goes.
    duplicates: 'spans' removes three-sentence duplicates, 'keep' does not.
  """
  if duplicates not in ('spans', 'keep'):
    raise UsageError(
      f"{FIELD}: c4(duplicates={duplicates!r}) is neither 'spans' nor 'keep'"
    )
  bad, files = (), {}
  if bad_words:
    bad = c4_rules.read_words(bad_words)
    files[os.path.basename(bad_words)] = os.path.expanduser(bad_words)
  steps: list[Step] = [c4_rules.Pages(words, sentences, bad)]
  if duplicates == 'spans':
    steps.append(Spans(sentences))
  return Loaded(steps, files)


def language(language: str, probability: Probability = 0.99) -> Loaded:
  """Documents of a language, by its code such as 'en'."""
  step = languages.Language(language, probability)
  return Loaded([step], {})


def minhash(
  threshold: Share = 0.8, hashes: Count = 10, rows: Count = 5, ngram: Count = 5
) -> Loaded:
  """All but the first of near-duplicate documents goes.

  Args:
    threshold: estimated Jaccard similarity of near-duplicates, at least.
    hashes: of which near-duplicates agree in one, at least.
    rows: MinHash values in each of them.
    ngram: words in a shingle.
  """
  step = fuzzy.MinHash(threshold, hashes, rows, ngram)
  return Loaded([step], {})


def quality(
  high: str = '', low: str = '', function: str = '', alpha: Positive = 9.0
) -> Loaded:
  """Documents that a classifier takes for good; see `quality.py`.

  Args:
    high: a source of good text.
    low: a source of text as it is filtered.
    function: instead, 'module:name' of a function from text to a score.
    alpha: a document stays if pareto(alpha) > 1 - score.
  """
  step = classifiers.Quality(high, low, function, alpha)
  files = {}
  for call in filter(None, (high, low)):
    files |= sources.load(FIELD, call).files
  return Loaded([step], files)


def decontaminate(
  *patterns: str,
  field: str = 'text',
  n: Count = 13,
  rule: str = 'documents',
  frequent: Whole = 10,
) -> Loaded:
  """What overlaps evaluation files goes.

  Args:
    *patterns: of JSON lines, or of text files.
    field: of a JSON line.
    n: words that an overlap has at least.
    rule: 'documents' go as a whole, or 'pieces' as GPT-3 cuts them.
    frequent: an n-gram in more documents than that is ignored; 0: none is.
  """
  step = overlaps.Decontaminate(patterns, field, n, rule, frequent)
  return Loaded([step], overlaps.files(patterns))


_CHECKS = {
  languages.Language: languages.check,
  classifiers.Quality: classifiers.check,
  fuzzy.MinHash: fuzzy.check,
  overlaps.Decontaminate: overlaps.check,
}

STEPS = {
  'none': none,
  'c4': c4,
  'language': language,
  'quality': quality,
  'minhash': minhash,
  'decontaminate': decontaminate,
}
