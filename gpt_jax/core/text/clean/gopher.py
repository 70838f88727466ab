# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""MassiveText's quality and repetition filters (Rae et al. 2021, A.1.1).

A document is removed by the first rule that it breaks, in the paper's order.
Where the paper leaves a choice open, we choose:

* Words are separated by white space, and keep their punctuation.
* An ellipsis is '…', or three or more dots. `_BULLETS` are the bullets.
* Blank lines are no lines; paragraphs are separated by them. Both are compared
  without the white space around them, and of equal ones all but the first are
  duplicates.
* Of n-grams the paper counts the characters "contained within all duplicate
  n-grams": those of each occurrence, the first too, and none of them twice. The
  most frequent n-gram counts if it occurs twice; of several equally frequent
  ones, the one of most characters does. White space does not count.

datatrove's GopherQualityFilter and GopherRepetitionFilter (0.10.1) were tried
first; they measure something else. Their words are spaCy's tokens, so a comma
is a word without a letter, and prose with a comma after every third word fails
the 80% rule. 'The' is not a stop word, '*' is not a bullet, blank lines are
lines. The search for duplicate n-grams jumps behind each one it finds, joins
words without a space ('ab c' is 'a bc') and leaves out the first occurrence;
characters shared by overlapping occurrences of the top n-gram count twice, so
that 'a a' makes up 9 of the 7 characters of 'a a a a'.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.core.ranges import NotNegative, Probability, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Outcome

_STOP_WORDS = {'the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'}
_BULLETS = ('•', '‣', '▪', '◦', '●', '■', '*', '-', '\u2013')
_ELLIPSES = ('...', '…')
_ELLIPSIS = re.compile(r'…|\.{3,}')
_BLANK_LINES = re.compile(r'\n\s*\n')
# What may surround a stop word.
_AROUND = ''.join(_BULLETS) + '#.,:;!?\'"()[]{}_—“”\u2018\u2019…'

# The n of the n-grams in table A1.
_TOP, _DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)


class Measure(NamedTuple):
  """The value that a rule bounds: the rule is broken outside [least, most]."""

  rule: str
  value: float
  least: float
  most: float


@dataclasses.dataclass(frozen=True)
class Gopher(steps.Local):
  """Removes documents of poor quality or much repetition.

  The defaults are Gopher's thresholds.

  A fraction of 1 turns a rule off, as 0 does for `alphabetic` and `stop_words`.
  """

  min_words: Whole = 50  # in a document
  max_words: Whole = 100_000  # in a document
  min_word_length: NotNegative = 3.0  # mean number of characters in a word
  max_word_length: NotNegative = 10.0  # mean number of characters in a word
  symbols: NotNegative = 0.1  # '#' a word, and ellipses a word, at most
  bullets: Probability = 0.9  # fraction of lines that start with one, at most
  ellipses: Probability = 0.3  # fraction of lines that end with one, at most
  alphabetic: Probability = 0.8  # fraction of words with a letter, at least
  stop_words: Whole = 2  # different ones of the paper's eight, at least
  # Fraction of lines, at most; so those below.
  duplicate_lines: Probability = 0.30
  duplicate_paragraphs: Probability = 0.30  # fraction of paragraphs
  # Fraction of the characters of all lines.
  duplicate_line_characters: Probability = 0.20
  # Fraction of those of all paragraphs.
  duplicate_paragraph_characters: Probability = 0.20
  # Fractions of characters, for n = 2, 3, 4.
  top_ngrams: tuple = (0.20, 0.18, 0.16)
  # Fractions of characters, for n = 5, 6, 7, 8, 9, 10.
  duplicate_ngrams: tuple = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
  name = 'gopher'

  def clean(self, document: Document) -> Outcome:
    """Removes the document, or keeps it as it is."""
    for rule, value, least, most in self.measures(document.text):
      if not least <= value <= most:
        why = f'{value:.4g}: {document.text[:160]}'
        return steps.remove(document, rule, why)
    return steps.keep(document)

  def check(self) -> None:
    for name, wanted in ('top_ngrams', _TOP), ('duplicate_ngrams', _DUPLICATE):
      value, count = getattr(self, name), len(wanted)
      if len(value) != count or not all(map(_is_fraction, value)):
        raise UsageError(
          f'data.clean: gopher({name}={value!r}) takes {count} fractions between 0 and 1'
        )

  def measures(self, text: str) -> Iterator[Measure]:
    """Yields the measures of a text, rule by rule."""
    words = text.split()
    yield Measure('too few words', len(words), self.min_words, math.inf)
    yield Measure('too many words', len(words), 0, self.max_words)
    if not words:
      return
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    mean = lengths.sum() / len(words)
    yield Measure('mean word too short', mean, self.min_word_length, math.inf)
    yield Measure('mean word too long', mean, 0, self.max_word_length)
    hashes = text.count('#') / len(words)
    yield Measure('too many "#" a word', hashes, 0, self.symbols)
    ellipses = len(_ELLIPSIS.findall(text)) / len(words)
    yield Measure('too many ellipses a word', ellipses, 0, self.symbols)
    lines = [line for line in map(str.strip, text.split('\n')) if line]
    bullets = sum(line.startswith(_BULLETS) for line in lines) / len(lines)
    yield Measure('lines starting with a bullet', bullets, 0, self.bullets)
    ends = sum(line.endswith(_ELLIPSES) for line in lines) / len(lines)
    yield Measure('lines ending with an ellipsis', ends, 0, self.ellipses)
    letters = sum(any(map(str.isalpha, word)) for word in words) / len(words)
    yield Measure('too few words with a letter', letters, self.alphabetic, 1)
    found = count_stop_words(words, self.stop_words)
    yield Measure('too few stop words', found, self.stop_words, math.inf)
    yield from self._repetition(text, lines, words, lengths)

  def _repetition(self, text, lines, words, lengths) -> Iterator[Measure]:
    """Measures repetition: table A1."""
    paragraphs = [p for p in map(str.strip, _BLANK_LINES.split(text)) if p]
    of_lines, of_line_characters = duplicates(lines)
    of_paragraphs, of_paragraph_characters = duplicates(paragraphs)
    for rule, value, most in (
      ('line', of_lines, self.duplicate_lines),
      ('paragraph', of_paragraphs, self.duplicate_paragraphs),
      ('line character', of_line_characters, self.duplicate_line_characters),
      ('paragraph character', of_paragraph_characters, self.duplicate_paragraph_characters),
    ):
      yield Measure(f'duplicate {rule} fraction', value, 0, most)
    fractions = ngram_fractions(words, lengths)
    for n, most in zip(_TOP, self.top_ngrams, strict=True):
      value = next(fractions)
      yield Measure(f'top {n}-gram character fraction', value, 0, most)
    for n, most in zip(_DUPLICATE, self.duplicate_ngrams, strict=True):
      value = next(fractions)
      yield Measure(f'duplicate {n}-gram character fraction', value, 0, most)


def count_stop_words(words: Sequence[str], enough: int) -> int:
  """Counts different stop words in any case; stops counting at `enough`."""
  found = set()
  for word in words:
    if len(found) >= enough:
      break
    bare = word.strip(_AROUND).lower()
    if bare in _STOP_WORDS:
      found.add(bare)
  return len(found)


def duplicates(parts: Sequence[str]) -> tuple[float, float]:
  """The fraction of parts that equal an earlier one, and of characters."""
  first = set(parts)
  total, total_characters = len(parts), sum(map(len, parts))
  kept_characters = sum(map(len, first))
  return ((total - len(first)) / total, (total_characters - kept_characters) / total_characters)


def ngram_fractions(words: Sequence[str], lengths: np.ndarray) -> Iterator[float]:
  """Yields the fractions of characters in repeated n-grams, n = 2 .. 10.

  For n = 2, 3, 4 in the most frequent n-gram, above that in all duplicates.
  """
  known: dict[str, int] = {}
  numbers = [known.setdefault(word, len(known)) for word in words]
  ids = np.array(numbers, np.int64)
  # n-grams are numbered by pairs of an (n-1)-gram and a word.
  grams = ids
  for n in (*_TOP, *_DUPLICATE):
    if len(words) < n:
      yield 0.0
      continue
    pairs = grams[:-1] * len(known) + ids[n - 1 :]
    _, grams, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    starts = counts[grams] > 1
    if n in _TOP and starts.any():
      starts = grams == _most_frequent(n, grams, counts, lengths)
    covered = np.zeros(len(words), bool)
    for k in range(n):
      covered[k : k + len(starts)] |= starts
    yield float(lengths[covered].sum() / lengths.sum())


def _most_frequent(n: int, grams: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> int:
  """The most frequent n-gram; among equals the longest, then the first."""
  sizes = np.convolve(lengths, np.ones(n, np.int64), 'valid')
  often = counts[grams] == counts.max()
  return grams[np.argmax(np.where(often, sizes, 0))]


def _is_fraction(value: object) -> bool:
  return isinstance(value, int | float) and 0 <= value <= 1
