# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""C4's rules for web pages (Raffel et al. 2020, section 2.2).

Versions of the text ask for 3 words a line and 5 sentences a page, which are
the defaults, or for 5 words and 3 sentences, as the code does that made the C4
of TensorFlow Datasets. That code differs in more: it removes single lines that
occur twice instead of three-sentence spans, lines that end in an ellipsis,
words of over 1,000 characters (with their lines), citation marks and
policy notices; it splits sentences by NLTK's model; and it looks for curly
brackets and "lorem ipsum" only in lines that passed, where we look at the page.

Then "we discarded all but one of any three-sentence span occurring more than
once in the data set." The first occurrence stays. Sentences are compared in
lower case and without regard to white space, by a hash of 64 bits. The first
occurrence of every sentence stays in any case: one that is removed was in an
earlier span.
"""

import dataclasses
import functools
import itertools
import os
import re
from typing import Literal

import numpy as np

from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import hashing, sentences
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Findings, Outcome, Removal, Rows, Sketches

# A period, an exclamation mark, a question mark, an end quotation mark.
_TERMINAL = ('.', '!', '?', '"', '”')

# Rules of lines, in the order in which they are applied.
_PUNCTUATION = 'line without terminal punctuation'
_JAVASCRIPT = 'line with "javascript"'
_SHORT = 'line of too few words'

_CURLY = re.compile(r'[{}]')
_LOREM = re.compile('lorem ipsum', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Pages(steps.Local):
  """The rules that look at one page; a local step."""

  words: int
  sentences: int
  bad_words: tuple[str, ...]
  bad_words_file: str = ''
  name = 'c4'

  @property
  def files(self) -> dict[str, str]:
    path = os.path.expanduser(self.bad_words_file)
    return {os.path.basename(path): path} if path else {}

  def clean(self, document: Document) -> Outcome:
    """Removes lines, or the page."""
    text = document.text
    for rule, pattern in (
      ('page with a curly bracket', _CURLY),
      ('page with "lorem ipsum"', _LOREM),
      ('page with a bad word', _any_of(self.bad_words)),
    ):
      if pattern and (match := pattern.search(text)):
        start = max(match.start() - 40, 0)
        return steps.remove(document, rule, text[start : match.end() + 40])
    kept, removed, num_sentences = [], {}, 0
    for line in _lines(text):
      rule = self._rule(line)
      if rule is None:
        kept.append(line)
        num_sentences += sentences.count_sentences(line)
      elif line:
        count, size, example = removed.get(rule, (0, 0, line))
        removed[rule] = count + 1, size + len(line.encode()), example
    removals = [Removal(rule, *what) for rule, what in removed.items()]
    cleaned = document._replace(text='\n'.join(kept))
    if not kept or num_sentences < self.sentences:
      rule, example = 'page of too few sentences', cleaned.text or text
      gone = steps.remove(cleaned, rule, example)
      return Outcome([], removals + gone.removals)
    return Outcome([cleaned], removals)

  def _rule(self, line: str) -> str | None:
    """The rule that removes a line; None if it stays."""
    if not line.endswith(_TERMINAL):
      return _PUNCTUATION
    if len(line.split(None, self.words)) < self.words:
      return _SHORT
    return _JAVASCRIPT if 'javascript' in line.lower() else None


def read_words(path: str) -> tuple[str, ...]:
  """Reads a list of bad words: one word or phrase a line, '#' comments."""
  path = os.path.expanduser(path)
  try:
    with open(path, encoding='utf-8-sig') as file:
      lines = [line.strip().lower() for line in file]
  except (OSError, UnicodeDecodeError) as e:
    raise UsageError(
      f'data.clean: bad_words={path!r} cannot be read ({e}); give a text file '
      'of one word or phrase a line'
    ) from e
  found = sorted({line for line in lines if line and not line.startswith('#')})
  if not found:
    raise UsageError(f'data.clean: bad_words={path!r} holds no word; write one a line')
  return tuple(found)


@functools.cache
def _any_of(words: tuple[str, ...]) -> re.Pattern | None:
  """Finds any of the words, whole."""
  if not words:
    return None
  choices = '|'.join(re.escape(word) for word in words)
  return re.compile(rf'(?<!\w)(?:{choices})(?!\w)', re.IGNORECASE)


def _lines(text: str):
  """Yields stripped lines; without a list of them, for pages of any size."""
  start = 0
  while start <= len(text):
    stop = text.find('\n', start)
    stop = len(text) if stop < 0 else stop
    yield text[start:stop].strip()
    start = stop + 1


LENGTH = 3


@dataclasses.dataclass(frozen=True)
class Spans(steps.Global):
  """Removes all but the first of equal spans; a global step.

  A row is a span: its key is the span's hash, its value the number of the first
  sentence. A finding is a sentence to remove: its value is the number.
  """

  sentences: int  # a page that has fewer after that is removed
  name = 'c4: three-sentence spans'

  def rows(self, text: str) -> Rows:
    """All spans of a document."""
    hashes = np.fromiter((_hash(text[a:b]) for a, b in sentences.spans(text)), np.uint64)
    keys = hashing.of_runs(hashes, LENGTH)
    return Rows(keys, np.arange(len(keys), dtype=np.uint64))

  def judge(
    self, keys: np.ndarray, places: np.ndarray, values: np.ndarray, sketches: Sketches
  ) -> Findings:
    """Finds the sentences of all spans but the first of each group."""
    starts = steps.group_starts(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    first_place = np.repeat(places[starts], sizes)
    first_value = np.repeat(values[starts], sizes)
    again = np.ones(len(keys), bool)
    again[starts] = False
    found_places, found_values = [], []
    for i in range(LENGTH):
      sentence = values + np.uint64(i)
      # A span that overlaps the one that stays takes nothing from it.
      own = (places == first_place) & (sentence < first_value + LENGTH)
      wanted = again & ~own
      found_places.append(places[wanted])
      found_values.append(sentence[wanted])
    return Findings(np.concatenate(found_places), np.concatenate(found_values))

  def clean(self, document: Document, values: np.ndarray) -> Outcome:
    """Cuts sentences out."""
    if not len(values):
      return steps.keep(document)
    text, gone = document.text, {*values.tolist()}
    pieces, example, size = [], '', 0
    for i, (start, stop) in enumerate(sentences.spans(text)):
      if i in gone:
        example = example or text[start:stop]
        size += len(text[start:stop].encode())
      else:
        pieces.append(text[start:stop])
    removal = Removal('sentence of a repeated span', len(gone), size, example.strip())
    left = document._replace(text=''.join(pieces).strip())
    enough = itertools.islice(sentences.spans(left.text), self.sentences)
    if left.text and len([*enough]) == self.sentences:
      return Outcome([left], [removal])
    rest = steps.remove(left, 'page of too few sentences after removing spans', text)
    return Outcome([], [removal, *rest.removals])


def _hash(sentence: str) -> int:
  return hashing.of_text(' '.join(sentence.lower().split()))


def c4(
  words: Count = 3,
  sentences: Count = 5,
  bad_words: str = '',
  duplicates: Literal['spans', 'keep'] = 'spans',
) -> list[steps.Step]:
  """C4's rules for web pages.

  Args:
    words: the fewest of a line.
    sentences: the fewest of a page.
    bad_words: a file of words, one a line: a page with any of them is removed.
    duplicates: 'spans' removes three-sentence duplicates, 'keep' does not.
  """
  bad = read_words(bad_words) if bad_words else ()
  found: list[steps.Step] = [Pages(words, sentences, bad, bad_words)]
  return found + [Spans(sentences)] * (duplicates == 'spans')
