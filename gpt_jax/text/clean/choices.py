# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps that `data.clean` may name."""

import contextlib
import os
from importlib import metadata
from typing import Literal, NamedTuple

from gpt_jax import spec
from gpt_jax.ranges import Count, Probability, Share, Whole
from gpt_jax.spec import UsageError
from gpt_jax.text import sources
from gpt_jax.text.clean import c4 as c4_rules
from gpt_jax.text.clean import decontaminate as evaluation_texts
from gpt_jax.text.clean import decontaminate as overlaps
from gpt_jax.text.clean import gopher as gopher_rules
from gpt_jax.text.clean import language as languages
from gpt_jax.text.clean import minhash as fuzzy
from gpt_jax.text.clean import quality as classifiers
from gpt_jax.text.clean.c4 import Spans
from gpt_jax.text.clean.steps import Step

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
  """Makes the steps of `data.clean`, without a look at what they need."""
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
  calls = spec.bind_all(FIELD, text, STEPS)
  if twice := [call.name for i, call in enumerate(calls) if call in calls[:i]]:
    raise UsageError(
      f'{FIELD}={text!r}: names {twice[0]} twice with the same arguments; '
      'once is enough'
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
  """Looks whether the steps can be taken."""
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
  duplicates: Literal['spans', 'keep'] = 'spans',
) -> Loaded:
  """C4's rules for web pages.

  Args:
    words: that a line has at least.
    sentences: that a page has at least.
    bad_words: a file of words, one a line: a page with any of them goes.
    duplicates: 'spans' removes three-sentence duplicates, 'keep' does not.
  """
  bad, files = (), {}
  if bad_words:
    bad = c4_rules.read_words(bad_words)
    files[os.path.basename(bad_words)] = os.path.expanduser(bad_words)
  steps: list[Step] = [c4_rules.Pages(words, sentences, bad)]
  if duplicates == 'spans':
    steps.append(Spans(sentences))
  return Loaded(steps, files)


def gopher(
  min_words: int = 50,
  max_words: int = 100_000,
  min_word_length: float = 3.0,
  max_word_length: float = 10.0,
  symbols: float = 0.1,
  bullets: float = 0.9,
  ellipses: float = 0.3,
  alphabetic: float = 0.8,
  stop_words: int = 2,
  duplicate_lines: float = 0.30,
  duplicate_paragraphs: float = 0.30,
  duplicate_line_characters: float = 0.20,
  duplicate_paragraph_characters: float = 0.20,
  top_ngrams: tuple = (0.20, 0.18, 0.16),
  duplicate_ngrams: tuple = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10),
) -> Loaded:
  """MassiveText's quality and repetition filters, with Gopher's thresholds.

  They are explained at `gopher.Gopher`. A fraction of 1 turns a rule off, as
  0 does for `alphabetic` and `stop_words`.
  """
  return Loaded([gopher_rules.Gopher(**locals())], {})


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
  high: str = '',
  low: str = '',
  function: str = '',
  alpha: float | None = None,
  threshold: float | None = None,
) -> Loaded:
  """Documents that a classifier takes for good; see `quality.py`.

  Args:
    high: a source of good text.
    low: a source of text as it is filtered.
    function: instead, 'module:name' of a function from text to a score.
    alpha: a document stays if pareto(alpha) > 1 - score; 9, as for GPT-3,
      where neither alpha nor threshold is given.
    threshold: instead, a document stays if its score is at least that.
  """
  step = classifiers.Quality(high, low, function, alpha, threshold)
  files = {}
  for call in filter(None, (high, low)):
    files |= sources.load(FIELD, call).files
  return Loaded([step], files)


def decontaminate(
  *patterns: str,
  field: str = '',
  n: Count = 13,
  rule: Literal['documents', 'pieces'] = 'documents',
  frequent: Whole = 10,
) -> Loaded:
  """What overlaps evaluation files goes.

  Args:
    *patterns: of CSV, TSV, JSON lines, or plain text.
    field: of a record, or several: 'context, ending'; by default all.
    n: words that an overlap has at least.
    rule: 'documents' go as a whole, or 'pieces' as GPT-3 cuts them.
    frequent: an n-gram in more documents than that is ignored; 0: none is.
  """
  step = overlaps.Decontaminate(patterns, field, n, rule, frequent)
  return Loaded([step], evaluation_texts.files(patterns))


_CHECKS = {
  gopher_rules.Gopher: gopher_rules.check,
  languages.Language: languages.check,
  classifiers.Quality: classifiers.check,
  fuzzy.MinHash: fuzzy.check,
  overlaps.Decontaminate: overlaps.check,
}

STEPS = {
  'none': none,
  'c4': c4,
  'gopher': gopher,
  'language': language,
  'quality': quality,
  'minhash': minhash,
  'decontaminate': decontaminate,
}
